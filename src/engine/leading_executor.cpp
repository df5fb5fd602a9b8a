#include "engine/leading_executor.h"

#include <exception>
#include <utility>

namespace faststream {

LeadingExecutor::LeadingExecutor(std::unique_ptr<DeviceExecutor> own, RankLink& link, RankPart part)
    : own_(std::move(own)), link_(link), part_(part) {}

LeadingExecutor::~LeadingExecutor() {
  if (part_ != kModelPart) return;
  try {
    link_.tell(rank_message(RankCommand::end).bytes());
  } catch (const std::exception&) {
    static_cast<void>(0);  // they have ended
  }
}

}  // namespace faststream
