#include "text/chat_variables.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "support/error.h"
#include "support/json.h"
#include "text/jinja/from_json.h"

namespace faststream {
namespace {

using jinja::Dict;
using jinja::Origin;
using jinja::Text;
using jinja::Value;
using nlohmann::ordered_json;

ordered_json parse(const std::string& text, const std::string& what) {
  try {
    return parse_ordered_json(text, what, "correct it");
  } catch (const UsageError&) {
    throw;
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
}

ordered_json parse_object(const std::string& text, const std::string& what) {
  ordered_json object = parse(text, what);
  if (!object.is_object()) throw UsageError(what + " are not a JSON object; give one");
  return object;
}

// None for no text.
ordered_json parse_list(const std::string& text, const std::string& what) {
  if (text.empty()) return nullptr;
  ordered_json list = parse(text, what);
  if (!list.is_array()) throw UsageError(what + " are not a JSON list; give one");
  return list;
}

// Templates put some roles into the spelling of special tokens, '<|' + message.role + '|>', so
// these count as the template's own; others could be chosen to spell another token.
Origin role_origin(const std::string& role) {
  constexpr std::array<std::string_view, 8> kKnown = {"system", "user",     "assistant", "tool",
                                                      "model",  "function", "developer", "ipython"};
  return std::find(kKnown.begin(), kKnown.end(), role) != kKnown.end() ? jinja::kFromTemplate
                                                                       : jinja::kFromUser;
}

Value text_key(std::string_view name) { return Value(Text(std::string(name), jinja::kFromUser)); }

Value with_mark(const Value& content) {
  Text marked = *content.text();
  marked.append(kMarkText, kContinuationMark);
  return Value(std::move(marked));
}

// The content of the message that is to be continued: a text, or parts of which the last with a
// text is continued.
Value marked(const Value* content) {
  if (content != nullptr && content->is_text()) return with_mark(*content);
  if (content == nullptr || content->list() == nullptr) {
    throw UsageError("the last message has no content to be continued");
  }
  std::vector<Value> parts = content->list()->items;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    const Value* text = part->dict() == nullptr ? nullptr : part->dict()->find("text");
    if (text == nullptr || !text->is_text()) continue;
    Dict changed = *part->dict();
    changed.set(text_key("text"), with_mark(*text));
    *part = Value(std::move(changed));
    return Value(jinja::List(std::move(parts)));
  }
  throw UsageError("the last message has no text to be continued");
}

// Older names of a message's reasoning, the newest first.
constexpr std::array<std::string_view, 3> kReasoning = {"reasoning_content", "thinking",
                                                        "reasoning"};

// Calls use(arguments, object) for the arguments of each call that are the text of an object.
template <typename Use>
void for_each_text_arguments(ordered_json& members, Use&& use) {
  const auto calls = members.find("tool_calls");
  if (calls == members.end() || !calls->is_array()) return;
  for (ordered_json& call : *calls) {
    if (!call.is_object()) continue;
    const auto function = call.find("function");
    ordered_json& called = function != call.end() && function->is_object() ? *function : call;
    const auto arguments = called.find("arguments");
    if (arguments == called.end() || !arguments->is_string()) continue;
    try {
      ordered_json object = parse_ordered_json(arguments->get_ref<const std::string&>(), "");
      if (object.is_object()) use(*arguments, std::move(object));
    } catch (const Error&) {  // some other text
    }
  }
}

Dict message_value(const ChatPrompt& prompt, size_t index, TextArguments arguments) {
  const Message& message = prompt.messages[index];
  Dict value;
  const Origin content_origin =
      message.tokens.empty() ? jinja::kFromUser : kFirstAnswer + static_cast<Origin>(index);
  ordered_json more = further_members(prompt, index);
  if (arguments == TextArguments::become_objects) {
    for_each_text_arguments(
        more, [](ordered_json& text, ordered_json object) { text = std::move(object); });
  }
  const Value* reasoning = nullptr;
  Dict others;
  for (const auto& [name, member] : more.items()) {
    if (!member.is_null()) {
      others.set(text_key(name), jinja::from_json(member, jinja::kFromUser));
    }
  }
  for (const std::string_view name : kReasoning) {
    if (reasoning == nullptr) reasoning = others.find(name);
  }
  if (reasoning != nullptr) value.set(text_key("thinking"), *reasoning);
  value.set(text_key("role"), Value(Text(message.role, role_origin(message.role))));
  if (!more.contains("content")) {
    value.set(text_key("content"), Value(Text(message.content, content_origin)));
  }
  for (const auto& [name, member] : others.entries()) value.set(name, member);
  if (reasoning != nullptr) value.set(text_key("reasoning_content"), *reasoning);
  return value;
}

}  // namespace

ordered_json further_members(const ChatPrompt& prompt, size_t i) {
  const std::string& more = prompt.messages[i].more;
  if (more.empty()) return ordered_json::object();
  return parse_object(more, "the members of message " + std::to_string(i + 1));
}

ordered_json list_of_tools(const ChatPrompt& prompt) {
  return parse_list(prompt.tools, "the tools");
}

bool is_own_variable(std::string_view name) {
  constexpr std::array<std::string_view, 4> kOwn = {"messages", "tools", "documents",
                                                    "add_generation_prompt"};
  return std::find(kOwn.begin(), kOwn.end(), name) != kOwn.end();
}

std::vector<std::string> text_arguments(const ChatPrompt& prompt) {
  std::vector<std::string> texts;
  for (size_t i = 0; i < prompt.messages.size(); ++i) {
    ordered_json more = further_members(prompt, i);
    for_each_text_arguments(more, [&](const ordered_json& text, const ordered_json& /*object*/) {
      texts.push_back(text.get<std::string>());
    });
  }
  return texts;
}

Dict chat_variables(const ChatPrompt& prompt, TextArguments arguments) {
  if (prompt.messages.empty()) throw UsageError("the conversation has no messages");
  std::vector<Value> messages;
  for (size_t i = 0; i < prompt.messages.size(); ++i) {
    Dict message = message_value(prompt, i, arguments);
    if (prompt.continue_final_message && i + 1 == prompt.messages.size()) {
      message.set(text_key("content"), marked(message.find("content")));
    }
    messages.emplace_back(std::move(message));
  }
  Dict variables;
  if (!prompt.variables.empty()) {
    const ordered_json given = parse_object(prompt.variables, "the template's variables");
    for (const auto& [name, value] : given.items()) {
      if (is_own_variable(name)) {
        throw UsageError("the template's variables have \"" + name +
                         "\", which is set from the conversation; leave it out");
      }
      variables.set(text_key(name), jinja::from_json(value, jinja::kFromUser));
    }
  }
  variables.set(text_key("messages"), Value(jinja::List(std::move(messages))));
  variables.set(text_key("tools"), jinja::from_json(list_of_tools(prompt), jinja::kFromUser));
  variables.set(text_key("documents"),
                jinja::from_json(parse_list(prompt.documents, "the documents"), jinja::kFromUser));
  return variables;
}

}  // namespace faststream
