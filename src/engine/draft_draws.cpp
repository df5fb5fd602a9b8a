#include "engine/draft_draws.h"

#include <algorithm>
#include <utility>

namespace faststream {

bool may_be_unread(const Backend& backend, const Executor& executor,
                   std::span<const DraftTask> tasks) {
  return may_run_ahead(backend, executor) && std::ranges::all_of(tasks, [](const DraftTask& task) {
           return task.n_tokens < 2 || task.group->sampling_row_ahead(task.n_tokens - 1);
         });
}

SamplingRow draft_row(const SequenceGroup& group, std::span<const int32_t> tokens) {
  SamplingRow row = group.sampling_row(0);
  if (!tokens.empty()) {
    const bool is_read = tokens.back() >= 0;
    row = is_read ? group.sampling_row_after(tokens)
                  : group.sampling_row_ahead(static_cast<int32_t>(tokens.size())).value();
  }
  row.n_logprobs = -1;
  return row;
}

void DraftDraws::begin(Runner& runner, std::vector<SamplingRow> rules,
                       std::span<const Place> places, int32_t n_tokens, const Stopwatch& watch) {
  Draw& draw = unread_.emplace_back(Draw{.rules = std::move(rules),
                                         .choices = nullptr,
                                         .places = {places.begin(), places.end()},
                                         .indices = {},
                                         .n_tokens = n_tokens,
                                         .watch = watch});
  draw.choices = runner.choose(draw.rules);
  for (const Place& place : places) {
    draw.indices.push_back(place.tokens->size());
    place.tokens->push_back(chosen_from(place.row));
  }
}

void DraftDraws::read(std::vector<DraftPass>& passes) {
  SampledToken sampled;
  for (; !unread_.empty(); unread_.pop_front()) {
    const Draw& draw = unread_.front();
    draw.choices->wait();
    for (size_t i = 0; i < draw.places.size(); ++i) {
      draw.choices->read(static_cast<size_t>(draw.places[i].row), sampled);
      (*draw.places[i].tokens)[draw.indices[i]] = sampled.token;
    }
    double seconds = draw.watch.seconds();
    if (last_end_) seconds = std::min(seconds, last_end_->seconds());
    passes.push_back({.n_tokens = draw.n_tokens, .seconds = seconds});
    last_end_.emplace();
  }
}

}  // namespace faststream
