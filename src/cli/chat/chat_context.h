// What of a conversation the model sees.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/chat/chat_answerer.h"
#include "cli/chat/chat_session.h"

namespace faststream::cli {

/// The system prompt that a text is: none where it is empty.
std::optional<std::string> system_prompt(const std::string& text);

/// What a chat template is given: `frame`, with the system prompt, then the messages from exchange
/// `first` on.
ChatPrompt prompt_of(const Conversation& conversation, size_t first, const ChatPrompt& frame);

/// The exchange that the context shall begin with, for a conversation that ends with a message to
/// answer in at most `max_tokens` (-1: no limit) and whose context began with exchange `first`.
/// That is `first` while prompt and answer fit. Once they do not, about half of the exchanges' room
/// is freed: a prompt that lost its beginning has to be computed again, and shall then grow for
/// many messages before that comes again. Throws Error when the last message alone is too long.
size_t fit_context(const Answerer& answerer, const Conversation& conversation, size_t first,
                   int64_t max_tokens, const ChatPrompt& frame);

}  // namespace faststream::cli
