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

bool Scheduler::Order::operator()(const Entry* a, const Entry* b) const {
  return a->priority != b->priority ? a->priority > b->priority : a->arrival < b->arrival;
}

Scheduler::Scheduler(Runner& runner, const SchedulerLimits& limits)
    : runner_(runner),
      limits_(limits),
      threads_(limits.threads),
      alone_(limits.first_tokens, limits.max_step_tokens),
      beside_(limits.first_tokens, limits.chunk),
      cache_(runner.pages()) {
  running_.reserve(static_cast<size_t>(limits.slots));
}

Scheduler::~Scheduler() {
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

void Scheduler::begin_step() {
  parts_.clear();
  try {
    begin_outgrown_again();
    admit();
    plan();
    if (!parts_.empty()) launch_error_ = launch(0, parts_.size());
  } catch (const std::exception& error) {  // not the device: memory for the bookkeeping
    fail_all(error.what());
  }
}

std::vector<Scheduler::Outcome> Scheduler::end_step() {
  try {
    if (!parts_.empty()) finish(0, parts_.size(), std::move(launch_error_));
  } catch (const std::exception& error) {
    fail_all(error.what());
  }
  return std::exchange(outcomes_, {});
}

bool Scheduler::wants_tokens(const Part& part) const {
  return part.n_inputs > 0 && inputs_[part.first_input].logits != NewTokens::Logits::none;
}

// Starts parts [first, first + count) of the step as one batch. Returns why the device failed, or
// nothing.
std::string Scheduler::launch(size_t first, size_t count) {
  const std::span<const Part> parts = std::span(parts_).subspan(first, count);
  const Part& back = parts.back();
  const auto copies = std::span(copies_).subspan(
      parts.front().first_copy, back.first_copy + back.n_copies - parts.front().first_copy);
  launched_ = std::chrono::steady_clock::now();
  n_launched_ = 0;
  try {
    if (!copies.empty()) runner_.copy_pages(copies);
    const std::span<const NewTokens> inputs = inputs_of(parts);
    if (inputs.empty()) return {};
    n_launched_ = read_sources(parts);
    runner_.step(inputs);
    for (const NewTokens& input : inputs) n_launched_ += static_cast<int32_t>(input.tokens.size());
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

// Waits for parts [first, first + count), which were launched as one batch; has each alone
// processed if the device failed, then or now.
void Scheduler::finish(size_t first, size_t count, std::string error) {
  const std::span<Part> parts = std::span(parts_).subspan(first, count);
  if (error.empty()) {
    try {
      sample(parts);
    } catch (const std::exception& failure) {
      error = failure.what();
    }
  }
  if (!error.empty()) {
    if (count == 1) return fail(*parts.front().entry, error);
    for (size_t i = first; i < first + count; ++i) finish(i, 1, launch(i, 1));
    return;
  }
  advance_groups(parts);
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
void Scheduler::advance_groups(std::span<Part> parts) {
  constexpr size_t kWorthAThread = 64;  // sequences
  std::span<SampledToken> sampled = std::span(sampled_).first(rules_.size());
  for (Part& part : parts) {
    try {
      note_prompt(part);
    } catch (const std::exception& failure) {
      part.error = failure.what();
    }
    part.sampled = sampled.first(wants_tokens(part) ? part.n_inputs : 0);
    sampled = sampled.subspan(part.sampled.size());
  }
  const size_t n_inputs = std::max<size_t>(inputs_of(parts).size(), 1);
  const auto grain = static_cast<int64_t>((kWorthAThread * parts.size() - 1) / n_inputs + 1);
  const auto advance = [&](int64_t first, int64_t last) {
    for (Part& part :
         parts.subspan(static_cast<size_t>(first), static_cast<size_t>(last - first))) {
      if (part.sampled.empty() || !part.error.empty()) continue;
      try {
        part.parents = part.entry->group->accept(part.sampled);
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
  counts_.prompt_tokens += n_tokens;
  return n_tokens;
}

// The inputs of consecutive parts.
std::span<const NewTokens> Scheduler::inputs_of(std::span<const Part> parts) const {
  const size_t first = parts.front().first_input;
  return std::span(inputs_).subspan(first,
                                    parts.back().first_input + parts.back().n_inputs - first);
}

// Has tokens chosen from the logits of what was launched. If the device fails, no sequence has
// advanced.
void Scheduler::sample(std::span<const Part> parts) {
  rules_.clear();
  const std::span<const NewTokens> inputs = inputs_of(parts);
  if (inputs.empty()) return;
  try {
    for (const Part& part : parts) {
      if (!wants_tokens(part)) continue;
      for (size_t i = 0; i < part.n_inputs; ++i) {
        rules_.push_back(part.entry->group->sampling_row(i));
      }
    }
    if (rules_.empty()) {
      runner_.wait();  // for the time that the step takes, and its errors
    } else {
      runner_.sample(rules_, sampled_);
    }
  } catch (...) {
    for (const NewTokens& input : inputs) {
      input.sequence->n_cached -= static_cast<int32_t>(input.tokens.size());
    }
    throw;
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - launched_).count();
  alone_.measured(n_launched_, seconds);
  size_t n_decode = 0;
  for (const Part& part : parts) n_decode += part.is_decode ? part.n_inputs : 0;
  if (n_decode > 0) beside_.measured(n_launched_ - static_cast<int32_t>(n_decode), seconds);
  counts_.device_seconds += seconds;
  ++counts_.steps;
}

// Counts and caches the tokens of prompts that a part has processed, before its group goes on.
void Scheduler::note_prompt(const Part& part) {
  const Entry& entry = *part.entry;
  for (const NewTokens& input : inputs_of({&part, 1})) {
    if (input.tokens.size() == 1 && entry.has_tokens) continue;
    counts_.prompt_tokens += static_cast<int64_t>(input.tokens.size());
    remember(entry, static_cast<size_t>(input.sequence - entry.sequences.data()));
  }
}

// Notes that a part was processed and its tokens, if any, accepted.
void Scheduler::follow(const Part& part) {
  Entry& entry = *part.entry;
  Outcome outcome{.entry = &entry, .n_cached = entry.sequences.front().n_cached};
  if (!part.sampled.empty()) {
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
  for (Sequence& sequence : entry.sequences) runner_.release(sequence);
  entry.sequences.clear();
  running_.erase(std::ranges::find(running_, &entry));
  n_running_ -= entry.group->width();
}

void Scheduler::fail(Entry& entry, std::string_view error) {
  leave(entry, false);
  outcomes_.push_back({.entry = &entry, .error = std::string(error)});
}

void Scheduler::fail_all(std::string_view error) {
  parts_.clear();
  while (!running_.empty()) fail(*running_.back(), error);
}

}  // namespace faststream
