// Options of beam searches.
#pragma once

#include "engine/request.h"

namespace CLI {
class App;
}

namespace faststream {

/// Adds the options to `app`, bound to `request`.
void add_beam_options(CLI::App& app, Request& request);

/// Throws UsageError when an option is given that has no effect with beams, or none without. Not
/// for batches, whose lines may say something else.
void check_beam_options(const CLI::App& app, const BeamParams& search);

}  // namespace faststream
