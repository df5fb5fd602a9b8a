// JSON as values of templates.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "text/jinja/value.h"

namespace faststream::jinja {

/// Every text in it, names of members too, is of that origin. Whole numbers that need more than 63
/// bits become floats. Throws Failure when it is nested too deep.
Value from_json(const nlohmann::ordered_json& json, Origin origin);

}  // namespace faststream::jinja
