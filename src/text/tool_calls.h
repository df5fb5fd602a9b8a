// Calls of tools: in what a model answered, and in messages.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace faststream {

class Tokenizer;

struct ToolCall {
  std::string name;
  std::string arguments;  ///< JSON, an object, as OpenAI's API has it
};

struct ParsedAnswer {
  std::string content;  ///< the text without the calls, and without white space around it then
  std::vector<ToolCall> tool_calls;
};

/// The special tokens of a vocabulary that stand around calls in the formats below. The text of an
/// answer keeps them, or nobody could tell a call that is not parsed from what else was said.
std::vector<int32_t> tool_call_marks(const Tokenizer& tokenizer);

/// Finds calls in the formats that are JSON between marks:
///  - Hermes and Qwen: <tool_call>{"name": ..., "arguments": {...}}</tool_call>, among other text;
///  - Llama 3: {"name": ..., "parameters": {...}} and nothing else, perhaps after <|python_tag|>,
///    several with ";" between them;
///  - Mistral: [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...], perhaps after other text.
/// Marks that may be special tokens, all but <tool_call>, may be missing. All else is text: what is
/// not such JSON, and what stands in <think> ... </think>. Only for conversations with tools, since
/// an answer without may be such JSON too. Takes time linear in the answer.
ParsedAnswer parse_tool_calls(std::string_view answer);

/// Whether a message, an object as OpenAI's API has it, makes calls: its member "tool_calls" is a
/// list of some.
bool has_tool_calls(const nlohmann::ordered_json& message);

}  // namespace faststream
