// A batch's results: a line of JSON for each line of the input.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "api/answer.h"
#include "engine/request.h"

namespace faststream::cli {

/// What a record says of the line that it answers.
struct RecordHead {
  nlohmann::json id;
  uint64_t line = 0;           ///< from 1
  std::string line_hash = {};  ///< line_hash() of its text
  int32_t n = 1;               ///< samples asked for
  bool scores = false;         ///< texts have one, being of a beam search
  bool logprobs = false;       ///< asked for
  bool has_tools = false;      ///< the conversation: answers may call them
  bool show_special = false;   ///< texts have special tokens' spellings
};

/// XXH3-64 of a line's text in 16 hexadecimal digits, by which a resumed run sees that a line is
/// another one now.
std::string line_hash(std::string_view text);

using api::TokensText;

/// {"id", "line", "line_hash", "text", "finish_reason", "prompt_tokens", "completion_tokens",
/// "seed"}, with "choices", a list of {"text", "finish_reason", "completion_tokens"}, in place of
/// "text" and "finish_reason" when n > 1. With scores, "score" after "finish_reason", of six
/// decimals. With logprobs, beside each text, "logprobs": a list of
/// {"token", "text", "logprob", "top": [{"token", "text", "logprob"}, ...]}, six decimals each;
/// Calls of tools (text/tool_calls.h) are in "tool_calls" beside the text, not in it.
/// `text_of` gives the text of tokens, without special ones. UTF-8, with U+FFFD for what is not; no
/// newline, inside or at the end.
std::string result_record(const RecordHead& head, const Result& result, const TokensText& text_of);

/// {"id", "line", "line_hash", "error"}.
std::string error_record(const RecordHead& head, const std::string& error);

}  // namespace faststream::cli
