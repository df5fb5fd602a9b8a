#include "api/answer.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <limits>
#include <utility>

#include "api/openai_answer.h"
#include "api/response_answer.h"
#include "support/error.h"

namespace faststream::api {
namespace {

using nlohmann::ordered_json;

// What is shown of an answer that comes in pieces of so many bytes.
std::string shown(const std::string& answer, size_t bytes) {
  ToolCallFilter filter;
  std::string text;
  for (size_t at = 0; at < answer.size(); at += bytes)
    text += filter.push(answer.substr(at, bytes));
  return text;
}

// The same with what is left at the end.
std::string shown_in_all(const std::string& answer, size_t bytes) {
  ToolCallFilter filter;
  std::string text;
  for (size_t at = 0; at < answer.size(); at += bytes)
    text += filter.push(answer.substr(at, bytes));
  return text += filter.rest_of(parse_tool_calls(answer).content);
}

constexpr const char* kCall = R"(<tool_call>{"name":"add","arguments":{"a":1}}</tool_call>)";

TEST(ToolCallFilter, ShowsTextUpToACall) {
  for (const size_t bytes : {1U, 3U, 1000U}) {
    EXPECT_EQ(shown(std::string("I add.\n\n") + kCall, bytes), "I add.");
    EXPECT_EQ(shown(kCall, bytes), "");
    EXPECT_EQ(shown(R"({"name":"add","parameters":{}})", bytes), "");
    EXPECT_EQ(shown(R"(Well [TOOL_CALLS][{"name":"add","arguments":{}}])", bytes), "Well");
  }
}

TEST(ToolCallFilter, ShowsAllOfWhatTurnsOutToBeNone) {
  for (const std::string answer :
       {"One < two", "a <tool", "a <tool_call> b", "{ a }", "[1] A list", "  x  ", "<|python", "",
        "<think>[TOOL_CALLS] is no call</think>Yes.", "<think>{</think>\n\nYes <b>"}) {
    for (const size_t bytes : {1U, 3U, 1000U}) EXPECT_EQ(shown_in_all(answer, bytes), answer);
  }
}

TEST(ToolCallFilter, LooksForCallsBehindThoughts) {
  const std::string answer = std::string("<think>Shall I <tool_call>?</think>") + kCall;
  EXPECT_EQ(shown(answer, 4), "<think>Shall I <tool_call>?</think>");
  EXPECT_EQ(shown_in_all(answer, 4), "<think>Shall I <tool_call>?</think>");
}

TEST(OpenAiAnswer, IsTheSameWholeAndStreamed) {
  const TokenTexts texts = {.text_of = [](auto) { return std::string(); },
                            .bytes_of = [](int32_t) { return std::string("\xC3"); }};
  AnswerHead head{.id = "chatcmpl-1", .model = "m", .has_tools = true};
  Output output;
  output.text = std::string("Two.\n") + kCall;
  const auto whole = ordered_json::parse(make_answer_writer(head, texts)->whole({{output}}, {}));
  const ordered_json& choice = whole.at("choices").at(0);
  EXPECT_EQ(choice.at("finish_reason"), "tool_calls");
  EXPECT_EQ(choice.at("message").at("content"), "Two.");
  const ordered_json& call = choice.at("message").at("tool_calls").at(0);
  EXPECT_EQ(call.at("id"), "call_1_0_0");
  EXPECT_EQ(call.at("function").at("arguments"), R"({"a":1})");

  const auto writer = make_answer_writer(head, texts);
  std::string events = writer->begin() + writer->piece(0, "Two.\n<to", {});
  events += writer->finish(0, output);
  EXPECT_NE(events.find(R"("delta":{"content":"Two."})"), std::string::npos) << events;
  EXPECT_NE(events.find(R"("tool_calls":[{"index":0,"id":"call_1_0_0")"), std::string::npos);
  EXPECT_EQ(events.find("<to"), std::string::npos) << events;
}

TEST(OpenAiAnswer, SaysWhereTokensAreInTheText) {
  const std::vector<std::string> bytes = {"", " Zo", "\xC3", "\xAB", " x"};
  const TokenTexts texts = {.text_of = [](auto) { return std::string(); },
                            .bytes_of = [&](int32_t token) { return bytes.at(token); }};
  Result result;
  result.outputs.resize(1);
  result.outputs.front().text = " x";
  result.outputs.front().logprobs = {
      {.chosen = {4, -0.25F}, .top = {{1, -0.125F}, {0, -std::numeric_limits<float>::infinity()}}}};
  for (int32_t token = 0; token < 4; ++token) {
    result.prompt_logprobs.push_back({.chosen = {token, -static_cast<float>(token)}});
  }
  result.prompt_logprobs.front().chosen.logprob = std::numeric_limits<float>::quiet_NaN();
  begin_with_prompt(result, "Zo\xC3\xAB");
  AnswerHead head{.form = AnswerForm::completion, .id = "cmpl-1", .model = "m", .logprobs = true};
  const auto whole =
      ordered_json::parse(make_answer_writer(head, texts)->whole(result.outputs, {}));
  const ordered_json& choice = whole.at("choices").at(0);
  EXPECT_EQ(choice.at("text"), "Zo\xC3\xAB x");
  EXPECT_EQ(choice.at("logprobs"), ordered_json::parse(R"({
      "tokens":[""," Zo","\uFFFD","\uFFFD"," x"],"token_logprobs":[null,-1.0,-2.0,-3.0,-0.25],
      "top_logprobs":[null,null,null,null,{" Zo":-0.125,"":-9999.0," x":-0.25}],
      "text_offset":[0,0,2,3,4]})"));
}

TEST(ResponseBody, BecomesOneOfAChat) {
  const ordered_json chat = chat_body_of_response(ordered_json::parse(
      R"({"instructions":"Do.","input":[{"role":"user","content":[{"type":"input_text","text":"x"}]},
          {"type":"function_call","name":"f","arguments":"{}","call_id":"c"},
          {"type":"function_call_output","call_id":"c","output":"4"}],"max_output_tokens":5,
          "tools":[{"type":"function","name":"f","parameters":{},"strict":true}],"store":true})"));
  EXPECT_EQ(chat.at("max_output_tokens"), 5);
  const ordered_json& messages = chat.at("messages");
  ASSERT_EQ(messages.size(), 4U);
  EXPECT_EQ(messages[0].at("role"), "system");
  EXPECT_EQ(messages[1].at("content"), "x");
  EXPECT_EQ(messages[2].at("tool_calls").at(0).at("function").at("name"), "f");
  EXPECT_EQ(messages[3].at("role"), "tool");
  EXPECT_EQ(chat.at("tools").at(0).at("function").at("name"), "f");
  EXPECT_FALSE(chat.contains("store"));
}

TEST(ResponseBody, HasTheFormatOfItsTextAsChatsHaveIt) {
  const auto format_of = [](const std::string& format) {
    return chat_body_of_response(
               ordered_json::parse(R"({"input":"x","text":{"format":)" + format + "}}"))
        .at("response_format");
  };
  EXPECT_EQ(format_of(R"({"type":"json_object"})"), ordered_json({{"type", "json_object"}}));
  EXPECT_EQ(
      format_of(R"({"type":"json_schema","name":"b","schema":{"type":"boolean"}})"),
      ordered_json::parse(R"({"type":"json_schema","json_schema":{"schema":{"type":"boolean"}}})"));
  EXPECT_TRUE(format_of("null").is_null());
}

// By the names and places of its own members, not those of the chat that it becomes.
TEST(ResponseBody, NamesWhatIsNoText) {
  for (const auto& [input, name] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"({"role":"user","content":[{"type":"input_image"}]})", "input[1].content[0]"},
           {R"({"role":"user","content":[{"type":"input_text"}]})", "input[1].content[0].text"},
           {R"({"role":"user","content":null})", "input[1].content"},
           {R"({"role":"user","content":5})", "input[1].content"},
           {R"({"type":"function_call_output","output":null})", "input[1].output"},
           {R"({"type":"function_call_output","output":["x"]})", "input[1].output[0]"}}) {
    const auto body = ordered_json::parse(
        R"({"instructions":"Do.","input":[{"type":"reasoning"},)" + std::string(input) + "]}");
    try {
      (void)chat_body_of_response(body);
      ADD_FAILURE() << input;
    } catch (const Error& error) {
      EXPECT_TRUE(std::string_view(error.what()).starts_with('"' + std::string(name) + '"'))
          << error.what();
    }
  }
  EXPECT_THROW(
      (void)chat_body_of_response(ordered_json::parse(R"({"input":[{"type":"reasoning"}]})")),
      Error);
}

TEST(ResponseBody, NamesWhatIsNotSupported) {
  for (const char* body :
       {R"({"input":"x","previous_response_id":"r"})", R"({"input":"x","background":true})",
        R"({"input":"x","tools":[{"type":"web_search"}]})", R"({"input":[]})", R"({"input":5})",
        R"({"input":"x","text":{"format":{"type":"xml"}}})",
        R"({"input":"x","text":{"format":{"type":"json_schema"}}})", R"({"input":[{"type":"x"}]})",
        R"({"input":[{"role":"user"}]})", R"({"messages":[]})"}) {
    EXPECT_THROW((void)chat_body_of_response(ordered_json::parse(body)), Error) << body;
  }
}

}  // namespace
}  // namespace faststream::api
