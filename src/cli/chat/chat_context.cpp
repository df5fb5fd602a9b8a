#include "cli/chat/chat_context.h"

#include <algorithm>
#include <string>

#include "support/error.h"

namespace faststream::cli {

std::optional<std::string> system_prompt(const std::string& text) {
  if (text.empty()) return std::nullopt;
  return text;
}

ChatPrompt prompt_of(const Conversation& conversation, size_t first, const ChatPrompt& frame) {
  ChatPrompt prompt = frame;
  std::vector<Message>& messages = prompt.messages;
  if (conversation.system) messages.push_back({.role = "system", .content = *conversation.system});
  messages.insert(messages.end(),
                  conversation.messages.begin() + static_cast<std::ptrdiff_t>(2 * first),
                  conversation.messages.end());
  return prompt;
}

size_t fit_context(const Answerer& answerer, const Conversation& conversation, size_t first,
                   int64_t max_tokens, const ChatPrompt& frame) {
  const auto count = [&](size_t from) {
    return answerer.count_tokens(prompt_of(conversation, from, frame));
  };
  // The answer has room for its max_tokens, or for a quarter of the context.
  const int64_t context = answerer.context();
  const int64_t reserve = max_tokens < 0 ? context / 4 : std::min(max_tokens, context / 4);
  const int64_t room = context - reserve;
  if (count(first) <= room) return first;

  const size_t last = conversation.messages.size() / 2;  // of the message to answer
  const int64_t least = count(last);
  if (least >= context) {
    throw Error("the message is too long: with the system prompt it has " + std::to_string(least) +
                " tokens, and the context only " + std::to_string(context) + "; shorten it" +
                (context == answerer.max_context()
                     ? ", since " + answerer.context_end()
                     : " or start with a larger --context (the model's is " +
                           std::to_string(answerer.max_context()) + ")"));
  }
  const int64_t half = least + (room - least) / 2;
  size_t end = last;
  while (first < end) {  // each exchange that goes makes the prompt shorter
    const size_t middle = first + (end - first) / 2;
    if (count(middle) > half) {
      first = middle + 1;
    } else {
      end = middle;
    }
  }
  return first;
}

}  // namespace faststream::cli
