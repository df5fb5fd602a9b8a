// faststream-bench's work.
#pragma once

#include "cli/bench/bench_options.h"

namespace faststream {

/// Measures and prints to stdout. Throws Error, UsageError or Interrupted.
void bench_command(const BenchOptions& options);

}  // namespace faststream
