#include "text/tool_calls.h"

#include <gtest/gtest.h>

#include <string>

namespace faststream {
namespace {

// "content|name arguments|name arguments"
std::string parsed(std::string_view answer) {
  const ParsedAnswer result = parse_tool_calls(answer);
  std::string text = result.content;
  for (const ToolCall& call : result.tool_calls) text += "|" + call.name + " " + call.arguments;
  return text;
}

TEST(ToolCalls, AreBetweenTagsInHermesAndQwen) {
  EXPECT_EQ(parsed("Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"z\": 1, \"a\": "
                   "\"\xC3\xA9\"}}\n</tool_call>\n<tool_call>{\"arguments\": {}, \"name\": "
                   "\"g\"}</tool_call>"),
            "Let me see.|f {\"z\":1,\"a\":\"\xC3\xA9\"}|g {}");
  EXPECT_EQ(parsed("<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": \"</tool\"}}"),
            "|f {\"x\":\"</tool\"}");
}

TEST(ToolCalls, AreTheWholeAnswerInLlama3) {
  EXPECT_EQ(parsed(R"({"name": "f", "parameters": {"x": "}"}})"), R"(|f {"x":"}"})");
  EXPECT_EQ(parsed(R"(<|python_tag|>{"type": "function", "name": "f", "parameters": {}};)"
                   R"( {"name": "g", "parameters": {"y": [1]}} )"),
            R"(|f {}|g {"y":[1]})");
}

TEST(ToolCalls, AreAListInMistral) {
  EXPECT_EQ(parsed(R"([TOOL_CALLS] [{"name": "f", "arguments": {"x": null}, "id": "1"}])"),
            R"(|f {"x":null})");
  EXPECT_EQ(parsed(R"([{"name": "f", "arguments": "{\"x\": 1}"}, {"name": "g", "arguments": {}}])"),
            R"(|f {"x":1}|g {})");
  EXPECT_EQ(parsed(R"(Sure.[TOOL_CALLS][{"name": "f", "arguments": {}}])"), "Sure.|f {}");
}

TEST(ToolCalls, FollowThoughtsThatStay) {
  EXPECT_EQ(parsed("<think>\n<tool_call>no</tool_call>\n</think>\n\n<tool_call>{\"name\": \"f\", "
                   "\"arguments\": {}}</tool_call>"),
            "<think>\n<tool_call>no</tool_call>\n</think>|f {}");
}

TEST(ToolCalls, AreTextWhereTheyAreOfAnotherForm) {
  for (const char* answer :
       {"", " It is 42.\n", "{}", "[]", "{\"name\": \"f\"}", "[1]", "<tool_call>",
        "<tool_call>f(1)</tool_call>", "<tool_call>{\"name\": 1, \"arguments\": {}}</tool_call>",
        "{\"name\": \"f\", \"parameters\": {}} and more", "{\"name\": \"f\", \"parameters\": 1}",
        "<|python_tag|>print(1)", "[TOOL_CALLS]f[ARGS]{}", "{\"name\": \"f\", \"parameters\": {}",
        "<function=f>{\"x\": 1}</function>", "}", "{\"a\\", "[{\"name\": \"f\"}]",
        "{\"name\": \"f\", \"arguments\": \"no\"}"}) {
    EXPECT_EQ(parsed(answer), answer);
  }
}

}  // namespace
}  // namespace faststream
