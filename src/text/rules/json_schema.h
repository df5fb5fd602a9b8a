// JSON Schema (2020-12) as a grammar of JSON texts.
#pragma once

#include <string_view>

#include "text/rules/expression.h"

namespace faststream::rules {

/// Schemas are no larger.
constexpr size_t kMaxSchemaBytes = size_t{1} << 20U;

/// The texts of all instances that are valid under a schema, with members in the schema's order.
/// Throws Error, with the place in the schema and the keyword's name, where the schema is none, no
/// instance is valid, or a keyword is not supported.
Grammar parse_json_schema(std::string_view schema);

}  // namespace faststream::rules
