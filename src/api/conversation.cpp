#include "api/conversation.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "support/error.h"
#include "support/printable.h"
#include "text/tool_calls.h"

namespace faststream::api {
namespace {

using nlohmann::ordered_json;

constexpr std::array<std::string_view, 4> kMembers = {"messages", "tools", "documents",
                                                      "chat_template_kwargs"};

[[noreturn]] void fail(const std::string& name, const char* what) {
  throw Error(in_quotes(name) + " " + what);
}

const ordered_json* find(const ordered_json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

Message read_message(const ordered_json& object, const std::string& name) {
  if (!object.is_object()) fail(name, "is not an object");
  Message message;
  ordered_json more = ordered_json::object();
  // What an assistant said beside its calls may be null, which templates tell from an empty text.
  const bool may_be_null = has_tool_calls(object);
  bool has_role = false;
  for (const auto& [key, value] : object.items()) {
    if (key == "role") {
      if (!value.is_string()) fail(name + ".role", "is not a text");
      message.role = value.get<std::string>();
      has_role = true;
    } else if (key == "content" && value.is_string()) {
      message.content = value.get<std::string>();
    } else if (key == "content" && value.is_array()) {
      message.content = text_of_parts(value, name + ".content");
    } else if (key == "content" && !value.is_null()) {
      fail(name + ".content", "is not a text");
    } else if (key != "content" || may_be_null) {
      // Not by name, which would look through all of them: the parser has let none come twice.
      more.get_ref<ordered_json::object_t&>().emplace_back(key, value);
    }
  }
  if (!has_role) fail(name + ".role", "is missing");
  const bool has_content = find(object, "content") != nullptr;
  if (!has_content && (message.role != "assistant" || object.size() == 1)) {
    fail(name + ".content", "is missing");
  }
  if (!more.empty()) message.more = more.dump();
  return message;
}

// As text in JSON; empty where there is none.
std::string member(const ordered_json& object, const char* key, ordered_json::value_t type,
                   const char* what) {
  const ordered_json* found = find(object, key);
  if (found == nullptr) return "";
  if (found->type() != type) fail(key, what);
  return found->empty() ? "" : found->dump();
}

}  // namespace

bool is_conversation_member(std::string_view name) {
  return std::find(kMembers.begin(), kMembers.end(), name) != kMembers.end();
}

std::string text_of_parts(const ordered_json& parts, const std::string& name) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string part_name = name + "[" + std::to_string(i) + "]";
    if (!parts[i].is_object()) fail(part_name, "is not an object");
    const ordered_json* type = find(parts[i], "type");
    const ordered_json* part = find(parts[i], "text");
    if (type == nullptr || *type != "text") {
      fail(part_name, "is not text, which is all there can be");
    }
    if (part == nullptr || !part->is_string()) fail(part_name + ".text", "is not a text");
    text += part->get_ref<const std::string&>();
  }
  return text;
}

ChatPrompt read_conversation(const ordered_json& object) {
  const ordered_json* messages = find(object, "messages");
  if (messages == nullptr) fail("messages", "is missing");
  if (!messages->is_array()) fail("messages", "is not a list");
  if (messages->empty()) fail("messages", "is empty, but must be a list of messages");
  ChatPrompt prompt;
  for (size_t i = 0; i < messages->size(); ++i) {
    prompt.messages.push_back(read_message((*messages)[i], "messages[" + std::to_string(i) + "]"));
  }
  using Type = ordered_json::value_t;
  prompt.tools = member(object, "tools", Type::array, "is not a list");
  prompt.documents = member(object, "documents", Type::array, "is not a list");
  prompt.variables = member(object, "chat_template_kwargs", Type::object, "is not an object");
  return prompt;
}

}  // namespace faststream::api
