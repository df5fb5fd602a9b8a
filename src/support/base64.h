// Base64 (RFC 4648, section 4).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace faststream {

/// The bytes that `text` stands for, "=" at its end included; nothing when it is no Base64.
std::optional<std::string> decode_base64(std::string_view text);

/// Its inverse, padded with "=".
std::string encode_base64(std::string_view bytes);

}  // namespace faststream
