// Rules of output as OpenAI's requests have them.
#pragma once

#include <optional>
#include <string>

#include "engine/request.h"

namespace faststream::api {

/// The rule of a "response_format", given as JSON's text: {"type": "text"}, which is none,
/// {"type": "json_object"}, or {"type": "json_schema", "json_schema": {"schema": {...}}}; members
/// "name", "description" and "strict" are passed over. Throws Error for all else.
std::optional<OutputRule> read_response_format(const std::string& text);

}  // namespace faststream::api
