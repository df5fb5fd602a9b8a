// Methods by their names; library.h binds them to values.
#pragma once

#include <string_view>

#include "text/jinja/library.h"

namespace faststream::jinja {

using TextMethod = Value (*)(Runtime&, const Text&, Arguments);
/// Null for a name that none has.
TextMethod find_text_method(std::string_view name);

/// str.replace(), with what it makes counted.
Value replace_text(Runtime& runtime, const Text& text, const Text& old, const Text& with,
                   int64_t most);

}  // namespace faststream::jinja
