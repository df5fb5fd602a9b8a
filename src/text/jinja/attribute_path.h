// The "attribute" argument of filters: "name", 0, or "address.city".
#pragma once

#include <vector>

#include "text/jinja/library.h"

namespace faststream::jinja {

/// `item` itself where `path` is none; `otherwise`, if it is not none, for what is not there.
Value at_path(Runtime& runtime, Value item, const Value& path, const Value& otherwise = Value());

/// What to sort or compare by: the value at the path, texts in lower case unless `case_sensitive`.
Value sort_key(Runtime& runtime, const Value& item, const Value& path, bool case_sensitive);

}  // namespace faststream::jinja
