#include "engine/scheduler.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <utility>

#include "engine/entry_tokens.h"
#include "support/error.h"

namespace faststream {
namespace {

double step_seconds(const SchedulerLimits& limits) {
  return limits.ends_together ? StepBudget::kBatchSeconds : StepBudget::kSeconds;
}

}  // namespace

bool Scheduler::Order::operator()(const Entry* a, const Entry* b) const {
  return a->priority != b->priority ? a->priority > b->priority : a->arrival < b->arrival;
}

Scheduler::Scheduler(Runner& runner, const SchedulerLimits& limits)
    : runner_(runner),
      limits_(limits),
      threads_(limits.threads),
      alone_(limits.first_tokens, limits.max_step_tokens, step_seconds(limits)),
      beside_(limits.first_tokens, limits.chunk, step_seconds(limits)),
      cache_(runner.pages()) {
  running_.reserve(static_cast<size_t>(limits.slots));
}

Scheduler::~Scheduler() {
  wait_for_launches();
  for (Entry* entry : running_) {
    for (Sequence& sequence : entry->sequences) runner_.release(sequence);
  }
}

void Scheduler::add(Entry& entry) {
  if (!entry.has_tokens) entry.rope_length = runner_.config().rope_length(text_length(entry));
  waiting_.insert(&entry);
  n_waiting_ += entry.group->width();
}

void Scheduler::remove(Entry& entry) {
  if (waiting_.erase(&entry) == 0) {
    leave(entry, true);
  } else {
    n_waiting_ -= entry.group->width();
  }
}

// How many steps are to be in flight.
size_t Scheduler::n_turns() const {
  return n_running_ / 2 >= limits_.turn_slots && !is_short_of_pages_ ? 2 : 1;
}

void Scheduler::begin_step() {
  has_begun_ = false;
  if (in_flight_.size() >= n_turns()) return;
  step_ = in_flight_.empty() || in_flight_.front() != steps_.data() ? steps_.data() : &steps_[1];
  try {
    begin_outgrown_again();
    admit();
    plan();
    if (step_->parts.empty()) return let_go(*step_);
    begin(*step_, 0, step_->parts.size());
    in_flight_.push_back(step_);
    has_begun_ = true;
  } catch (const std::exception& error) {  // not the device: memory for the bookkeeping
    fail_all(error.what());
  }
}

std::vector<Scheduler::Outcome> Scheduler::end_step() {
  if (!has_begun_ || in_flight_.size() >= n_turns()) finish_oldest();
  return std::exchange(outcomes_, {});
}

std::vector<Scheduler::Outcome> Scheduler::end_all_steps() {
  while (!in_flight_.empty()) finish_oldest();
  return std::exchange(outcomes_, {});
}

// Takes what came of the oldest step in flight, if there is one.
void Scheduler::finish_oldest() {
  if (in_flight_.empty()) return;
  Step& step = *in_flight_.front();
  in_flight_.erase(in_flight_.begin());
  try {
    finish(step, 0, step.parts.size());
    let_go(step);
  } catch (const std::exception& error) {
    fail_all(error.what());
  }
}

// The step is over for those that it ran, and for those that it had no room for.
void Scheduler::let_go(const Step& step) {
  for (Entry* entry : running_) {
    if (entry->step == &step) entry->step = nullptr;
  }
}

bool Scheduler::wants_tokens(const Step& step, const Part& part) {
  return part.n_inputs > 0 && step.inputs[part.first_input].logits != NewTokens::Logits::none;
}

// Begins parts [first, first + count) of a step as one batch: their sequences advance, and the
// device is told, where steps take turns by a thread that does nothing else.
void Scheduler::begin(Step& step, size_t first, size_t count) {
  const std::span<const Part> parts = std::span(step.parts).subspan(first, count);
  const Part& back = parts.back();
  const auto copies = std::span(step.copies)
                          .subspan(parts.front().first_copy,
                                   back.first_copy + back.n_copies - parts.front().first_copy);
  step.has_advanced = false;
  step.error.clear();
  try {
    step.copies_of_groups = runner_.copies_of_groups(copies);
    runner_.advance(inputs_of(step, parts));
    step.has_advanced = true;
  } catch (const std::exception& error) {
    step.error = error.what();
    return;
  }
  if (n_turns() == 1 && in_flight_.empty()) return launch(step, parts);
  if (!launcher_) launcher_.emplace();
  step.launch = launcher_->run([this, &step, parts] { launch(step, parts); });
}

// Has the device begin with parts that were begun. May run beside all that is done for other parts.
void Scheduler::launch(Step& step, std::span<const Part> parts) {
  const std::span<const NewTokens> inputs = inputs_of(step, parts);
  step.launched = Clock::now();
  step.n_tokens = step.n_source_tokens = 0;
  step.choices.reset();
  step.rules.clear();
  try {
    if (!step.copies_of_groups.front().empty()) runner_.copy(step.copies_of_groups);
    if (inputs.empty()) return;
    step.n_tokens = step.n_source_tokens = read_sources(parts);
    runner_.compute(inputs);
    for (const NewTokens& input : inputs)
      step.n_tokens += static_cast<int32_t>(input.tokens.size());
    for (const Part& part : parts) {
      if (!wants_tokens(step, part)) continue;
      for (size_t i = 0; i < part.n_inputs; ++i) {
        step.rules.push_back(part.entry->group->sampling_row(i));
      }
    }
    step.choices = runner_.choose(step.rules);
  } catch (const std::exception& error) {
    step.error = error.what();
  }
}

// Afterwards the device is this thread's alone, until the next begin().
void Scheduler::wait_for_launches() {
  for (const Step& step : steps_) {
    if (step.launch.valid()) step.launch.wait();
  }
}

// Waits for parts [first, first + count), which were begun as one batch; has each alone processed
// if the device failed, then or now.
void Scheduler::finish(Step& step, size_t first, size_t count) {
  const std::span<Part> parts = std::span(step.parts).subspan(first, count);
  if (step.launch.valid()) step.launch.get();
  if (step.error.empty() && step.choices) {
    try {
      step.choices->wait();
      note_time(step, parts);
    } catch (const std::exception& failure) {
      step.error = failure.what();
    }
  }
  if (!step.error.empty()) {
    // Of a step that failed no sequence has advanced.
    if (step.has_advanced) Runner::take_back(inputs_of(step, parts));
    if (count == 1) return fail(*parts.front().entry, step.error);
    for (size_t i = first; i < first + count; ++i) {
      begin(step, i, 1);
      finish(step, i, 1);
    }
    return;
  }
  counts_.prompt_tokens += step.n_source_tokens;
  advance_groups(step, parts);
  for (const Part& part : parts) {
    try {
      if (!part.error.empty()) throw Error(part.error);
      follow(part);
    } catch (const std::exception& failure) {  // the group cannot go on, or memory for it
      fail(*part.entry, failure.what());
    }
  }
}

// Has the groups of these parts accept their tokens, in several threads where they are many: next
// to a device that is fast this is the time of a step that it waits for.
void Scheduler::advance_groups(Step& step, std::span<Part> parts) {
  constexpr size_t kWorthAThread = 64;  // sequences
  if (step.sampled.size() < step.rules.size()) step.sampled.resize(step.rules.size());
  size_t n_rows = 0;
  for (Part& part : parts) {
    try {
      note_prompt(step, part);
    } catch (const std::exception& failure) {
      part.error = failure.what();
    }
    part.first_row = n_rows;
    part.has_tokens = wants_tokens(step, part);
    if (part.has_tokens) n_rows += part.n_inputs;
  }
  const size_t n_inputs = std::max<size_t>(inputs_of(step, parts).size(), 1);
  const auto grain = static_cast<int64_t>((kWorthAThread * parts.size() - 1) / n_inputs + 1);
  const auto advance = [&](int64_t first, int64_t last) {
    for (Part& part :
         parts.subspan(static_cast<size_t>(first), static_cast<size_t>(last - first))) {
      if (!part.has_tokens || !part.error.empty()) continue;
      try {
        const auto sampled = std::span(step.sampled).subspan(part.first_row, part.n_inputs);
        for (size_t i = 0; i < sampled.size(); ++i) {
          step.choices->read(part.first_row + i, sampled[i]);
        }
        part.parents = part.entry->group->accept(sampled);
      } catch (const std::exception& failure) {
        part.error = failure.what();
      }
    }
  };
  threads_.parallel_for(static_cast<int64_t>(parts.size()), grain, advance);
}

// Reads the sources of these parts that are not read; returns how many tokens that were.
int32_t Scheduler::read_sources(std::span<const Part> parts) {
  std::vector<Source*> unread;
  int32_t n_tokens = 0;
  for (const Part& part : parts) {
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

// The inputs of consecutive parts.
std::span<const NewTokens> Scheduler::inputs_of(const Step& step, std::span<const Part> parts) {
  const size_t first = parts.front().first_input;
  return std::span(step.inputs)
      .subspan(first, parts.back().first_input + parts.back().n_inputs - first);
}

// Notes how long the device took for what was launched: since then, or since it was done with what
// was launched before.
void Scheduler::note_time(const Step& step, std::span<const Part> parts) {
  const Clock::time_point begin = std::max(step.launched, last_end_);
  last_end_ = Clock::now();
  const double seconds = std::chrono::duration<double>(last_end_ - begin).count();
  alone_.measured(step.n_tokens, seconds);
  size_t n_decode = 0;
  for (const Part& part : parts) n_decode += part.is_decode ? part.n_inputs : 0;
  if (n_decode > 0) beside_.measured(step.n_tokens - static_cast<int32_t>(n_decode), seconds);
  counts_.device_seconds += seconds;
  ++counts_.steps;
}

// Counts and caches the tokens of prompts that a part has processed, before its group goes on.
void Scheduler::note_prompt(const Step& step, const Part& part) {
  const Entry& entry = *part.entry;
  for (const NewTokens& input : inputs_of(step, {&part, 1})) {
    if (input.tokens.size() == 1 && entry.has_tokens) continue;
    counts_.prompt_tokens += static_cast<int64_t>(input.tokens.size());
    remember(entry, static_cast<size_t>(input.sequence - entry.sequences.data()));
  }
}

// Notes that a part was processed and its tokens, if any, accepted.
void Scheduler::follow(const Part& part) {
  Entry& entry = *part.entry;
  Outcome outcome{.entry = &entry, .n_cached = entry.sequences.front().n_cached};
  if (part.has_tokens) {
    ++counts_.generated_tokens;
    entry.has_tokens = true;
    outcome.has_token = true;
    if (entry.group->finished()) {
      leave(entry, true);
    } else {
      follow(entry, part.parents);
    }
  }
  outcomes_.push_back(std::move(outcome));
}

// Has the prefix cache keep what sequence i of an entry has in its pages.
void Scheduler::remember(const Entry& entry, size_t i) {
  if (!limits_.prefix_sharing) return;
  const Sequence& sequence = entry.sequences[i];
  const auto n_cached = static_cast<size_t>(sequence.n_cached);
  cache_.insert(wanted_tokens(entry, i).first(n_cached), sequence.pages, sequence.rope_length);
}

// Gives each of an entry's sequences the pages of the one that it goes on from.
void Scheduler::follow(Entry& entry, std::span<const int32_t> parents) {
  constexpr size_t kNowhere = SIZE_MAX;
  std::vector<Sequence>& sequences = entry.sequences;
  const size_t n_before = sequences.size();
  std::vector<size_t> moved_to(n_before, kNowhere);
  sequences.reserve(n_before + parents.size());
  for (const int32_t parent : parents) {
    size_t& place = moved_to[static_cast<size_t>(parent)];
    if (place == kNowhere) {
      place = sequences.size();
      sequences.push_back(std::exchange(sequences[static_cast<size_t>(parent)], {}));
    } else {
      sequences.push_back(runner_.fork(sequences[place]));
    }
  }
  for (size_t i = 0; i < n_before; ++i) runner_.release(sequences[i]);
  sequences.erase(sequences.begin(), sequences.begin() + static_cast<std::ptrdiff_t>(n_before));
}

// Takes an entry out of its slots; `keep_pages` for those who have the same prefix.
void Scheduler::leave(Entry& entry, bool keep_pages) {
  // A group that has ended no longer has all its sequences.
  const bool is_whole = entry.sequences.size() <= entry.group->n_sequences();
  for (size_t i = 0; i < entry.sequences.size() && keep_pages && is_whole; ++i) {
    remember(entry, i);
  }
  const auto source = sources_.find(entry.group->source());
  for (Sequence& sequence : entry.sequences) runner_.release(sequence);
  if (source != sources_.end() && source->use_count() == 1) sources_.erase(source);
  entry.sequences.clear();
  entry.step = nullptr;
  running_.erase(std::ranges::find(running_, &entry));
  n_running_ -= entry.group->width();
}

void Scheduler::fail(Entry& entry, std::string_view error) {
  leave(entry, false);
  outcomes_.push_back({.entry = &entry, .error = std::string(error)});
}

void Scheduler::fail_all(std::string_view error) {
  wait_for_launches();
  for (Step& step : steps_) step.choices.reset();
  in_flight_.clear();
  while (!running_.empty()) fail(*running_.back(), error);
}

}  // namespace faststream
