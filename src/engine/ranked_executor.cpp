#include "engine/ranked_executor.h"

#include <utility>
#include <vector>

#include "engine/rank_commands.h"
#include "support/error.h"

namespace faststream {

void begin_together(DeviceExecutor& executor, RankLink& link) {
  executor.launch();
  if (link.is_in_process()) link.gather({});
}

std::unique_ptr<DeviceExecutor> RankedExecutor::make_own_predictor(size_t predictor,
                                                                   const RunnerLimits& limits) {
  std::unique_ptr<DeviceExecutor> made;
  const MessageWriter message = rank_message(RankCommand::make_predictor, part())
                                    .put(part_of_predictor(predictor))
                                    .put(limits);
  together(message, [&](DeviceExecutor& own) { made = own.make_own_predictor(predictor, limits); });
  return made;
}

std::unique_ptr<Executor> RankedExecutor::make_predictor(size_t predictor,
                                                         const RunnerLimits& limits) {
  return std::unique_ptr<Executor>(new RankedExecutor(make_own_predictor(predictor, limits), *this,
                                                      part_of_predictor(predictor)));
}

void RankedExecutor::read_sources(const Batch& batch) {
  together(rank_message(RankCommand::read_sources, part()).put(batch),
           [&](DeviceExecutor& own) { own.read_sources(batch); });
}

void RankedExecutor::forward(const Batch& batch) {
  together(rank_message(RankCommand::forward, part()).put(batch), [&](DeviceExecutor& own) {
    own.forward(batch);
    begin_together(own, sharing_);
  });
}

std::unique_ptr<Choices> RankedExecutor::choose(std::span<const SamplingRow> rules) {
  return own().choose(rules);
}

std::vector<float> RankedExecutor::logits() { return own().logits(); }

void RankedExecutor::copy(std::span<const std::vector<PageCopy>> copies) {
  together(copy_message(part(), copies), [&](DeviceExecutor& own) { own.copy(copies); });
}

void RankedExecutor::with_rows(RankCommand command, std::span<const int32_t> rows,
                               void (Executor::*task)(std::span<const int32_t>)) {
  together(rank_message(command, part()).put(std::vector<int32_t>(rows.begin(), rows.end())),
           [&](DeviceExecutor& own) { (own.*task)(rows); });
}

void RankedExecutor::take_hidden_states(std::span<const int32_t> rows) {
  with_rows(RankCommand::take_hidden_states, rows, &Executor::take_hidden_states);
}

void RankedExecutor::take_own_states(std::span<const int32_t> rows) {
  with_rows(RankCommand::take_own_states, rows, &Executor::take_own_states);
}

void RankedExecutor::take_kept_states(std::span<const int32_t> rows) {
  with_rows(RankCommand::take_kept_states, rows, &Executor::take_kept_states);
}

void RankedExecutor::compact_kept_states(std::span<const int32_t> rows) {
  with_rows(RankCommand::compact_kept_states, rows, &Executor::compact_kept_states);
}

void RankedExecutor::keep_hidden_states(int32_t first, int32_t count, int32_t to) {
  together(rank_message(RankCommand::keep_hidden_states, part()).put(first).put(count).put(to),
           [&](DeviceExecutor& own) { own.keep_hidden_states(first, count, to); });
}

DeviceExecutor& FollowingParts::executor(RankPart part) {
  if (part == kModelPart) return model_;
  const auto found = predictors_.find(part);
  if (found == predictors_.end()) throw Error("ranks have different parts of a model");
  return *found->second.executor;
}

void FollowingParts::obey(RankCommand command, RankPart part, MessageReader& message) {
  DeviceExecutor& own = executor(part);
  Batch& batch = part == kModelPart ? batch_ : predictors_.at(part).batch;
  switch (command) {
    case RankCommand::read_sources:
      batch = message.take<Batch>();
      own.read_sources(batch);
      own.launch();
      break;
    case RankCommand::forward:
      batch = message.take<Batch>();
      own.forward(batch);
      begin_together(own, sharing_);
      break;
    case RankCommand::copy:
      own.copy(message.take<std::vector<std::vector<PageCopy>>>());
      break;
    case RankCommand::make_predictor: {
      const auto made = message.take<RankPart>();
      const auto limits = message.take<RunnerLimits>();
      predictors_[made] = {own.make_own_predictor(static_cast<size_t>(made) - 1, limits)};
      break;
    }
    case RankCommand::take_hidden_states:
      own.take_hidden_states(message.take<std::vector<int32_t>>());
      break;
    case RankCommand::take_own_states:
      own.take_own_states(message.take<std::vector<int32_t>>());
      break;
    case RankCommand::take_kept_states:
      own.take_kept_states(message.take<std::vector<int32_t>>());
      break;
    case RankCommand::compact_kept_states:
      own.compact_kept_states(message.take<std::vector<int32_t>>());
      break;
    case RankCommand::keep_hidden_states: {
      const auto first = message.take<int32_t>();
      const auto count = message.take<int32_t>();
      own.keep_hidden_states(first, count, message.take<int32_t>());
      break;
    }
    case RankCommand::finish:
    case RankCommand::end:
      throw Error("ranks are of different versions of the program");
  }
}

void follow(DeviceExecutor& executor, RankLink& link) {
  FollowingParts parts(executor, link);
  while (true) {
    MessageReader message(link.listen());
    const auto command = message.take<RankCommand>();
    if (command == RankCommand::end) return;
    const auto part = message.take<RankPart>();
    parts.obey(command, part, message);
  }
}

}  // namespace faststream
