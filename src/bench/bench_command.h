// faststream-bench's work.
#pragma once

#include "bench/bench_options.h"
#include "engine/options.h"

namespace faststream::bench {

/// Measures and prints to stdout. engine: where models run. Throws Error, UsageError or
/// Interrupted.
void bench_command(const BenchOptions& options, const EngineOptions& engine);

}  // namespace faststream::bench
