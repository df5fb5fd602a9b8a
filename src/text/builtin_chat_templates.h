// The chat templates that the library carries, src/text/templates/.
#pragma once

#include <span>
#include <string_view>
#include <vector>

namespace faststream {

struct BuiltinChatTemplate {
  std::string_view name;
  std::string_view jinja;
  std::vector<std::string_view> stop_tokens;  ///< tokens that end an answer
  std::vector<std::string_view> stop;         ///< texts that do
};

std::span<const BuiltinChatTemplate> builtin_chat_templates();

}  // namespace faststream
