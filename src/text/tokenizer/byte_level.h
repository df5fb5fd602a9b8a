// GPT-2's alphabet: a printable character for each byte
// (https://github.com/openai/gpt-2/blob/master/src/encoder.py, bytes_to_unicode).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace faststream {

/// The alphabet's character for each byte.
std::string to_byte_level(std::string_view bytes);

/// The bytes that valid UTF-8 stands for; nothing where a character is not in the alphabet.
std::optional<std::string> from_byte_level(std::string_view text);

}  // namespace faststream
