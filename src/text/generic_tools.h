// Tools for chat templates that know none.
#pragma once

#include "text/message.h"

namespace faststream {

/// Whether the conversation has tools, calls of them or what they gave.
bool speaks_of_tools(const ChatPrompt& prompt);

/// The same conversation with all that as text, in a format that many models know and
/// parse_tool_calls() finds in answers: tools are described in the first system message, or the
/// first user's where there is none; calls stand in <tool_call> ... </tool_call> behind what the
/// assistant said, and what they gave in <tool_response> ... </tool_response>, of consecutive ones
/// as one message of the user. Throws UsageError for JSON in `prompt` that is none.
ChatPrompt with_tools_as_text(const ChatPrompt& prompt);

}  // namespace faststream
