// Heads of the model itself that predict further tokens (multi-token prediction, arXiv:2412.19437).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "engine/drafter.h"
#include "engine/loaded_model.h"
#include "engine/runner.h"
#include "engine/sequence.h"

namespace faststream {

/// Draws by the rules, and with the random numbers, of the model, as DraftModel does. After each
/// step the model's first predictor reads the hidden states that the step left, each beside the
/// token that came next; of the last one it says what comes after that. What it draws further, it
/// draws of its own hidden states.
///
/// Of each text it keeps a sequence, with a token for each hidden state. Of what the model found in
/// its cache there are none: what the predictor made of the same tokens before is found in its own,
/// or else the sequence begins behind them. Where its cache has no room for a text, or its device
/// fails, it proposes nothing for it.
class MtpDrafter final : public Drafter {
 public:
  /// The model has predictors, which are loaded, and must outlive this. prefix_sharing: see
  /// EngineOptions.
  MtpDrafter(LoadedModel& model, bool prefix_sharing);
  ~MtpDrafter() override;

  void processed(std::span<const ProcessedTokens> tokens) override;
  void draft(std::span<const DraftTask> tasks) override;
  void forget(const SequenceGroup& group) override;

 private:
  struct Text {
    Sequence sequence = {};
    int32_t begin = 0;  // of the text's tokens the first one whose hidden state is in the sequence
    int32_t row = -1;   // of the last pass's logits, that say what comes next; -1: none

    // Tokens of the text whose hidden states need not be read any more.
    [[nodiscard]] int32_t n_read() const { return begin + sequence.n_cached; }
  };
  struct Draft {
    DraftTask task;
    Sequence fork = {};  // of the text's
    int32_t row = 0;     // of the last pass's logits
    std::vector<int32_t> tokens = {};
  };

  void read(std::span<const ProcessedTokens> tokens);
  Text& text_of(const ProcessedTokens& tokens);
  void begin(Text& text, const ProcessedTokens& tokens);
  void remember(const SequenceGroup& group, Text& text);
  bool make_room(Sequence& sequence, int32_t n_tokens, std::vector<PageCopy>& copies);
  void step(const DeviceExecutor& of, std::span<const NewTokens> inputs,
            std::span<const int32_t> rows, std::span<const PageCopy> copies);
  void draw(std::vector<Draft*>& drafts);
  void go_on(std::vector<Draft*>& drafts);
  void forget_all();

  DeviceExecutor& model_;
  DeviceExecutor* predictor_ = nullptr;  // the runner's
  Runner runner_;
  bool prefix_sharing_;
  std::map<const SequenceGroup*, Text> texts_;
  std::vector<SampledToken> sampled_;
};

}  // namespace faststream
