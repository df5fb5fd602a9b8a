// Heads of the model itself that predict further tokens (multi-token prediction, arXiv:2412.19437).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "engine/drafter.h"
#include "engine/loaded_model.h"
#include "engine/runner.h"
#include "engine/sequence.h"

namespace faststream {

/// Draws by the rules, and with the random numbers, of the model, as DraftModel does. The model's
/// first predictor reads the hidden states that its steps leave, or what it makes of the streams
/// after several layers (EAGLE-3, arXiv:2503.01840), each beside the token that came next: those of
/// prompts at once, others when a draft is wanted, or there is no room to keep more. Of a text's
/// last one it says what comes after that token. What it draws further, it draws of its own hidden
/// states.
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

  void processed(std::span<const ProcessedTokens> tokens, int32_t most_texts) override;
  [[nodiscard]] bool follows(const SequenceGroup& group) const override {
    return texts_.contains(&group);
  }
  void draft(std::span<const DraftTask> tasks) override;
  void forget(const SequenceGroup& group) override;

 private:
  struct Text {
    Sequence sequence = {};
    int32_t begin = 0;  // of the text's tokens the first one whose hidden state is in the sequence
    std::vector<int32_t> kept = {};  // rows of hidden states that are to be read next
    int32_t row = -1;  // of the last pass's logits, that say what comes next; -1: none

    // Tokens of the text whose hidden states are in the sequence.
    [[nodiscard]] int32_t n_read() const { return begin + sequence.n_cached; }
    // Those that are kept included.
    [[nodiscard]] int32_t n_known() const { return n_read() + static_cast<int32_t>(kept.size()); }
  };
  struct Draft {
    DraftTask task;
    Sequence fork = {};  // of the text's
    int32_t row = 0;     // of the last pass's logits
    std::vector<int32_t> tokens = {};
  };
  // Hidden states that a step of the model left: of tokens from n_known() to `end`.
  struct NewStates {
    const SequenceGroup* group = nullptr;
    Text* text = nullptr;
    int32_t first_row = 0;  // of that of the token in position 0, if it were there
    int32_t least_row = 0;  // that there is
    int32_t end = 0;

    [[nodiscard]] int32_t row(int32_t position) const {
      return std::max(first_row + position, least_row);
    }
  };

  // What becomes of those that are kept of a text.
  enum class Reading { none, all, with_logits };

  std::vector<NewStates> new_states(std::span<const ProcessedTokens> tokens, int32_t most_texts);
  Text* text_of(const ProcessedTokens& tokens, int32_t most_texts);
  void begin(Text& text, const ProcessedTokens& tokens);
  void remember(const SequenceGroup& group, Text& text);
  void read_prompts(std::span<const NewStates> states);
  void keep(std::span<const NewStates> states);
  void read_kept(const std::function<Reading(const SequenceGroup& group)>& how);
  bool make_room(Sequence& sequence, int32_t n_tokens, std::vector<PageCopy>& copies);
  void draw(std::vector<Draft*>& drafts);
  void go_on(std::vector<Draft*>& drafts);
  void forget_all();

  Runner runner_;
  Executor& predictor_;  // the runner's
  bool prefix_sharing_;
  std::map<const SequenceGroup*, Text> texts_;
  int32_t n_kept_ = 0;  // rows that hidden states are kept in, or were for texts that have gone
  std::vector<SampledToken> sampled_;
};

}  // namespace faststream
