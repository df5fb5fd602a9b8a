// URIs that refer to each other (RFC 3986).
#pragma once

#include <string>
#include <string_view>

namespace faststream::rules {

/// What a reference without fragment means at a base (section 5.2.2), which may be relative, too.
std::string resolve_uri(std::string_view base, std::string_view reference);

/// Bytes in place of their %XX.
std::string decode_percent(std::string_view text);

}  // namespace faststream::rules
