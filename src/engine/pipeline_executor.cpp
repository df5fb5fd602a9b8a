#include "engine/pipeline_executor.h"

#include <cstddef>
#include <functional>
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
  using Choose = std::function<std::unique_ptr<Choices>()>;

  /// choose: called once they are waited for.
  StepChoices(std::recursive_mutex& device, Choose choose)
      : device_(device), choose_(std::move(choose)) {}
  StepChoices(const StepChoices&) = delete;
  StepChoices& operator=(const StepChoices&) = delete;
  // What the device has for choices goes back to it, which another thread may be using.
  ~StepChoices() override {
    const std::scoped_lock lock(device_);
    chosen_.reset();
  }

  void wait() override {
    if (!chosen_) chosen_ = choose_();
    chosen_->wait();
  }
  void read(size_t r, SampledToken& to) override { chosen_->read(r, to); }

 private:
  std::recursive_mutex& device_;
  Choose choose_;
  std::unique_ptr<Choices> chosen_;
};

// Of a predictor, which runs while other threads wait for the model's choices.
class PipelineExecutor::Predictor final : public RankedExecutor {
 public:
  Predictor(std::unique_ptr<DeviceExecutor> own, const RankedExecutor& leader, RankPart part)
      : RankedExecutor(std::move(own), leader, part) {}

  [[nodiscard]] std::unique_ptr<Executor> make_predictor(size_t predictor,
                                                         const RunnerLimits& limits) override {
    return std::make_unique<Predictor>(make_own_predictor(predictor, limits), *this,
                                       part_of_predictor(predictor));
  }
  std::unique_ptr<Choices> choose(std::span<const SamplingRow> rules) override {
    return std::make_unique<StepChoices>(device(), [this, rules] {
      const std::scoped_lock lock(device());
      return RankedExecutor::choose(rules);
    });
  }
  std::vector<float> logits() override {
    const std::scoped_lock lock(device());
    return RankedExecutor::logits();
  }
  void wait() override {}
};

PipelineExecutor::PipelineExecutor(std::unique_ptr<DeviceExecutor> own, ModelConfig config,
                                   RankLink& link, RankLink& of_stage)
    : RankedExecutor(std::move(own), link, of_stage), config_(std::move(config)) {}

std::unique_ptr<Executor> PipelineExecutor::make_predictor(size_t predictor,
                                                           const RunnerLimits& limits) {
  return std::make_unique<Predictor>(make_own_predictor(predictor, limits), *this,
                                     part_of_predictor(predictor));
}

void PipelineExecutor::read_sources(const Batch& /*batch*/) {
  throw std::logic_error("a model with an encoder in stages");
}

void PipelineExecutor::forward(const Batch& batch) {
  together(rank_message(RankCommand::forward).put(batch), [&](DeviceExecutor& own) {
    pass_through(own, link(), sharing(), batch);
    ++n_begun_;
  });
}

std::unique_ptr<Choices> PipelineExecutor::choose(std::span<const SamplingRow> rules) {
  const std::scoped_lock lock(device());
  return std::make_unique<StepChoices>(
      device(), [this, step = n_begun_, rules] { return choose(step, rules); });
}

std::unique_ptr<Choices> PipelineExecutor::choose(int64_t step,
                                                  std::span<const SamplingRow> rules) {
  const Bytes rows = rows_.take(link(), own().config().rank, step);
  const std::scoped_lock lock(device());
  finish(step, rows);
  return own().choose(rules);
}

std::vector<float> PipelineExecutor::logits() {
  const Bytes rows = rows_.take(link(), own().config().rank, n_begun_);
  const std::scoped_lock lock(device());
  finish(n_begun_, rows);
  return own().logits();
}

void PipelineExecutor::finish(int64_t step, std::span<const std::byte> rows) {
  if (n_finished_ == step) return;
  together(rank_message(RankCommand::finish).put(step), [&](DeviceExecutor& own) {
    own.finish(rows);
    begin_together(own, sharing());
    n_finished_ = step;
  });
}

void follow_stage(DeviceExecutor& executor, RankLink& link, RankLink& of_stage) {
  const RankPlace& place = executor.config().rank;
  FollowingParts parts(executor, of_stage);
  Batch batch;  // of the last step, which the device may still read
  StageRows rows;
  while (true) {
    MessageReader message(link.listen());
    const auto command = message.take<RankCommand>();
    if (command == RankCommand::end) return;
    const auto part = message.take<RankPart>();
    const bool is_of_model = part == kModelPart && command != RankCommand::make_predictor;
    if (is_of_model && command == RankCommand::forward) {
      batch = message.take<Batch>();
      pass_through(executor, link, of_stage, batch);
    } else if (place.stage > 0 && (!is_of_model || command == RankCommand::finish)) {
      continue;  // the first stage's
    } else if (command == RankCommand::finish) {
      executor.finish(rows.take(link, place, message.take<int64_t>()));
      begin_together(executor, of_stage);
    } else {
      parts.obey(command, part, message);
    }
  }
}

}  // namespace faststream
