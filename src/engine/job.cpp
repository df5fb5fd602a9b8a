#include "engine/job.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/beam_search.h"

namespace faststream {
namespace {

double seconds_between(Job::Clock::time_point from, Job::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

Job::Job(const Request& request, GenerationRules&& common, const Tokenizer& tokenizer,
         Speculation::Kind speculation)
    : rules(std::move(common)), n(request.n), logprobs(request.logprobs) {
  if (rules.search.beams > 1) {
    add(std::make_unique<BeamSearch>(rules, tokenizer), request.priority);
  }
  const int32_t n_samples = rules.search.beams > 1 ? 0 : std::max(request.n, request.best_of);
  for (int32_t i = 0; i < n_samples; ++i) {
    add(std::make_unique<SampleGroup>(rules, tokenizer, i, speculation), request.priority);
  }
}

void Job::add(std::unique_ptr<SequenceGroup> group, int32_t priority) {
  parts.push_back(std::make_unique<Part>(*this, unfinished++, std::move(group)));
  parts.back()->priority = priority;
  parts.back()->most_tokens = rules.max_new_tokens();
}

Result Job::take_result() {
  Result result;
  for (const auto& part : parts) {
    std::ranges::move(part->group->take_outputs(), std::back_inserter(result.outputs));
  }
  if (result.outputs.size() > static_cast<size_t>(n)) {
    std::stable_sort(
        result.outputs.begin(), result.outputs.end(),
        [](const Output& a, const Output& b) { return a.mean_logprob > b.mean_logprob; });
    result.outputs.resize(static_cast<size_t>(n));
  }
  if (logprobs < 0) {
    for (Output& output : result.outputs) output.logprobs.clear();
  }
  result.prompt_logprobs = std::move(prompt_logprobs);
  result.prompt_tokens = static_cast<int64_t>(rules.asked().size());
  result.cached_tokens = std::max<int64_t>(parts.front()->cached_tokens, 0);
  result.seed = rules.sampling.seed.value_or(0);
  if (started) result.queue_seconds = seconds_between(submitted, *started);
  if (first_token) {
    result.prompt_seconds = seconds_between(submitted, *first_token);
    result.generation_seconds = seconds_between(*first_token, last_token);
  }
  return result;
}

}  // namespace faststream
