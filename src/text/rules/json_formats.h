// What JSON Schema's "format" says of strings, as regular expressions.
#pragma once

#include <optional>
#include <string_view>

namespace faststream::rules {

/// The regular expression (parse_regex()) that whole strings of a format match; nothing for those
/// that are not supported.
std::optional<std::string_view> format_pattern(std::string_view format);

}  // namespace faststream::rules
