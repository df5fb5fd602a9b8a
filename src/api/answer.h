// What an engine's answers are in JSON, as far as all forms have it in common.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "engine/request.h"
#include "text/tool_calls.h"

namespace faststream::api {

/// The text of tokens, without special ones.
using TokensText = std::function<std::string(std::span<const int32_t> tokens)>;

/// JSON without white space, in UTF-8 with U+FFFD for what is not; no newline.
std::string json_text(const nlohmann::ordered_json& value);
/// The same of a text: with its quotation marks.
std::string json_quoted(std::string_view text);

/// Rounded to six decimals, as log-probabilities and scores are written.
double six_decimals(double number);

/// A log-probability as JSON has it: null where there is none (NaN), and for that of the impossible
/// -9999, as OpenAI has it.
std::string logprob_json(float logprob);

/// Has a request's answers begin with its prompt, of which `text` is the text, and their
/// log-probabilities with those of the prompt's tokens, if there are any.
void begin_with_prompt(Result& result, std::string_view text);

/// An answer's text, and the calls of tools in it: where the conversation has tools and the text
/// has calls, they are not part of its content. `show_special`: as Request has it.
ParsedAnswer parse_answer(const Output& output, bool has_tools, bool show_special,
                          const TokensText& text_of);

/// Calls in OpenAI's form; their ids are `id` and their numbers.
nlohmann::ordered_json tool_calls_json(std::span<const ToolCall> calls, std::string_view id);

/// What of an answer with tools can be shown while it comes: text that may be part of a call, or
/// white space before one, is held back. Takes time linear in the answer.
class ToolCallFilter {
 public:
  /// Takes the next piece of the answer and returns what can be shown now.
  std::string push(std::string_view piece);
  /// What of the whole answer's content has not been shown.
  [[nodiscard]] std::string_view rest_of(std::string_view content) const;

 private:
  size_t find_hold();

  std::string text_;
  size_t shown_ = 0;      // bytes of text_
  size_t part_ = 0;       // where what calls may be in begins: behind the last thought
  size_t scanned_ = 0;    // up to where ends of thoughts were looked for
  bool holding_ = false;  // all from shown_ on, as it may be a call
};

}  // namespace faststream::api
