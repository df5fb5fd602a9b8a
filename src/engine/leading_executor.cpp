#include "engine/leading_executor.h"

#include <exception>
#include <utility>

#include "engine/rank_commands.h"

namespace faststream {

LeadingExecutor::LeadingExecutor(std::unique_ptr<DeviceExecutor> own, RankLink& link)
    : own_(std::move(own)), link_(link) {}

LeadingExecutor::~LeadingExecutor() {
  try {
    link_.tell(rank_message(RankCommand::end).bytes());
  } catch (const std::exception&) {
    static_cast<void>(0);  // they have ended
  }
}

}  // namespace faststream
