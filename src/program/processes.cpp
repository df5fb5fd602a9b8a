#include "program/processes.h"

#include <algorithm>
#include <csignal>
#include <exception>
#include <memory>
#include <string>
#include <thread>

#include "backend/backend.h"
#include "engine/ranks.h"
#include "ranks/mpi_link.h"
#include "support/machine.h"

namespace faststream {
namespace {

RankDevice choose_device(const EngineOptions& engine, const LocalPlace& place) {
  RankDevice device{.device = engine.device, .threads = engine.threads};
  const int gpus = device.device == "cpu" ? 0 : cuda_device_count();
  if (gpus > 0 && (device.device == "auto" || device.device == "cuda")) {
    device.device = "cuda:" + std::to_string(place.index % gpus);
  } else if (device.device == "auto") {
    device.device = "cpu";
  }
  if (device.threads == 0) {
    // Ranks that are bound to processors have theirs; others share all.
    const int threads = available_threads();
    const bool is_bound = threads < static_cast<int>(std::thread::hardware_concurrency());
    device.threads = is_bound ? threads : std::max(1, threads / place.count);
  }
  return device;
}

}  // namespace

void run_in_processes(EngineOptions& engine, const std::function<void()>& command) {
  const std::unique_ptr<RankLink> link = make_process_link();
  if (link == nullptr) return command();
  const RankDevice device = choose_device(engine, place_on_machine(*link));
  if (link->rank() > 0) {
    std::signal(SIGINT, SIG_IGN);  // rank 0 ends all
    return follow_ranks(*link, device);
  }
  engine.link = link.get();
  engine.device = device.device;
  engine.threads = device.threads;
  const auto end_others = [&] { link->tell({}); };
  try {
    command();
  } catch (...) {
    end_others();
    throw;
  }
  end_others();
}

}  // namespace faststream
