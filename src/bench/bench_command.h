// faststream-bench's work.
#pragma once

#include "bench/bench_options.h"

namespace faststream::bench {

/// Measures and prints to stdout. Throws Error, UsageError or Interrupted.
void bench_command(const BenchOptions& options);

}  // namespace faststream::bench
