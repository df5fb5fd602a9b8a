#include "engine/pipeline_executor.h"

#include <cstddef>
#include <exception>
#include <stdexcept>
#include <utility>

#include "engine/rank_commands.h"
#include "engine/ranked_executor.h"

namespace faststream {
namespace {

using Bytes = RankLink::Bytes;

// The same rank of another stage: so many stages further.
int rank_in_stage(const RankLink& link, const RankPlace& place, int further) {
  return (link.rank() + further * place.count + link.count()) % link.count();
}

// Has the stage process a step, of what the stage before has passed, and passes on what it gives.
void pass_through(DeviceExecutor& executor, RankLink& link, RankLink& of_stage,
                  const Batch& batch) {
  const RankPlace& place = executor.config().rank;
  Bytes given;
  if (place.stage > 0) given = link.take(rank_in_stage(link, place, -1));
  executor.begin_stage(batch, given);
  begin_together(executor, of_stage);
  link.pass(rank_in_stage(link, place, 1), executor.stage_rows());
}

}  // namespace

Bytes StageRows::take(RankLink& link, const RankPlace& place, int64_t step) {
  for (; n_come_ < step; ++n_come_) {
    waiting_[n_come_ + 1] = link.take(rank_in_stage(link, place, -1));
  }
  const auto found = waiting_.extract(step);
  return found.empty() ? Bytes() : std::move(found.mapped());
}

class PipelineExecutor::StepChoices final : public Choices {
 public:
  StepChoices(PipelineExecutor& executor, int64_t step, std::span<const SamplingRow> rules)
      : executor_(executor), step_(step), rules_(rules) {}
  StepChoices(const StepChoices&) = delete;
  StepChoices& operator=(const StepChoices&) = delete;
  // What the device has for choices goes back to it, which another thread may be using.
  ~StepChoices() override {
    const std::scoped_lock lock(executor_.device_);
    chosen_.reset();
  }

  void wait() override {
    if (!chosen_) chosen_ = executor_.choose(step_, rules_);
    chosen_->wait();
  }
  void read(size_t r, SampledToken& to) override { chosen_->read(r, to); }

 private:
  PipelineExecutor& executor_;
  int64_t step_;
  std::span<const SamplingRow> rules_;
  std::unique_ptr<Choices> chosen_;
};

PipelineExecutor::PipelineExecutor(std::unique_ptr<DeviceExecutor> own, ModelConfig config,
                                   RankLink& link, RankLink& of_stage)
    : LeadingExecutor(std::move(own), link), config_(std::move(config)), of_stage_(of_stage) {}

// Does what the others are told, too: where it fails here they have gone another way.
template <typename Task>
void PipelineExecutor::together(Task task) {
  try {
    task();
  } catch (const std::exception& error) {
    link().fail(error.what());
    throw;
  }
}

void PipelineExecutor::read_sources(const Batch& /*batch*/) {
  throw std::logic_error("a model with an encoder in stages");
}

void PipelineExecutor::forward(const Batch& batch) {
  const std::scoped_lock lock(device_);
  together([&] {
    link().tell(rank_message(RankCommand::forward).put(batch).bytes());
    pass_through(own(), link(), of_stage_, batch);
    ++n_begun_;
  });
}

std::unique_ptr<Choices> PipelineExecutor::choose(std::span<const SamplingRow> rules) {
  const std::scoped_lock lock(device_);
  return std::make_unique<StepChoices>(*this, n_begun_, rules);
}

std::unique_ptr<Choices> PipelineExecutor::choose(int64_t step,
                                                  std::span<const SamplingRow> rules) {
  const Bytes rows = rows_.take(link(), own().config().rank, step);
  const std::scoped_lock lock(device_);
  finish(step, rows);
  return own().choose(rules);
}

std::vector<float> PipelineExecutor::logits() {
  const Bytes rows = rows_.take(link(), own().config().rank, n_begun_);
  const std::scoped_lock lock(device_);
  finish(n_begun_, rows);
  return own().logits();
}

void PipelineExecutor::finish(int64_t step, std::span<const std::byte> rows) {
  if (n_finished_ == step) return;
  together([&] {
    link().tell(rank_message(RankCommand::finish).put(step).bytes());
    own().finish(rows);
    begin_together(own(), of_stage_);
    n_finished_ = step;
  });
}

void PipelineExecutor::copy(std::span<const std::vector<PageCopy>> copies) {
  const std::scoped_lock lock(device_);
  together([&] {
    link().tell(copy_message(copies).bytes());
    own().copy(copies);
  });
}

void follow_stage(DeviceExecutor& executor, RankLink& link, RankLink& of_stage) {
  const RankPlace& place = executor.config().rank;
  Batch batch;  // of the last step, which the device may still read
  StageRows rows;
  while (true) {
    MessageReader reader(link.listen());
    switch (reader.take<RankCommand>()) {
      case RankCommand::forward:
        batch = reader.take<Batch>();
        pass_through(executor, link, of_stage, batch);
        break;
      case RankCommand::finish:
        if (place.stage == 0) {
          executor.finish(rows.take(link, place, reader.take<int64_t>()));
          begin_together(executor, of_stage);
        }
        break;
      case RankCommand::copy:
        executor.copy(reader.take<std::vector<std::vector<PageCopy>>>());
        break;
      case RankCommand::read_sources:
      case RankCommand::end:
        return;
    }
  }
}

}  // namespace faststream
