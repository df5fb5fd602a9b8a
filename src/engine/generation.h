// One sample in the making: its tokens, the rules of its next draw, and where it ends.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "backend/backend.h"
#include "engine/request.h"
#include "engine/runner.h"
#include "text/stop_matcher.h"
#include "text/tokenizer.h"

namespace faststream {

/// What all samples of a request have in common.
struct GenerationRules {
  std::vector<int32_t> prompt;
  SamplingParams sampling;  ///< with its seed
  int64_t max_tokens = -1;
  int64_t context = 0;  ///< tokens of prompt and answer together, at most
  bool ignore_eos = false;
  bool show_special = false;  ///< as Request has it
  std::vector<std::string> stop;
  std::vector<int32_t> stop_tokens;
  int32_t logprobs = -1;     ///< as Request has it; 0 at least when samples are compared
  bool strip_start = false;  ///< the text does without the whitespace that it begins with
};

class Generation {
 public:
  /// `sample`, its number in the request, is the stream of its random numbers. `rules` and
  /// `tokenizer` must outlive it.
  Generation(const GenerationRules& rules, const Tokenizer& tokenizer, int32_t sample);

  /// The prompt and what has been generated.
  [[nodiscard]] const std::vector<int32_t>& tokens() const { return tokens_; }
  [[nodiscard]] const GenerationRules& rules() const { return *rules_; }
  [[nodiscard]] int32_t sample() const { return sample_; }

  /// How the next token is drawn. Its edits are valid until the next accept().
  [[nodiscard]] SamplingRow sampling_row() const;

  /// Takes a drawn token, which may finish the text. Returns what can be printed now; valid until
  /// the next call.
  std::string_view accept(SampledToken&& sampled);

  /// Ends the text; nothing if it has ended.
  void finish(FinishReason reason);
  [[nodiscard]] bool finished() const { return finished_; }

  /// What was generated; to be moved from once finished.
  Output& output() { return output_; }

  Sequence sequence;  ///< the tokens whose keys and values are in the KV cache

 private:
  void emit(std::string_view text);
  void append(std::string_view text);
  void count(int32_t token);
  [[nodiscard]] bool ends_text(int32_t token) const;

  const GenerationRules* rules_;
  int32_t sample_;
  const Tokenizer* tokenizer_;
  std::vector<int32_t> tokens_;
  Detokenizer detokenizer_;
  StopMatcher stop_;
  Output output_;
  size_t printed_ = 0;  // of output_.text, before the last accept()
  double sum_logprob_ = 0;
  bool finished_ = false;

  struct Use {
    size_t edit = 0;    // index in edits_
    int32_t count = 0;  // in the answer
    float bias = 0;     // logit bias
  };
  std::unordered_map<int32_t, Use> uses_;  // tokens that have an edit
  std::vector<LogitEdit> edits_;
};

}  // namespace faststream
