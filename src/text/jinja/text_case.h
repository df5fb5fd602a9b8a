// Upper and lower case of texts, as Python's str has them.
#pragma once

#include <string_view>

#include "text/jinja/text.h"

namespace faststream::jinja {

Text upper(const Text& text);
Text lower(const Text& text);
Text capitalize(const Text& text);
Text title(const Text& text);

}  // namespace faststream::jinja
