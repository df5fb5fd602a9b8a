// faststream-run's work.
#pragma once

#include "cli/run_options.h"

namespace faststream::cli {

/// Reads the prompt, loads the model and prints its text to stdout. Throws Error, UsageError or
/// Interrupted.
void run_command(const RunOptions& options);

}  // namespace faststream::cli
