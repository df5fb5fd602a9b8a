// A replica in another process: both ends of it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/replica.h"
#include "ranks/message.h"
#include "ranks/message_link.h"

namespace faststream {

/// Here it has jobs, and a thread that hears what becomes of them; there they are answered
/// (serve_replica()). When that process ends or is not heard of any more, its device has failed all
/// jobs that it had.
class RemoteReplica final : public Replica {
 public:
  /// Has the other process load the model. Throws as Engine's constructor does. The link must
  /// outlive this.
  RemoteReplica(MessageLink& link, const std::filesystem::path& path, const EngineOptions& options,
                Rescue rescue);
  ~RemoteReplica() override { stop(); }

  [[nodiscard]] const EngineInfo& info() const override { return info_; }
  /// As they were when it last ended a job.
  [[nodiscard]] EngineStats stats() const override;

  void submit(std::unique_ptr<Job> job) override;
  void cancel(RequestId request) override;

  [[nodiscard]] int64_t n_unfinished() const override { return n_unfinished_; }
  [[nodiscard]] bool has_failed() const override { return has_failed_; }
  void stop() override;

 private:
  struct Work {
    std::unique_ptr<Job> job;
    std::map<int32_t, std::vector<PositionLogprobs>> logprobs = {};  // of samples, so far
    bool is_cancelled = false;
    std::string error = {};  // that a callback has thrown
  };
  // A job that another replica answers.
  struct Moved {
    Replica* to = nullptr;  // once there is one
    bool is_cancelled = false;
  };

  void send(const MessageWriter& order);
  void run();
  bool hear();
  void hear_progress(MessageReader& message);
  void hear_delta(MessageReader& message);
  void hear_end(MessageReader& message);
  Work* find(RequestId id);
  void tell(Work& work, const std::function<void(const Callbacks&)>& call);
  void fail(RequestId id, const std::string& why);
  void end(Work work, Result result, const std::string& error);

  MessageLink& link_;
  EngineInfo info_;
  Rescue rescue_;
  std::atomic<int64_t> n_unfinished_ = 0;
  std::atomic<bool> has_failed_ = false;

  mutable std::mutex mutex_;
  std::condition_variable wake_;  // for a thread that has nothing more to hear
  // Guarded by it:
  std::unordered_map<RequestId, Work> work_;
  std::unordered_map<RequestId, Moved> moved_;
  EngineStats stats_;
  bool stopping_ = false;

  std::thread thread_;  // last: it uses all others
};

/// What the other process does: loads what it is told to, and answers what it is given, one model
/// after the other until process 0 has no more. place: where, of the members that say that; what
/// else is told. Throws Error when process 0 has ended.
void serve_replica(MessageLink& link, const EngineOptions& place);

/// Tells the other process that there are no more models.
void dismiss_replica(MessageLink& link);

}  // namespace faststream
