// What Python's str has as methods, for those who need them by other names too.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/text.h"

namespace faststream::jinja {

Text upper(const Text& text);
Text lower(const Text& text);
Text capitalize(const Text& text);
/// `chars`: a set of characters; null for white space.
Text strip(const Text& text, const Text* chars, bool left, bool right);
Text replace(const Text& text, std::string_view old, const Text& with, int64_t most);
std::vector<Text> split_lines(const Text& text, bool keep_ends);
/// Spaces or other characters before and after, up to `width` characters.
Text center(const Text& text, int64_t width, std::string_view fill);
/// With &, <, >, ' and " as HTML writes them.
Text escape_html(const Text& text);
bool is_upper_text(std::string_view text);
bool is_lower_text(std::string_view text);

}  // namespace faststream::jinja
