// Heads of the model itself that predict further tokens (multi-token prediction, arXiv:2412.19437).
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/drafter.h"
#include "engine/loaded_model.h"
#include "engine/mtp_head.h"

namespace faststream {

/// Draws by the rules, and with the random numbers, of the model, as DraftModel does. The model's
/// predictors read the hidden states that its steps leave, or what they make of the streams after
/// several layers (EAGLE-3, arXiv:2503.01840), or those of the predictor before: those of prompts
/// at once, others when a draft is wanted, or there is no room to keep more. The first one says
/// what comes after a text's last token, each other one what comes after that which the one before
/// drew; the last one goes on, of its own hidden states.
///
/// Of a text of which a head knows nothing it proposes what the heads before draw; nothing where
/// the device fails.
class MtpDrafter final : public Drafter {
 public:
  /// The model has predictors, which are loaded, and must outlive this. prefix_sharing: see
  /// EngineOptions.
  MtpDrafter(LoadedModel& model, bool prefix_sharing);

  [[nodiscard]] bool reads_states() const override { return true; }
  void processed(std::span<const ProcessedTokens> tokens, int32_t most_texts) override;
  [[nodiscard]] bool follows(const SequenceGroup& group) const override {
    return heads_.front()->follows(group);
  }
  [[nodiscard]] int32_t n_followed() const override { return heads_.front()->n_followed(); }
  [[nodiscard]] int32_t n_unread(const SequenceGroup& group) const override {
    return heads_.front()->n_unread(group);
  }
  std::vector<DraftPass> draft(std::span<const DraftTask> tasks) override;
  void forget(const SequenceGroup& group) override;

 private:
  std::vector<DraftPass> draw(std::vector<MtpDraft*> drafts, bool reads_each);
  void forget_all();

  const Backend& backend_;  // the model's
  std::vector<std::unique_ptr<MtpHead>> heads_;
  std::vector<MtpHead*> of_model_;  // of them those that read the model's hidden states
};

}  // namespace faststream
