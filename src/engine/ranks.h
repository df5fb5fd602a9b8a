// Several ranks that run a model together: how they start. Rank 0 leads: it opens a model file, and
// has each other rank open the same, load its share and follow.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backend/backend.h"
#include "backend/rank_link.h"
#include "engine/executor.h"
#include "engine/memory_plan.h"
#include "model_file/model_file.h"
#include "models/config.h"

namespace faststream {

/// Ranks that can run a model together.
inline constexpr int kMostRanks = 64;

/// "cuda:0,1" as {"cuda:0", "cuda:1"}, "cpu,cpu" as {"cpu", "cpu"}; most often one. Throws
/// UsageError for an empty name among several, or too many.
std::vector<std::string> device_names(const std::string& devices);

/// Where a rank computes.
struct RankDevice {
  std::string device = "auto";  ///< as choose_backend() takes it
  int32_t threads = 0;
};

/// What a rank other than 0 does: runs what rank 0 opens, one model after the other, until that
/// ends. Throws Error, which the other ranks then throw, too.
void follow_ranks(RankLink& link, const RankDevice& device);

/// The ranks of one process: threads that follow, beside the caller's, which is rank 0.
class RankThreads {
 public:
  /// devices: of each rank. Of CPU ranks each has its part of the threads, of so many in all; 0:
  /// of those that there are.
  RankThreads(const std::vector<std::string>& devices, int32_t threads);
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;
  /// Rank 0's executors must be gone.
  ~RankThreads();

  [[nodiscard]] RankLink& link() { return *links_.front(); }
  /// Rank 0's.
  [[nodiscard]] const RankDevice& device() const { return devices_.front(); }

 private:
  std::vector<RankDevice> devices_;
  std::vector<std::unique_ptr<RankLink>> links_;
  std::vector<std::jthread> threads_;  // of ranks from 1 on
};

/// What rank 0 needs to know before it plans: of the rank that has least.
struct RankFigures {
  size_t free_bytes = 0;
  size_t weight_bytes = 0;
};

/// Of rank 0: has all ranks open the file and load their shares. device: the backend's.
/// choose_limits(share, figures) says what each may hold: share is the largest one's description.
/// exact: sums over ranks are of float32 throughout. Throws Error where a rank cannot. The link and
/// the backend must outlive the executor.
std::unique_ptr<Executor> lead_ranks(
    RankLink& link, const ModelFile& file, const ModelConfig& config, Backend& backend,
    const std::string& device, bool exact,
    const std::function<RunnerLimits(const ModelConfig& share, const RankFigures& figures)>&
        choose_limits,
    const std::function<void(size_t)>& progress);

/// What a runner may hold by a plan.
RunnerLimits runner_limits(const MemoryPlan& plan);

}  // namespace faststream
