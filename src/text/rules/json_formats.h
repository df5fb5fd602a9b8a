// What JSON Schema's "format" says of strings.
#pragma once

#include <string_view>

#include "text/rules/dfa.h"

namespace faststream::rules {

/// Whether a format is for people alone: every string has it (OpenAPI's registry of formats).
bool is_silent_format(std::string_view format);

/// The strings of a format; null for those that are not supported. Made once, and kept: any thread
/// may ask.
const Dfa* format_dfa(std::string_view format);

}  // namespace faststream::rules
