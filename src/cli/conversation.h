// Conversations in JSON, as OpenAI's API writes them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "engine/request.h"

namespace faststream::cli {

/// Whether read_conversation() reads the member of that name.
bool is_conversation_member(std::string_view name);

/// The conversation in an object with "messages" and perhaps "tools", "documents" and
/// "chat_template_kwargs"; other members are not looked at. A message has "role" and "content", a
/// text, a list of parts {"type": "text", "text": ...} or null, and what else the model's chat
/// template knows, such as "tool_calls". Throws Error, naming the member, for anything else.
ChatPrompt read_conversation(const nlohmann::ordered_json& object);

/// The same of a file, which has no other members. Throws Error, naming the file.
ChatPrompt read_conversation_file(const std::string& path);

/// Adds a variable for chat templates, "NAME=VALUE" with a value in JSON or else a text, to an
/// object in JSON, which may be empty. Throws UsageError for other forms.
void add_template_variable(std::string& variables, const std::string& definition);

}  // namespace faststream::cli
