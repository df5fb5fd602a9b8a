// A text in the making: its tokens, the rules of its next token, and where it ends.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "engine/acceptance_rate.h"
#include "engine/lookup_proposer.h"
#include "engine/request.h"
#include "engine/sequence_group.h"
#include "text/rules/output_rule.h"
#include "text/stop_matcher.h"
#include "text/tokenizer.h"

namespace faststream {

/// What all samples or beams of a request have in common.
struct GenerationRules {
  std::vector<int32_t> source;  ///< where the model has an encoder; the prompt begins the answer
  std::vector<int32_t> prompt;
  int32_t adapter = 0;      ///< counted from 1, as TextKind has it; 0: none
  SamplingParams sampling;  ///< with its seed
  BeamParams search;
  int32_t n_best = 1;  ///< texts that a beam search returns
  int64_t max_tokens = -1;
  int64_t min_tokens = 0;
  int64_t context = 0;  ///< tokens of prompt and answer together, at most
  bool ignore_eos = false;
  ShownSpecial shown;  ///< in the texts
  std::vector<std::string> stop;
  std::vector<int32_t> stop_tokens;         ///< the request's
  std::vector<int32_t> end_tokens;          ///< a chat template's, besides the model's own
  std::optional<int32_t> first;             ///< see AnswerRules
  std::optional<int32_t> last;              ///< likewise
  std::vector<std::vector<int32_t>> never;  ///< likewise
  bool renormalizes = false;                ///< likewise
  int32_t logprobs = -1;         ///< as Request has it; 0 at least when samples are compared
  int32_t prompt_logprobs = -1;  ///< as Request has it
  std::shared_ptr<const rules::CompiledRule> rule = {};  ///< of the text; null: any
  bool strip_start = false;  ///< the text does without the whitespace that it begins with

  /// The tokens of what the user asked.
  [[nodiscard]] const std::vector<int32_t>& asked() const {
    return source.empty() ? prompt : source;
  }
  /// The most tokens that an answer can have.
  [[nodiscard]] int64_t max_new_tokens() const {
    const int64_t room = context - static_cast<int64_t>(prompt.size());
    return max_tokens < 0 ? room : std::min(room, max_tokens);
  }
};

/// The tokens that end a text by these rules.
std::vector<int32_t> ending_tokens(const GenerationRules& rules, const Tokenizer& tokenizer);

/// One sample's text, or one beam's. A copy goes on by itself.
class Generation {
 public:
  /// `sample`, its number in the request, is the stream of its random numbers. `rules` and
  /// `tokenizer` must outlive it.
  Generation(const GenerationRules& rules, const Tokenizer& tokenizer, int32_t sample);

  /// The prompt and what has been generated.
  [[nodiscard]] const std::vector<int32_t>& tokens() const { return tokens_; }
  [[nodiscard]] const GenerationRules& rules() const { return *rules_; }
  [[nodiscard]] int32_t sample() const { return sample_; }

  /// How the next token is drawn. Its edits and mask are valid until the next accept(). Throws
  /// Error where no token fits the rule.
  [[nodiscard]] SamplingRow sampling_row() const;
  /// How the token after these is drawn, which come next; for at most tokens_ahead() of them, of
  /// which a rule of output allows each. Valid likewise.
  [[nodiscard]] SamplingRow sampling_row_after(std::span<const int32_t> ahead) const;
  /// How the token after the next n is drawn, whatever these are; nothing where it depends on them,
  /// or there is no room for it. Valid likewise.
  [[nodiscard]] std::optional<SamplingRow> sampling_row_ahead(int32_t n) const;
  /// How many tokens can come next before one of which it is known how it is drawn. None where that
  /// depends on more than which they are: with sequences that may not come again.
  [[nodiscard]] int64_t tokens_ahead() const;
  /// The first of these tokens, those that the rule of output allows one after the other.
  [[nodiscard]] std::span<const int32_t> fitting(std::span<const int32_t> ahead) const;
  /// Tokens that are nearly certain to come next by the rule of output, at most `most`.
  [[nodiscard]] std::vector<int32_t> forced_tokens(int64_t most) const;
  /// The logarithm of a token's probability from what the edits of sampling_row() made of it, and
  /// renormalizing added.
  [[nodiscard]] float unedited(LogProbability edited, float renormalization) const;
  /// Whether the next token, whatever it is, is the last that there is room for.
  [[nodiscard]] bool is_nearly_full() const;
  /// What the next token is by the rules, whatever is drawn.
  [[nodiscard]] std::optional<int32_t> forced_token() const;
  /// Whether this token would end the text, be there room or not.
  [[nodiscard]] bool ends_with(int32_t token) const;

  /// Takes a drawn token, which may finish the text.
  void accept(SampledToken&& sampled);
  /// Makes text of the tokens since the last call: where stop strings may end it, accept() has done
  /// so already. Returns what can be printed since then; valid until the next accept() or finish().
  std::string_view write();

  /// Ends the text; nothing if it has ended.
  void finish(FinishReason reason);
  [[nodiscard]] bool finished() const { return finished_; }

  /// What was generated; to be moved from once finished.
  Output& output() { return output_; }
  [[nodiscard]] const Output& output() const { return output_; }

 private:
  void write_tokens();
  void emit(std::string_view text);
  void close();
  void end(FinishReason reason);
  void append(std::string_view text);
  void count(int32_t token);
  void penalize(LogitEdit& edit, float bias, int32_t count) const;
  void forbid();
  void follow_rule(int32_t token);
  void make_mask(const rules::RuleMatcher& matcher, bool is_first,
                 std::vector<uint32_t>& mask) const;
  [[nodiscard]] std::span<const uint32_t> mask_after(std::span<const int32_t> ahead) const;
  [[nodiscard]] bool is_end(int32_t token) const;
  // Whether it would be the model's end, not a stop token of the request.
  [[nodiscard]] bool is_own_end(int32_t token) const;

  const GenerationRules* rules_;
  int32_t sample_;
  const Tokenizer* tokenizer_;
  std::vector<int32_t> tokens_;
  Detokenizer detokenizer_;
  StopMatcher stop_;
  Output output_;
  size_t n_written_ = 0;  // tokens of output_ of which text was made
  size_t n_printed_ = 0;  // bytes of output_.text
  double sum_logprob_ = 0;
  bool finished_ = false;

  struct Use {
    size_t edit = 0;    // index in edits_
    int32_t count = 0;  // in the answer
    float bias = 0;     // logit bias
  };
  std::unordered_map<int32_t, Use> uses_;  // tokens that have an edit
  std::vector<LogitEdit> edits_;
  std::optional<rules::RuleMatcher> matcher_;  // where the text has a rule
  // Of the next token, made when that is to be drawn; or empty.
  mutable std::vector<uint32_t> mask_;
  std::vector<LogitEdit> row_edits_;  // with tokens that may not come next, if there are any
  mutable std::vector<std::vector<LogitEdit>> edits_ahead_;  // after 1, 2, ... tokens more
  mutable std::vector<std::vector<uint32_t>> masks_ahead_;   // likewise
};

/// A sample: a group of one sequence.
class SampleGroup final : public SequenceGroup {
 public:
  /// As Generation has it.
  SampleGroup(const GenerationRules& rules, const Tokenizer& tokenizer, int32_t sample,
              Speculation::Kind speculation = Speculation::Kind::off);

  [[nodiscard]] int32_t width() const override { return 1; }
  [[nodiscard]] size_t n_sequences() const override { return 1; }
  [[nodiscard]] const std::vector<int32_t>& tokens(size_t /*i*/) const override {
    return text_.tokens();
  }
  [[nodiscard]] std::span<const int32_t> source() const override { return text_.rules().source; }
  [[nodiscard]] int32_t adapter() const override { return text_.rules().adapter; }
  [[nodiscard]] SamplingRow sampling_row(size_t /*i*/) const override {
    return text_.sampling_row();
  }
  [[nodiscard]] bool has_masks() const override { return text_.rules().rule != nullptr; }
  [[nodiscard]] ProposalOffer offer(CommonRates& common) override;
  [[nodiscard]] ProposalOffer offer_ahead(CommonRates& common) override;
  bool propose(int32_t n) override;
  void suppose(std::span<const int32_t> tokens) override;
  [[nodiscard]] std::span<const int32_t> proposed() const override { return proposed_; }
  [[nodiscard]] SamplingRow sampling_row_after(std::span<const int32_t> proposed) const override {
    return text_.sampling_row_after(proposed);
  }
  [[nodiscard]] bool ends_with_next() const override { return text_.is_nearly_full(); }
  [[nodiscard]] std::optional<SamplingRow> sampling_row_ahead(int32_t n) const override {
    return text_.sampling_row_ahead(n);
  }
  std::span<const int32_t> accept(std::span<SampledToken> sampled) override;
  std::string_view write() override { return text_.write(); }
  [[nodiscard]] int32_t newest_token() const override { return text_.tokens().back(); }
  [[nodiscard]] std::span<const PositionLogprobs> logprobs() const override {
    return text_.output().logprobs;
  }
  void finish(FinishReason reason) override { text_.finish(reason); }
  [[nodiscard]] bool finished() const override { return text_.finished(); }
  std::vector<Output> take_outputs() override;

 private:
  void note(CommonRates& common);

  Generation text_;
  Speculation::Kind speculation_;
  std::optional<LookupProposer> lookup_;
  TextRate forced_rate_;
  TextRate draft_rate_;
  std::vector<int32_t> forced_;  // by the rule of output, of what was offered last
  std::vector<int32_t> proposed_;
  size_t n_tried_ = 0;    // of them, since the last offer
  size_t n_fitting_ = 0;  // of these
};

}  // namespace faststream
