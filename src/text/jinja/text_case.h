// Upper and lower case of texts, as Python's str has them.
#pragma once

#include <string_view>

#include "text/jinja/text.h"

namespace faststream::jinja {

Text upper(const Text& text);
Text lower(const Text& text);
Text capitalize(const Text& text);
Text title(const Text& text);
Text swap_case(const Text& text);
Text fold_case(const Text& text);
bool is_upper_text(std::string_view text);
bool is_lower_text(std::string_view text);
bool is_title_text(std::string_view text);

}  // namespace faststream::jinja
