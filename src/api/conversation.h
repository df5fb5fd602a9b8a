// Conversations in JSON, as OpenAI's API writes them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "engine/request.h"

namespace faststream::api {

/// Whether read_conversation() reads the member of that name.
bool is_conversation_member(std::string_view name);

/// The text of a message's content in parts, {"type": "text", "text": ...}. Throws Error about
/// others, by the `name` of the content.
std::string text_of_parts(const nlohmann::ordered_json& parts, const std::string& name);

/// The conversation in an object with "messages" and perhaps "tools", "documents" and
/// "chat_template_kwargs"; other members are not looked at. A message has "role" and "content", a
/// text, a list of parts {"type": "text", "text": ...} or null, and what else the model's chat
/// template knows, such as "tool_calls". Throws Error, naming the member, for anything else.
ChatPrompt read_conversation(const nlohmann::ordered_json& object);

}  // namespace faststream::api
