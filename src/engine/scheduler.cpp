#include "engine/scheduler.h"

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>

#include "engine/source.h"
#include "support/error.h"

namespace faststream {
namespace {

bool wants_tokens(const StepPlan& plan, const StepPlan::Part& part) {
  return part.n_inputs > 0 && plan.inputs[part.first_input].logits != NewTokens::Logits::none;
}

// All whose part it had have ended.
bool nobody_takes_part(const StepPlan& plan) {
  return std::ranges::all_of(plan.parts,
                             [](const StepPlan::Part& part) { return part.entry == nullptr; });
}

}  // namespace

Scheduler::Scheduler(Runner& runner, const SchedulerLimits& limits)
    : runner_(runner),
      threads_(limits.threads),
      policy_(runner.caches(), runner.config(), limits,
              [this](const PageCopy& copy) {
                wait_for_launches();
                runner_.copy_pages({&copy, 1});
              }),
      steps_(static_cast<size_t>(limits.turns)),
      states_stay_(limits.states_stay) {}

Scheduler::~Scheduler() { wait_for_launches(); }

SchedulerCounts Scheduler::counts() const {
  SchedulerCounts counts = policy_.counts();
  counts.steps = n_steps_;
  counts.device_seconds = device_seconds_;
  return counts;
}

void Scheduler::begin_step() {
  has_begun_ = false;
  try {
    if (in_flight_.size() < policy_.n_turns()) {
      Step& step = idle_step();
      policy_.plan(step.plan, !in_flight_.empty());
      if (step.plan.parts.empty()) return policy_.end_step(step.plan);
      begin(step, step.plan.parts);
      in_flight_.push_back(&step);
      has_begun_ = true;
    }
    if (in_flight_.size() == 1 && steps_.size() > 1) run_ahead();
  } catch (const std::exception& error) {  // not the device: memory for the bookkeeping
    fail_all(error.what());
  }
}

// One that is not in flight: there are more than that.
Scheduler::Step& Scheduler::idle_step() {
  return *std::ranges::find_if(steps_, [this](const Step& each) {
    return std::ranges::find(in_flight_, &each) == in_flight_.end();
  });
}

// Begins the step after the one in flight, if that can be now: it reads what that one chooses.
void Scheduler::run_ahead() {
  Step& before = *in_flight_.front();
  if (before.launch.valid() || !before.choices || !before.error.empty()) return;
  Step& step = idle_step();
  if (!policy_.plan_ahead(step.plan, before.plan)) return;
  begin(step, step.plan.parts);
  in_flight_.push_back(&step);
  has_begun_ = true;
}

std::vector<Scheduler::Outcome> Scheduler::end_step() {
  if (!has_begun_ || in_flight_.size() >= policy_.n_turns()) finish_oldest();
  return policy_.take_outcomes();
}

std::vector<Scheduler::Outcome> Scheduler::end_oldest_step() {
  finish_oldest();
  return policy_.take_outcomes();
}

// Takes what came of the oldest step in flight, if there is one.
void Scheduler::finish_oldest() {
  if (in_flight_.empty()) return;
  Step& step = *in_flight_.front();
  in_flight_.erase(in_flight_.begin());
  try {
    finish(step, step.plan.parts);
    policy_.end_step(step.plan);
    std::erase_if(in_flight_, [](const Step* each) { return nobody_takes_part(each->plan); });
    if (policy_.idle()) policy_.ended({});
  } catch (const std::exception& error) {
    fail_all(error.what());
  }
}

// Begins parts of a step as one batch: their sequences count its tokens, and the device is told,
// where steps take turns by a thread that does nothing else.
void Scheduler::begin(Step& step, Parts parts) {
  step.has_begun = false;
  step.error.clear();
  lay_out(step, parts);
  try {
    step.copies = runner_.caches().copies_of_caches(step.plan.copies_of(parts));
    runner_.begin_step(step.plan.inputs_of(parts));
    step.has_begun = true;
  } catch (const std::exception& error) {
    step.error = error.what();
    return;
  }
  // Rules of a step ahead are made before groups accept what the one before chose.
  if (step.plan.is_ahead) return launch(step, parts);
  if (policy_.n_turns() > 1 || !in_flight_.empty()) return launch_in_turn(step, parts);
  policy_.ended(std::chrono::duration<double>(Clock::now() - last_begin_).count());
  launch(step, parts);
}

// Says which rows of choices are whose.
void Scheduler::lay_out(Step& step, Parts parts) {
  step.results.assign(parts.size(), {});
  step.n_rows = 0;
  for (size_t p = 0; p < parts.size(); ++p) {
    if (!wants_tokens(step.plan, parts[p])) continue;
    PartResult& result = step.results[p];
    result.has_tokens = true;
    result.first_row = step.n_rows;
    for (const NewTokens& input : step.plan.inputs_of(parts.subspan(p, 1))) {
      result.n_rows += static_cast<size_t>(input.n_logits());
    }
    step.n_rows += result.n_rows;
  }
}

// Behind what is launched already, beside this thread if the system gives another.
void Scheduler::launch_in_turn(Step& step, Parts parts) {
  try {
    if (!launcher_) launcher_.emplace();
  } catch (const std::system_error&) {
    return launch(step, parts);
  }
  step.launch = launcher_->run([this, &step, parts] { launch(step, parts); });
}

// Has the device begin with parts that were begun. May run beside all that is done for other parts.
void Scheduler::launch(Step& step, Parts parts) {
  const std::span<const NewTokens> inputs = step.plan.inputs_of(parts);
  step.launched = Clock::now();
  step.n_source_tokens = 0;
  step.choices.reset();
  step.rules.clear();
  try {
    if (!step.copies.front().empty()) runner_.copy(step.copies);
    if (inputs.empty()) return;
    step.n_source_tokens = read_sources(parts);
    runner_.compute(inputs);
    make_rules(step, parts);
    step.choices = runner_.choose(step.rules);
  } catch (const std::exception& error) {
    step.error = error.what();
  }
}

// Says how tokens are chosen, while the device computes what from: in several threads where groups
// have rules of output, as masks take their time.
void Scheduler::make_rules(Step& step, Parts parts) {
  step.rules.resize(step.n_rows);
  const auto make = [&](size_t p) {
    if (!step.results[p].has_tokens) return;
    const StepPlan::Part& part = parts[p];
    const SequenceGroup& group = *part.entry->group;
    auto row = step.rules.begin() + static_cast<std::ptrdiff_t>(step.results[p].first_row);
    for (size_t i = 0; i < part.n_inputs; ++i) {
      *row++ = step.plan.is_ahead ? group.sampling_row_ahead(1).value() : group.sampling_row(i);
      const std::span proposed = step.plan.inputs[part.first_input + i].proposed;
      for (size_t n = 1; n <= proposed.size(); ++n) {
        *row++ = group.sampling_row_after(proposed.first(n));
      }
    }
  };
  const bool is_quick = std::ranges::none_of(
      parts, [](const StepPlan::Part& part) { return part.entry->group->has_masks(); });
  in_threads(parts.size(), is_quick ? parts.size() : 1, make);
}

// Runs a task for each part, in several threads where there are more than `grain`.
void Scheduler::in_threads(size_t n_parts, size_t grain, const std::function<void(size_t)>& task) {
  const std::lock_guard lock(threads_mutex_);
  threads_.parallel_for(static_cast<int64_t>(n_parts), static_cast<int64_t>(grain),
                        [&](int64_t first, int64_t last) {
                          for (int64_t p = first; p < last; ++p) task(static_cast<size_t>(p));
                        });
}

// Afterwards the device is this thread's alone, until the next begin().
void Scheduler::wait_for_launches() {
  for (const Step& step : steps_) {
    if (step.launch.valid()) step.launch.wait();
  }
}

// Waits for parts that were begun as one batch; has each alone processed if the device failed, then
// or now.
void Scheduler::finish(Step& step, Parts parts) {
  if (!wait_for_choices(step)) {
    if (step.plan.is_ahead || step.plan.is_followed) {
      in_flight_.clear();  // what follows has read what is not there
      return policy_.begin_again(step.plan);
    }
    if (step.has_begun) runner_.abandon_step(step.plan.inputs_of(parts));
    if (parts.size() == 1) {
      return policy_.fail(step.plan, parts.front(), step.error, step.has_begun);
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      begin(step, parts.subspan(i, 1));
      finish(step, parts.subspan(i, 1));
    }
    return;
  }
  if (step.choices) note_time(step, parts);
  accept(step, parts);
  if (in_flight_.empty() || states_stay_) policy_.tell_drafter(step.plan, parts);
  for (size_t i = 0; i < parts.size(); ++i) {
    const PartResult& result = step.results[i];
    if (parts[i].entry == nullptr) continue;
    try {
      if (!result.error.empty()) throw Error(result.error);
      policy_.follow(step.plan, parts[i], result.has_tokens, result.parents);
    } catch (const std::exception& failure) {  // the group cannot go on, or memory for it
      policy_.fail(step.plan, parts[i], failure.what());
    }
  }
}

// False where the device failed, with step.error.
bool Scheduler::wait_for_choices(Step& step) {
  if (step.launch.valid()) step.launch.get();
  if (step.error.empty() && step.choices) {
    try {
      step.choices->wait();
    } catch (const std::exception& failure) {
      step.error = failure.what();
    }
  }
  return step.error.empty();
}

// Has the groups of these parts accept their tokens, in several threads where they are many: next
// to a device that is fast this is the time of a step that it waits for.
void Scheduler::accept(Step& step, Parts parts) {
  constexpr size_t kWorthAThread = 64;  // sequences
  if (step.sampled.size() < step.n_rows) step.sampled.resize(step.n_rows);
  std::vector<PartResult>& results = step.results;
  for (size_t p = 0; p < parts.size(); ++p) {
    if (parts[p].entry == nullptr) continue;
    try {
      policy_.processed(step.plan, parts[p]);
    } catch (const std::exception& failure) {
      results[p].error = failure.what();
    }
  }
  const size_t n_inputs = std::max<size_t>(step.plan.inputs_of(parts).size(), 1);
  const size_t grain = (kWorthAThread * parts.size() - 1) / n_inputs + 1;
  const auto accept_part = [&](const StepPlan::Part& part, PartResult& result) {
    if (part.entry == nullptr || !result.has_tokens || !result.error.empty()) return;
    try {
      const auto sampled = std::span(step.sampled).subspan(result.first_row, result.n_rows);
      for (size_t i = 0; i < sampled.size(); ++i) {
        step.choices->read(result.first_row + i, sampled[i]);
      }
      result.parents = part.entry->group->accept(sampled);
    } catch (const std::exception& failure) {
      result.error = failure.what();
    }
  };
  in_threads(parts.size(), grain, [&](size_t p) { accept_part(parts[p], results[p]); });
}

// Reads the sources of these parts that are not read; returns how many tokens that were.
int32_t Scheduler::read_sources(Parts parts) {
  std::vector<Source*> unread;
  int32_t n_tokens = 0;
  for (const StepPlan::Part& part : parts) {
    Source* source = part.entry->sequences.front().source.get();
    if (source == nullptr || source->is_read || std::ranges::find(unread, source) != unread.end()) {
      continue;
    }
    unread.push_back(source);
    n_tokens += source->n_tokens();
  }
  if (!unread.empty()) runner_.read_sources(unread);
  return n_tokens;
}

// Notes how long the device took for what was launched: since then, or since it was done with what
// was launched before.
void Scheduler::note_time(const Step& step, Parts parts) {
  const Clock::time_point begin = std::max(step.launched, last_end_);
  last_end_ = Clock::now();
  const double seconds = std::chrono::duration<double>(last_end_ - begin).count();
  policy_.measured(step.plan, parts, step.n_source_tokens, seconds);
  device_seconds_ += seconds;
  ++n_steps_;
  last_begin_ = begin;
  // Of steps that take turns, or are followed, each ends while others go on.
  if (policy_.n_turns() > 1 || !in_flight_.empty()) policy_.ended({});
}

void Scheduler::fail_all(std::string_view error) {
  wait_for_launches();
  for (Step& step : steps_) step.choices.reset();
  in_flight_.clear();
  policy_.fail_all(error);
}

}  // namespace faststream
