// Conversations.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace faststream {

struct Message {
  std::string role;  ///< "system", "user", "assistant", and what else a chat template knows
  std::string content;
  /// Of an assistant's message, the tokens as the model generated them (without the token that
  /// ended it); used instead of splitting `content` again, so that the KV cache stays valid. May be
  /// empty.
  std::vector<int32_t> tokens = {};
  /// Further members as chat templates read them, a JSON object: {"tool_calls": [...],
  /// "reasoning_content": "..."}. A "content" in it, a list of parts or null for none, stands in
  /// the place of `content`. May be empty.
  std::string more = {};
};

/// A conversation, and what else a chat template is told.
struct ChatPrompt {
  ChatPrompt() = default;
  ChatPrompt(std::vector<Message> conversation)  // NOLINT: messages are a prompt
      : messages(std::move(conversation)) {}

  std::vector<Message> messages;
  std::string tools;      ///< a JSON list, as OpenAI's API has it; empty: none
  std::string documents;  ///< a JSON list of objects, "title" and "text"; empty: none
  std::string variables;  ///< a JSON object, such as {"enable_thinking": false}; empty: none
  /// The answer goes on with the last message's content, instead of following it.
  bool continue_final_message = false;
};

}  // namespace faststream
