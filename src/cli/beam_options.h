// Options of beam searches.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/request.h"

namespace CLI {
class App;
}

namespace faststream {

/// Adds the options to `app`, bound to `request`.
void add_beam_options(CLI::App& app, Request& request);

/// Throws UsageError when one of the options that are given ("--seed") has no effect with so many
/// beams. Not for batches, whose lines may say something else.
void check_beam_options(std::span<const std::string> given, int32_t beams);

}  // namespace faststream
