// A conversation's messages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace faststream {

struct Message {
  std::string role;  ///< "system", "user" or "assistant"
  std::string content;
  /// Of an assistant's message, the tokens as the model generated them (without the token that
  /// ended it); used instead of splitting `content` again, so that the KV cache stays valid. May be
  /// empty.
  std::vector<int32_t> tokens = {};
};

}  // namespace faststream
