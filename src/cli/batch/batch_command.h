// faststream-run's batch mode: a file of prompts to JSON lines.
#pragma once

#include <functional>

#include "cli/batch/batch_options.h"
#include "cli/batch/batch_origin.h"
#include "cli/generate.h"

namespace faststream::cli {

/// Answers the lines of options.input with the model that `load` loads, and writes the results.
/// find_origin: of the model and the options, which a file that is resumed must have been begun
/// with; called once the input has been looked at.
/// `asked`: what the command line says of requests, its seed included. The loaded prototype, which
/// has what the model recommends besides, is what a line's request has where the line does not say;
/// its seed, drawn if there is none, is the run's (batch_line.h). Memory is bounded, whatever the
/// input's length. The last line on stderr says what was done.
///
/// Throws Error when the input cannot be read, the output not be written or not be resumed, the
/// device fails, or, with options.strict, at the first bad line; Interrupted after Ctrl-C. What was
/// finished before is written.
void batch_command(const BatchOptions& options, const std::function<BatchOrigin()>& find_origin,
                   const Request& asked, const std::function<LoadedEngine()>& load);

}  // namespace faststream::cli
