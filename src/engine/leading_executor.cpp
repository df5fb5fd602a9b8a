#include "engine/leading_executor.h"

#include <exception>
#include <utility>

namespace faststream {

LeadingExecutor::LeadingExecutor(std::unique_ptr<DeviceExecutor> own, RankLink& link)
    : own_(std::move(own)),
      link_(link),
      part_(kModelPart),
      device_(std::make_shared<std::recursive_mutex>()) {}

LeadingExecutor::LeadingExecutor(std::unique_ptr<DeviceExecutor> own, const LeadingExecutor& leader,
                                 RankPart part)
    : own_(std::move(own)), link_(leader.link_), part_(part), device_(leader.device_) {}

LeadingExecutor::~LeadingExecutor() {
  if (part_ != kModelPart) return;
  try {
    link_.tell(rank_message(RankCommand::end).bytes());
  } catch (const std::exception&) {
    static_cast<void>(0);  // they have ended
  }
}

}  // namespace faststream
