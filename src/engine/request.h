// What an engine is asked for, and what it gives back.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/beam_params.h"
#include "engine/sampling.h"
#include "text/message.h"

namespace faststream {

using RequestId = uint64_t;

/// What to continue, or, with a model that has an encoder, what to answer to: token ids as they
/// are, a text (the tokenizer adds its begin-of-sequence token), or a conversation (written by the
/// model's chat template).
using Prompt = std::variant<std::vector<int32_t>, std::string, ChatPrompt>;

/// What the text of an answer must be, byte by byte (docs/output-rules.md). The text is without
/// special tokens, and ends where the rule lets it: the model chooses, unless nothing can follow.
struct OutputRule {
  enum class Kind {
    json_schema,  ///< `text` is a schema (2020-12); members come in the schema's order
    json_object,  ///< any JSON object; `text` is empty
    regex,        ///< the whole answer matches `text` (ECMA-262)
    grammar,      ///< `text` is a GBNF grammar, as llama.cpp has them, or Lark, as llguidance does
  };
  Kind kind = Kind::json_object;
  std::string text;
  std::string name = {};  ///< what errors begin with: where the user gave it; may be empty
};

struct Request {
  Prompt prompt;
  int64_t max_tokens = -1;  ///< of each sample; -1: until the model ends or the context is full
  int64_t min_tokens = 0;   ///< no token ends a sample before; a stop string does
  SamplingParams sampling = {};
  /// More than one beam: a beam search in place of samples. Of `sampling`, penalties, biases and
  /// no_repeat_ngram matter then, which act on log-probabilities.
  BeamParams search = {};
  /// Of a model that translates (docs/translation.md): the prompt's language and the answer's, by
  /// the names that the model has for them; none: its own defaults.
  std::optional<std::string> source_language = {};
  std::optional<std::string> target_language = {};
  /// By name, of EngineInfo::adapters; none: the first, if there are some; "": the model without.
  std::optional<std::string> adapter = {};
  bool ignore_eos = false;  ///< go on after an end-of-sequence token
  /// The text has special tokens' spellings, the last one's included. Else those of
  /// tool_call_marks() (text/tool_calls.h) alone, in conversations with tools.
  bool show_special = false;
  bool parse_special = false;  ///< spellings of special tokens in the prompt become those tokens
  std::vector<std::string> stop = {};     ///< texts that end an answer; they are not part of it
  std::vector<int32_t> stop_tokens = {};  ///< tokens that end an answer, besides the model's own
  /// Not with a beam search, no_repeat_ngram, or a model that has an encoder.
  std::optional<OutputRule> rule = {};
  /// How tokens are proposed (EngineOptions::speculate), of an engine that proposes some: "off",
  /// "lookup", or what it was started with, "mtp" or "draft"; "": as it was started.
  std::string speculate = {};
  int32_t n = 1;        ///< samples to return, at most 128; of a beam search: of its texts the best
  int32_t best_of = 0;  ///< samples to draw, of which the n likeliest are returned; 0: n
  int32_t logprobs = -1;  ///< -1: none; 0: of the chosen tokens; up to 20: also of the likeliest
  /// The same of the prompt's tokens, which the model is then asked for in steps of their own,
  /// beside no other request's. Not with a model that has an encoder.
  int32_t prompt_logprobs = -1;
  int32_t priority = 0;  ///< larger goes first; among equals, first come, first served
};

/// Throws UsageError when a member is out of range. vocab: the model's; prompt_vocab: of prompts.
void validate(const Request& request, int64_t vocab, int64_t prompt_vocab);

enum class FinishReason {
  eos,          ///< the model ended its text (an end-of-sequence token), or its rule did
  stop_string,  ///< one of the stop strings came up
  stop_token,   ///< one of the stop tokens did
  length,       ///< max_tokens were generated
  context,      ///< prompt and answer fill the context
  cancelled,    ///< cancel(), or the engine was destroyed
};
/// "eos", "stop" (of a string or a token), "length", "context" or "cancelled".
std::string_view finish_reason_name(FinishReason reason);

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;  ///< natural logarithm
};

/// One token's log-probabilities, as the model gave them before penalties and temperature.
struct PositionLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top = {};  ///< the likeliest tokens, descending
};

/// One sample of a request, or one of a beam search's best texts.
struct Output {
  /// Whole UTF-8 characters. An answer to a conversation is without the whitespace that it begins
  /// with: many chat formats put a space there, which is for the model alone.
  std::string text;
  std::vector<int32_t> tokens;  ///< generated, the token that ended the text included
  FinishReason finish_reason = FinishReason::length;
  std::string stop;                        ///< which stop string came up
  double mean_logprob = 0;                 ///< of the tokens; if logprobs >= 0 or best_of > n
  double score = 0;                        ///< of a beam search; see BeamParams
  std::vector<PositionLogprobs> logprobs;  ///< one a token; if logprobs >= 0
};

struct Result {
  /// n, or fewer when cancelled; by likelihood if best_of > n, by score after a beam search, which
  /// may have found fewer.
  std::vector<Output> outputs;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  ///< of the prompt, found in the KV cache by the first sample
  /// One a token of the prompt, if Request::prompt_logprobs >= 0. Before the first there is nothing
  /// that it could follow: its own is NaN.
  std::vector<PositionLogprobs> prompt_logprobs = {};
  uint64_t seed = 0;              ///< as given or drawn
  double queue_seconds = 0;       ///< from submit() to the first step
  double prompt_seconds = 0;      ///< from submit() to the first token
  double generation_seconds = 0;  ///< from the first token to the last
};

/// A piece of a sample's text as it is generated; of a beam search, which is sample 0, of its best
/// text: what all texts that can become it agree on.
struct Delta {
  int32_t sample = 0;     ///< 0 to best_of - 1
  int32_t token = 0;      ///< the newest token, of a beam search the best beam's; of the tokens
                          ///< of a step, which may be several, the last
  std::string_view text;  ///< what can be printed now: whole characters, perhaps none
  /// Of a sample's tokens so far, one a token, if logprobs >= 0; none of a beam search.
  std::span<const PositionLogprobs> logprobs = {};
};

/// How far the processing of a prompt has come.
struct PromptProgress {
  int64_t done = 0;   ///< tokens that are processed, or were found in the KV cache
  int64_t total = 0;  ///< tokens of the prompt
};

/// Called by the engine's own thread: be quick, and do not destroy the engine; calls of submit()
/// and cancel() are fine. on_finish must not throw; what the others throw ends their request, with
/// the exception's text as its error. Each may be empty.
struct Callbacks {
  /// After each step that left a part of the (first sample's) prompt for the next one, so never for
  /// a short prompt.
  std::function<void(const PromptProgress&)> on_prompt = {};
  std::function<void(const Delta&)> on_delta = {};
  /// Once a request, last. `error` is empty, or why the request failed (the device, usually).
  std::function<void(Result result, const std::string& error)> on_finish = {};
};

}  // namespace faststream
