// Requests of many lengths, as users send them, through the scheduler.
#pragma once

#include <cstdint>

#include "bench/bench_options.h"
#include "bench/report.h"
#include "bench/step_work.h"
#include "engine/runner.h"
#include "engine/scheduler.h"

namespace faststream::bench {

/// Runs options.requests requests and reports how fast they went. The runner's limits allow
/// `limits` and the longest request.
void measure_requests(const BenchOptions& options, Runner& runner, const SchedulerLimits& limits,
                      KvType kv, const Ceilings& ceilings, const Report& report);

/// Token number n of text number `text`, without meaning: the same in every run, and different
/// enough between texts that experts are chosen as in real ones and no prefix is shared.
int32_t bench_token(int64_t text, int64_t n, int64_t vocab);

}  // namespace faststream::bench
