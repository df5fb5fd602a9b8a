// What chat templates are given.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"
#include "text/message.h"

namespace faststream {

/// Origins of the texts: kFromUser, kFromTemplate for roles that every template knows; and of what
/// encode() looks for again:
constexpr jinja::Origin kContinuationMark = 2;  ///< ends the message that is continued
constexpr jinja::Origin kBosToken = 3;          ///< a variable's, not found by its spelling
constexpr jinja::Origin kEosToken = 4;
constexpr jinja::Origin kFirstAnswer = 5;  ///< message i's content, if it has tokens: this plus i

constexpr std::string_view kMarkText = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Message i's further members, an object, and the tools, a list. They throw UsageError for JSON
/// that is none.
nlohmann::ordered_json further_members(const ChatPrompt& prompt, size_t i);
nlohmann::ordered_json list_of_tools(const ChatPrompt& prompt);

/// Whether the program sets the template's variable of that name, so that nobody else can.
bool is_own_variable(std::string_view name);

/// Arguments of a call in "tool_calls" may be the text of a JSON object, as OpenAI's API has them.
enum class TextArguments {
  stay,
  become_objects,  ///< as most templates want them
};

/// Those texts, of all messages.
std::vector<std::string> text_arguments(const ChatPrompt& prompt);

/// The variables messages, tools and documents and those of `prompt`, as Transformers prepares
/// them: members of messages that are null are left out, and reasoning goes by all its names.
/// Throws UsageError for an empty conversation, JSON that is none, own variables, and when a
/// message that is to be continued has no text.
jinja::Dict chat_variables(const ChatPrompt& prompt, TextArguments arguments);

}  // namespace faststream
