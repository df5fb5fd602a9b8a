// Calls of tools in what a model answered.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace faststream {

struct ToolCall {
  std::string name;
  std::string arguments;  ///< JSON, an object, as OpenAI's API has it
};

struct ParsedAnswer {
  std::string content;  ///< the text without the calls, and without white space around it then
  std::vector<ToolCall> tool_calls;
};

/// Finds calls in the formats that are JSON between marks:
///  - Hermes and Qwen: <tool_call>{"name": ..., "arguments": {...}}</tool_call>, among other text;
///  - Llama 3: {"name": ..., "parameters": {...}} and nothing else, perhaps after <|python_tag|>,
///    several with ";" between them;
///  - Mistral: [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...], perhaps after other text.
/// Marks that are special tokens may be missing, as they are not printed. All else is text: what is
/// not such JSON, and what stands in <think> ... </think>. Only for conversations with tools, since
/// an answer without may be such JSON too. Takes time linear in the answer.
ParsedAnswer parse_tool_calls(std::string_view answer);

}  // namespace faststream
