#include "engine/ranked_executor.h"

#include <vector>

#include "engine/rank_commands.h"

namespace faststream {

void begin_together(DeviceExecutor& executor, RankLink& link) {
  executor.launch();
  if (link.is_in_process()) link.gather({});
}

void RankedExecutor::read_sources(const Batch& batch) {
  link().tell(rank_message(RankCommand::read_sources).put(batch).bytes());
  own().read_sources(batch);
}

void RankedExecutor::forward(const Batch& batch) {
  link().tell(rank_message(RankCommand::forward).put(batch).bytes());
  own().forward(batch);
  begin_together(own(), link());
}

std::unique_ptr<Choices> RankedExecutor::choose(std::span<const SamplingRow> rules) {
  return own().choose(rules);
}

std::vector<float> RankedExecutor::logits() { return own().logits(); }

void RankedExecutor::copy(std::span<const std::vector<PageCopy>> copies) {
  link().tell(copy_message(copies).bytes());
  own().copy(copies);
}

void follow(DeviceExecutor& executor, RankLink& link) {
  Batch batch;  // of the last step, which the device may still read
  while (true) {
    MessageReader reader(link.listen());
    switch (reader.take<RankCommand>()) {
      case RankCommand::read_sources:
        batch = reader.take<Batch>();
        executor.read_sources(batch);
        executor.launch();
        break;
      case RankCommand::forward:
        batch = reader.take<Batch>();
        executor.forward(batch);
        begin_together(executor, link);
        break;
      case RankCommand::copy: {
        executor.copy(reader.take<std::vector<std::vector<PageCopy>>>());
        break;
      }
      case RankCommand::finish:
      case RankCommand::end:
        return;
    }
  }
}

}  // namespace faststream
