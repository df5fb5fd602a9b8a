#include "cli/engine_stats.h"

#include <cstdio>

#include "support/machine.h"
#include "support/progress.h"

namespace faststream::cli {

void print_device(const EngineInfo& info) {
  std::fprintf(stderr, "device:     %s\n", info.device.c_str());
  std::fprintf(stderr, "load:       %.3f s\n", info.load_seconds);
}

void print_steps(const EngineStats& stats) {
  std::fprintf(stderr, "steps:      %lld, %.3f s\n", static_cast<long long>(stats.steps),
               stats.device_seconds);
  if (stats.proposed_tokens == 0) return;
  std::fprintf(stderr, "speculated: %lld of %lld proposed tokens accepted\n",
               static_cast<long long>(stats.accepted_tokens),
               static_cast<long long>(stats.proposed_tokens));
}

void print_memory(const EngineInfo& info) {
  std::fprintf(stderr, "memory:     weights %s, KV cache %s (context %lld), process peak %s\n",
               format_bytes(info.weight_bytes).c_str(), format_bytes(info.kv_bytes).c_str(),
               static_cast<long long>(info.context), format_bytes(peak_memory()).c_str());
}

}  // namespace faststream::cli
