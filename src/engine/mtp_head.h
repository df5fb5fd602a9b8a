// One of a model's heads that predict further tokens: what it has read of texts, and how it goes
// on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "engine/draft_draws.h"
#include "engine/drafter.h"
#include "engine/runner.h"
#include "engine/sequence.h"

namespace faststream {

class MtpHead;

/// What is drafted for a text: by the first head, then by each other one once, then by the last.
struct MtpDraft {
  DraftTask task;
  std::vector<int32_t> tokens = {};
  int32_t row = 0;  ///< of the logits, of the head's last pass, that say what comes next
  /// Beyond the text, of the head that has drawn last; its tokens in the last pass.
  MtpHead* head = nullptr;
  Sequence fork = {};
  int32_t first_token = 0;
};

/// Head n, counted from 0, reads of a text of N tokens the hidden states of all but the last, in
/// order, that of token i beside token i + 1 + n. Those of which it has this token it reads: of
/// prompts at once, of others when a draft is wanted, or there is no room to keep more. Of the
/// others, n at most, it does what is drafted as if it were in the text, in a fork of the text's
/// sequence.
///
/// Of what the model found in its cache there are no hidden states: what the head made of the same
/// tokens before is found in its own, or else the sequence begins behind them. Where its cache has
/// no room for a text, it drafts nothing for it.
class MtpHead {
 public:
  /// What becomes of hidden states that are kept of a text.
  enum class Reading { none, all, with_logits };
  using ReadingOf = std::function<Reading(const SequenceGroup& group)>;

  /// number: of the predictor, counted from 0. source: the executor of the model, or of the head
  /// before, whose hidden states it reads; it must outlive this. limits: see make_predictor().
  MtpHead(Executor& source, size_t number, const RunnerLimits& limits, bool prefix_sharing);
  MtpHead(const MtpHead&) = delete;
  MtpHead& operator=(const MtpHead&) = delete;
  ~MtpHead() { forget_all(); }

  [[nodiscard]] Executor& executor() { return runner_.executor(); }
  /// The head that reads this one's hidden states, which has to live as long.
  void set_next(MtpHead& next);

  // As Drafter has them.

  /// The last step of the source was of these.
  void processed(std::span<const ProcessedTokens> tokens, int32_t most_texts);
  [[nodiscard]] bool follows(const SequenceGroup& group) const { return texts_.contains(&group); }
  [[nodiscard]] int32_t n_followed() const { return static_cast<int32_t>(texts_.size()); }
  [[nodiscard]] int32_t n_unread(const SequenceGroup& group) const;
  void forget(const SequenceGroup& group);
  void forget_all();

  /// Tokens that a draft's first pass reads: of all texts that it follows.
  [[nodiscard]] int32_t n_unread() const;

  // Each of these begins drafts, or has them go on by a pass, of which draw() is to draw, and takes
  // those away that there is no room for. Between them nothing may be processed.

  /// Of the first head.
  void begin(std::vector<MtpDraft*>& drafts);
  /// Of each other one, once: of drafts that the one before has drawn of.
  void take_over(std::vector<MtpDraft*>& drafts);
  /// Reads the token that each draft ends with, beside the hidden state that it was drawn of.
  void go_on(std::vector<MtpDraft*>& drafts);
  /// A token for each draft, from a pass of n_tokens that the stopwatch was started for; takes
  /// those away that have as many as are wanted.
  void draw(std::vector<MtpDraft*>& drafts, int32_t n_tokens, const Stopwatch& watch,
            DraftDraws& draws);
  /// Gives back what a draft of this head holds.
  void release(MtpDraft& draft);

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
  // Hidden states that a step of the source left: of tokens from n_known() to `end`.
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
  // What a pass is to read, beside hidden states.
  struct Pass {
    std::vector<NewTokens> inputs = {};
    std::vector<int32_t> rows = {};  // of hidden states
    std::vector<PageCopy> copies = {};
    int32_t n_tokens = 0;
    std::vector<ProcessedTokens> processed = {};  // of texts: what the next head is to know

    void add(const SequenceGroup& group, int32_t first, const NewTokens& input);
    void add(const NewTokens& input);
  };

  [[nodiscard]] std::span<const int32_t> tokens_beside(const SequenceGroup& group) const;
  std::vector<NewStates> new_states(std::span<const ProcessedTokens> tokens, int32_t most_texts);
  Text* text_of(const ProcessedTokens& tokens, int32_t most_texts);
  void begin_text(Text& text, const ProcessedTokens& tokens);
  void remember(const SequenceGroup& group, Text& text);
  void read_prompts(std::span<const NewStates> states);
  void keep(std::span<const NewStates> states);
  void read_kept(const ReadingOf& how);
  bool has_room_to_keep(int32_t n_rows);
  void keep_rows(std::span<const int32_t> rows, int32_t to);
  template <typename TakeStates>
  void run(const Pass& pass, TakeStates take_states);

  Runner runner_;
  Executor& predictor_;  // the runner's
  int32_t number_;
  bool prefix_sharing_;
  MtpHead* next_ = nullptr;
  bool reads_before_ = false;  // of its hidden states the head's before, not the model's
  std::map<const SequenceGroup*, Text> texts_;
  int32_t n_kept_ = 0;  // rows that hidden states are kept in, or were for texts that have gone
};

}  // namespace faststream
