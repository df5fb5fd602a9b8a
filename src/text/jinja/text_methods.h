// What Python's str has as methods, for those who need them by other names too.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/text.h"

namespace faststream::jinja {

/// Each character, a view into the text, changed by itself.
Text map_characters(const Text& text, const std::function<std::string(std::string_view)>& change);
/// `chars`: a set of characters; null for white space.
Text strip(const Text& text, const Text* chars, bool left, bool right);
Text replace(const Text& text, std::string_view old, const Text& with, int64_t most);
std::vector<Text> split_lines(const Text& text, bool keep_ends);
/// With &, <, >, ' and " as HTML writes them.
Text escape_html(const Text& text);

}  // namespace faststream::jinja
