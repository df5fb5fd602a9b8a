// A request in work.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/generation.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/sequence_group.h"
#include "engine/speculation.h"
#include "text/tokenizer.h"

namespace faststream {

struct Job;

/// What the scheduler runs for a job: a sample, or its beam search.
struct Part : Scheduler::Entry {
  Part(Job& owner, int32_t number, std::unique_ptr<SequenceGroup> what)
      : job(&owner), sample(number), owned(std::move(what)) {
    group = owned.get();
  }

  Job* job;
  int32_t sample;
  std::unique_ptr<SequenceGroup> owned;
};

/// A request in work, of the thread that runs it once it is submitted.
struct Job {
  using Clock = std::chrono::steady_clock;

  Job(const Request& request, GenerationRules&& common, const Tokenizer& tokenizer,
      Speculation::Kind speculation);

  /// Once all parts have ended.
  [[nodiscard]] Result take_result();

  RequestId id = 0;
  GenerationRules rules;
  int32_t n;
  int32_t logprobs;
  Callbacks callbacks;
  std::optional<Request> request = {};  ///< as it was, where another replica may have to answer it
  std::vector<std::unique_ptr<Part>> parts;
  int32_t unfinished = 0;                              ///< of parts
  std::vector<PositionLogprobs> prompt_logprobs = {};  ///< as Result has it
  Clock::time_point submitted = Clock::now();
  std::optional<Clock::time_point> started = {};
  std::optional<Clock::time_point> first_token = {};
  Clock::time_point last_token = {};

 private:
  void add(std::unique_ptr<SequenceGroup> group, int32_t priority);
};

}  // namespace faststream
