// Filters by their names; library.h finds them all.
#pragma once

#include <string_view>

#include "text/jinja/library.h"

namespace faststream::jinja {

Filter find_text_filter(std::string_view name);
Filter find_list_filter(std::string_view name);

}  // namespace faststream::jinja
