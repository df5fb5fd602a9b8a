#include "text/generic_tools.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "support/error.h"
#include "support/json.h"
#include "text/chat_variables.h"
#include "text/tool_calls.h"

namespace faststream {
namespace {

using nlohmann::ordered_json;

bool is_result(const Message& message) {
  return message.role == "tool" || message.role == "function";
}

std::string dump(const ordered_json& json) {
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

// A function or a call of one, which may be in the member "function".
const ordered_json& function_of(const ordered_json& tool) {
  const bool is_wrapped = tool.is_object() && tool.contains("function");
  return is_wrapped ? tool.at("function") : tool;
}

void add_paragraph(std::string& text, const std::string& paragraph) {
  if (!text.empty()) text += "\n\n";
  text += paragraph;
}

std::string description_of(const ordered_json& tools) {
  std::string text = "You can call these functions:\n";
  for (const ordered_json& tool : tools) text += dump(function_of(tool)) + "\n";
  return text +
         "\nTo call one, write its name and its arguments as JSON between these marks, once for "
         "each call, and nothing after that:\n"
         "<tool_call>\n{\"name\": \"NAME\", \"arguments\": {}}\n</tool_call>\n"
         "What the functions give comes in the next message. If none of them helps, answer without "
         "a call.";
}

// The arguments as an object where they are the text of one.
ordered_json arguments_of(const ordered_json& function) {
  const auto arguments = function.find("arguments");
  if (arguments == function.end()) return ordered_json::object();
  if (!arguments->is_string()) return *arguments;
  try {
    return parse_ordered_json(arguments->get_ref<const std::string&>(), "");
  } catch (const Error&) {  // some other text
    return *arguments;
  }
}

std::string text_of_call(const ordered_json& call) {
  const ordered_json& function = function_of(call);
  if (!function.is_object()) return "<tool_call>\n" + dump(function) + "\n</tool_call>";
  const ordered_json written = {{"name", function.value("name", ordered_json())},
                                {"arguments", arguments_of(function)}};
  return "<tool_call>\n" + dump(written) + "\n</tool_call>";
}

// A message's text, also where it is in parts.
std::string content_of(const Message& message, const ordered_json& members) {
  const auto content = members.find("content");
  if (content == members.end()) return message.content;
  if (content->is_string()) return content->get<std::string>();
  std::string text;
  for (const ordered_json& part : *content) {
    const bool has_text = part.is_object() && part.contains("text") && part.at("text").is_string();
    if (has_text) text += part.at("text").get_ref<const std::string&>();
  }
  return text;
}

// An assistant's message with its calls in the text.
Message with_calls_as_text(const Message& message, ordered_json members) {
  Message said{.role = message.role, .content = content_of(message, members)};
  for (const ordered_json& call : members.at("tool_calls")) {
    add_paragraph(said.content, text_of_call(call));
  }
  members.erase("tool_calls");
  members.erase("content");
  if (!members.empty()) said.more = dump(members);
  return said;
}

void describe(const ordered_json& tools, std::vector<Message>& messages) {
  const std::string description = description_of(tools);
  const auto is_system = [](const Message& message) {
    return message.role == "system" || message.role == "developer";
  };
  if (const auto system = std::ranges::find_if(messages, is_system); system != messages.end()) {
    return add_paragraph(system->content, description);
  }
  // Some templates take no system message.
  const auto user = std::ranges::find(messages, "user", &Message::role);
  if (user != messages.end()) {
    user->content = description + "\n\n" + user->content;
  } else {
    messages.insert(messages.begin(), {.role = "system", .content = description});
  }
}

}  // namespace

bool speaks_of_tools(const ChatPrompt& prompt) {
  if (!prompt.tools.empty()) return true;
  for (size_t i = 0; i < prompt.messages.size(); ++i) {
    if (is_result(prompt.messages[i]) || has_tool_calls(further_members(prompt, i))) return true;
  }
  return false;
}

ChatPrompt with_tools_as_text(const ChatPrompt& prompt) {
  ChatPrompt told = prompt;
  told.tools.clear();
  told.messages.clear();
  bool after_result = false;
  for (size_t i = 0; i < prompt.messages.size(); ++i) {
    const Message& message = prompt.messages[i];
    ordered_json members = further_members(prompt, i);
    const bool follows_result = std::exchange(after_result, is_result(message));
    if (after_result) {
      if (!follows_result) told.messages.push_back({.role = "user", .content = ""});
      add_paragraph(told.messages.back().content,
                    "<tool_response>\n" + content_of(message, members) + "\n</tool_response>");
    } else if (has_tool_calls(members)) {
      told.messages.push_back(with_calls_as_text(message, std::move(members)));
    } else {
      told.messages.push_back(message);
    }
  }
  if (!prompt.tools.empty()) describe(list_of_tools(prompt), told.messages);
  return told;
}

}  // namespace faststream
