// A second, smaller model that proposes what it draws itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <vector>

#include "engine/draft_draws.h"
#include "engine/drafter.h"
#include "engine/loaded_model.h"
#include "engine/sequence.h"

namespace faststream {

/// Draws by the rules, and with the random numbers, of the model that it drafts for: where both
/// would give a token about the same probability, they draw the same one.
///
/// Of each text it keeps a sequence of what is in the text; what it draws itself is in a fork of
/// that, which goes when the draft is done. Where its context, its slots or its cache have no room
/// for a text, or its device fails, it proposes nothing for it. A text for which nothing has been
/// drafted for long is followed no more, until it is read again.
class DraftModel final : public Drafter {
 public:
  /// Loads a model beside the one that is to be placed on a device with these options. Throws as
  /// Engine's constructor does.
  DraftModel(const std::filesystem::path& path, const EngineOptions& options);
  ~DraftModel() override;

  /// Of weights and caches.
  [[nodiscard]] size_t bytes() const { return model_.info.weight_bytes + model_.info.kv_bytes; }
  /// Throws Error when the other model has another tokenizer, or an encoder.
  void check_drafts_for(const LoadedModel& model) const;

  [[nodiscard]] bool reads_states() const override { return false; }
  std::vector<DraftPass> read(const SequenceGroup& group) override;
  [[nodiscard]] int32_t n_followed() const override;
  [[nodiscard]] bool follows(const SequenceGroup& group) const override;
  [[nodiscard]] int32_t n_unread(const SequenceGroup& group) const override;
  std::vector<DraftPass> draft(std::span<const DraftTask> tasks) override;
  void forget(const SequenceGroup& group) override;

 private:
  struct Draft {
    DraftTask task;
    Sequence fork = {};  // of the text's
    std::vector<int32_t> tokens = {};
  };

  [[nodiscard]] bool fits(const SequenceGroup& group, const Sequence& sequence) const;
  void read_but_last(const SequenceGroup& group);
  void begin(std::vector<Draft*>& drafts, DraftDraws& draws);
  void go_on(std::vector<Draft*>& drafts, DraftDraws& draws);
  void run(std::span<const NewTokens> inputs, std::span<const PageCopy> copies,
           std::vector<Draft*>& drafts, DraftDraws& draws);

  LoadedModel model_;
  std::map<const SequenceGroup*, Sequence> texts_;
  std::vector<DraftPass> passes_;  // since a text or a draft was begun
};

}  // namespace faststream
