#include "program/processes.h"

#include <algorithm>
#include <csignal>
#include <exception>
#include <optional>
#include <string>
#include <thread>

#include "backend/backend.h"
#include "engine/ranks.h"
#include "engine/remote_replica.h"
#include "program/output.h"
#include "ranks/mpi_link.h"
#include "support/error.h"
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

// What is for this process's replica of what is free on its device: others may have the same one.
double memory_part(const ProcessLinks& links, const RankDevice& device) {
  const int all = place_on_machine(*links.all, device.device).count;
  const int own = links.ranks ? place_on_machine(*links.ranks, device.device).count : 1;
  return static_cast<double>(own) / all;
}

void end_others(const ProcessLinks& links) {
  if (links.ranks) links.ranks->tell({});
  for (const auto& replica : links.replicas) {
    try {
      dismiss_replica(*replica);
    } catch (const Error& error) {
      print_notice(std::string(error.what()) + "; what it had was for the other replicas\n");
    }
  }
}

}  // namespace

void run_in_processes(EngineOptions& engine, const std::function<void()>& command) {
  const std::optional<ProcessLinks> links = make_process_links(engine.replicas);
  if (!links) return command();
  const bool leads = links->all->rank() == 0;
  if (!leads) std::signal(SIGINT, SIG_IGN);  // rank 0 ends all
  const int count = links->all->count();
  if (engine.replicas > 0 && count % engine.replicas != 0) {
    if (!leads) return;
    throw UsageError("--replicas " + std::to_string(engine.replicas) + ": " +
                     std::to_string(count) +
                     " processes do not make as many of equal size; start " +
                     std::to_string(engine.replicas) + ", or a multiple");
  }
  const RankDevice device = choose_device(engine, place_on_machine(*links->all));
  engine.memory_part *= memory_part(*links, device);
  if (links->ranks && links->ranks->rank() > 0) return follow_ranks(*links->ranks, device);
  engine.link = links->ranks.get();
  engine.device = device.device;
  engine.threads = device.threads;
  engine.replicas = 1;  // of this process
  for (const auto& replica : links->replicas) engine.replica_links.push_back(replica.get());
  try {
    leads ? command() : serve_replica(*links->lead, engine);
  } catch (...) {
    end_others(*links);
    throw;
  }
  end_others(*links);
}

}  // namespace faststream
