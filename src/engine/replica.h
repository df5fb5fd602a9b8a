// A model that answers requests beside others of it: in this process (LocalReplica), or in another
// (RemoteReplica).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "engine/engine.h"
#include "engine/job.h"

namespace faststream {

/// Any thread may call any member at any time.
class Replica {
 public:
  /// Called by the replica's thread with a job that its device has failed: the replica that answers
  /// it now, and has its callbacks; null: there is none.
  using Rescue = std::function<Replica*(Job&)>;

  Replica() = default;
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;
  virtual ~Replica() = default;

  [[nodiscard]] virtual const EngineInfo& info() const = 0;
  [[nodiscard]] virtual EngineStats stats() const = 0;

  virtual void submit(std::unique_ptr<Job> job) = 0;
  virtual void cancel(RequestId request) = 0;

  /// Sequences of jobs that have not ended.
  [[nodiscard]] virtual int64_t n_unfinished() const = 0;
  /// Whether the device has failed a job.
  [[nodiscard]] virtual bool has_failed() const = 0;
  /// Returns when all jobs are finished. Callbacks may use the replica until then.
  virtual void stop() = 0;
};

}  // namespace faststream
