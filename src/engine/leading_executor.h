// What rank 0's executors of several ranks have in common: an executor of its own share, and others
// that do what it tells them.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>

#include "backend/rank_link.h"
#include "engine/executor.h"
#include "engine/rank_commands.h"

namespace faststream {

/// What its own device's executor says of itself holds for all. Destroyed, that of the model has
/// the others end.
class LeadingExecutor : public Executor {
 public:
  ~LeadingExecutor() override;

  [[nodiscard]] const ModelConfig& config() const override { return own_->config(); }
  [[nodiscard]] const RunnerLimits& limits() const final { return own_->limits(); }
  [[nodiscard]] KvType kv_type() const final { return own_->kv_type(); }
  [[nodiscard]] size_t kv_bytes() const final { return own_->kv_bytes(); }
  void wait() override { own_->wait(); }

 protected:
  /// A model's. own: of rank 0. The link, of all ranks, must outlive this.
  LeadingExecutor(std::unique_ptr<DeviceExecutor> own, RankLink& link);
  /// A predictor's of `leader`, which must outlive this.
  LeadingExecutor(std::unique_ptr<DeviceExecutor> own, const LeadingExecutor& leader,
                  RankPart part);

  [[nodiscard]] DeviceExecutor& own() const { return *own_; }
  [[nodiscard]] RankLink& link() const { return link_; }
  [[nodiscard]] RankPart part() const { return part_; }
  /// To be held while the device is used, which a model and its predictors have one of: threads
  /// may call several of these at a time, and what is told and what is done here are in one order.
  [[nodiscard]] std::recursive_mutex& device() const { return *device_; }
  /// Tells the others what is done here by task(own()), while it holds device(). Where that fails
  /// here they have gone another way: all calls throw Error from then on.
  template <typename Task>
  void together(const MessageWriter& message, Task task) {
    const std::scoped_lock lock(device());
    link_.tell(message.bytes());
    try {
      task(*own_);
    } catch (const std::exception& error) {
      link_.fail(error.what());
      throw;
    }
  }

 private:
  std::unique_ptr<DeviceExecutor> own_;
  RankLink& link_;
  RankPart part_;
  std::shared_ptr<std::recursive_mutex> device_;
};

}  // namespace faststream
