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
#include "engine/adapter_file.h"
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

/// What rank 0 needs to know before it plans: of the rank that has least, of a stage.
struct RankFigures {
  size_t free_bytes = 0;
  size_t weight_bytes = 0;
  bool shares_memory = false;  ///< all its ranks are of one machine's processors
};

/// Where a model runs, for who leads: on one device, by threads that follow the caller's, or by
/// processes that follow this one.
class Ranks {
 public:
  /// Says what each rank may hold. share: the largest one's description.
  /// It may be asked for several shares: what it said last holds.
  using ChooseLimits =
      std::function<RunnerLimits(const ModelConfig& share, const RankFigures& figures)>;

  /// devices: one's name, or those of several ranks, which are threads. Of CPU ranks each has its
  /// part of the threads, of so many in all; 0: of those that there are. processes: those of other
  /// processes, which must outlive this; null: there are none. stages: of as many ranks each, in
  /// order (RankPlace). Throws UsageError.
  Ranks(const std::string& devices, int32_t threads, RankLink* processes, int32_t stages = 1);
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  /// The executors must be gone.
  ~Ranks();

  /// Rank 0's.
  [[nodiscard]] const RankDevice& device() const { return devices_.front(); }
  /// Likewise, before its backend is made: by the device's name.
  [[nodiscard]] RankPlace place() const;
  /// "CUDA 0 (...), 2 ranks", "..., 4 ranks in 2 stages".
  [[nodiscard]] std::string describe(const Backend& backend) const;

  /// Has all ranks open the files and load their shares. backend: rank 0's, on device(). exact:
  /// sums over ranks are of float32 throughout. progress: of rank 0; may be empty. Throws Error
  /// where a rank cannot, UsageError where the model does not run in such stages. Files and backend
  /// must outlive the executor, and this both.
  std::unique_ptr<Executor> load(const ModelFiles& files, const ModelConfig& config,
                                 Backend& backend, bool exact, const ChooseLimits& choose_limits,
                                 const std::function<void(size_t)>& progress);

 private:
  void start_threads(const std::vector<std::string>& devices, int32_t threads);

  std::vector<RankDevice> devices_;
  RankLink* link_ = nullptr;  // rank 0's end; null: there is one device
  int32_t stages_ = 1;
  std::vector<std::unique_ptr<RankLink>> links_;  // of threads
  std::unique_ptr<RankLink> stage_link_;          // rank 0's among its stage, of several
  std::vector<std::jthread> threads_;             // of ranks from 1 on
};

/// What a runner may hold by a plan.
RunnerLimits runner_limits(const MemoryPlan& plan);

}  // namespace faststream
