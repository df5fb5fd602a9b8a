// A program that several processes run together.
#pragma once

#include <functional>

#include "engine/options.h"

namespace faststream {

/// Calls command(), with `engine` set so that its models run on all processes that mpirun has
/// started, if it was started so: together, or in so many replicas as it has, of as many processes
/// each. Then one of them, process 0, calls it; the others compute for it, and see neither input
/// nor output. On a machine with GPUs each process has one, unless engine.device says otherwise.
/// Throws UsageError where the processes make no such replicas.
void run_in_processes(EngineOptions& engine, const std::function<void()>& command);

}  // namespace faststream
