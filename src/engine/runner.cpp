#include "engine/runner.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/cache_kinds.h"
#include "engine/kv_groups.h"
#include "engine/load_weights.h"
#include "engine/source.h"
#include "engine/text_pages.h"
#include "support/error.h"

namespace faststream {
namespace {

void check_tokens(std::span<const int32_t> tokens, int64_t vocab) {
  for (const int32_t token : tokens) {
    if (token >= 0 && token < vocab) continue;
    throw Error("token id " + std::to_string(token) + " is outside the model's vocabulary of " +
                std::to_string(vocab));
  }
}

}  // namespace

SamplingRow sampling_row(const SamplingParams& params, int64_t position, int32_t stream) {
  return {.temperature = params.temperature,
          .top_k = params.top_k,
          .top_p = params.top_p,
          .seed = params.seed.value_or(0),
          .sequence = static_cast<uint64_t>(stream),
          .position = static_cast<uint64_t>(position),
          .min_p = params.min_p};
}

Runner::Runner(std::unique_ptr<Executor> executor)
    : executor_(std::move(executor)),
      caches_(cache_kinds(config(), kv_type()), bounds_of(limits()), limits().n_modest_pages),
      n_kv_groups_(static_cast<int32_t>(kv_groups(config(), kv_type()).size())) {}

Runner::Runner(const ModelFiles& files, Backend& backend, const RunnerLimits& limits,
               const std::function<void(size_t)>& progress)
    : Runner(std::make_unique<DeviceExecutor>(files, config_of_files(files), backend, limits,
                                              progress)) {}

void Runner::read_sources(std::span<Source* const> sources) {
  batch_ = Batch{};
  for (const Source* source : sources) {
    batch_.max_pages = std::max(batch_.max_pages, pages_for(source->n_tokens()));
  }
  int32_t* row = add_page_rows(batch_, sources.size());
  for (const Source* source : sources) {
    check_tokens(source->tokens(), config().encoder->vocab);
    batch_.add_sequence(source->tokens(), 0, config().encoder->rope_length(source->n_tokens()));
    std::ranges::copy(source->pages(), row);
    row += batch_.max_pages;
  }
  if (batch_.n_tokens() > limits().batch.max_tokens) {
    throw Error("sources of " + std::to_string(batch_.n_tokens()) +
                " tokens exceed the limit of a batch, " +
                std::to_string(limits().batch.max_tokens));
  }
  executor_->read_sources(batch_);
  for (Source* source : sources) source->is_read = true;
}

void Runner::step(std::span<const NewTokens> inputs) {
  begin_step(inputs);
  try {
    compute(inputs);
  } catch (...) {
    abandon_step(inputs);
    throw;
  }
  for (const NewTokens& input : inputs) {
    caches_.commit(*input.sequence, input.n_tokens(), input.n_tokens());
  }
}

void Runner::begin_step(std::span<const NewTokens> inputs) {
  check(inputs);
  size_t n_begun = 0;
  try {
    for (; n_begun < inputs.size(); ++n_begun) {
      caches_.begin(*inputs[n_begun].sequence, inputs[n_begun].n_tokens());
    }
  } catch (...) {
    abandon_step(inputs.first(n_begun));
    throw;
  }
}

void Runner::abandon_step(std::span<const NewTokens> inputs) {
  for (const NewTokens& input : inputs) caches_.abandon(*input.sequence, input.n_tokens());
}

void Runner::compute(std::span<const NewTokens> inputs) {
  pack(inputs);
  executor_->forward(batch_);
}

void Runner::sample(std::span<const SamplingRow> rules, std::vector<SampledToken>& sampled) {
  sampled.resize(rules.size());
  const std::unique_ptr<Choices> choices = choose(rules);
  choices->wait();
  for (size_t r = 0; r < sampled.size(); ++r) choices->read(r, sampled[r]);
}

// Whether a step's token is what the last one chose.
bool Runner::reads_choice(std::span<const int32_t> tokens) const {
  if (tokens.size() != 1 || !executor_->reads_choices()) return false;
  const int32_t row = row_of_choice(tokens.front());
  return row >= 0 && row < n_logits();
}

// Everything that begin_step() may refuse, so that a refusal changes nothing.
void Runner::check(std::span<const NewTokens> inputs) const {
  int64_t tokens = 0;
  int64_t logits = 0;
  int64_t pages = 0;
  for (const NewTokens& input : inputs) {
    if (input.tokens.empty()) throw Error("a sequence in a batch has no tokens");
    if (!reads_choice(input.tokens)) check_tokens(input.tokens, config().vocab);
    check_tokens(input.proposed, config().vocab);
    tokens += input.n_tokens();
    logits += input.n_logits();
    pages += input.sequence->missing_pages(int64_t{input.sequence->n_cached} + input.n_tokens());
  }
  if (tokens > limits().batch.max_tokens || logits > limits().batch.max_logits) {
    throw Error("a batch of " + std::to_string(tokens) + " tokens and " + std::to_string(logits) +
                " rows of logits exceeds the limits of " +
                std::to_string(limits().batch.max_tokens) + " and " +
                std::to_string(limits().batch.max_logits));
  }
  const int32_t n_free = caches_.pages().n_free();
  if (pages > n_free) {
    throw Error("the KV cache has " + std::to_string(n_free) + " free pages of " +
                std::to_string(kPageTokens) + " tokens, " + std::to_string(pages) +
                " are needed; give a smaller context or fewer sequences");
  }
}

void Runner::pack(std::span<const NewTokens> inputs) {
  batch_ = Batch{};
  batch_.states_first = batch_.states_end = 0;
  std::vector<int32_t> joined;
  for (const NewTokens& input : inputs) {
    std::span<const int32_t> tokens = input.tokens;
    if (!input.proposed.empty()) {
      joined.assign(tokens.begin(), tokens.end());
      joined.insert(joined.end(), input.proposed.begin(), input.proposed.end());
      tokens = joined;
    }
    batch_.add_sequence(tokens, input.sequence->n_cached - input.n_tokens(),
                        input.sequence->kind.rope_length, input.one_by_one);
    if (input.with_states) {
      if (batch_.states_end == 0) batch_.states_first = batch_.n_tokens() - input.n_tokens();
      batch_.states_end = batch_.n_tokens();
    }
    for (int32_t n = input.n_logits(); n > 0; --n) {
      batch_.logit_rows.push_back(batch_.n_tokens() - n);
    }
    if (const int32_t adapter = input.sequence->kind.adapter; adapter > 0) {
      batch_.set_adapter(adapter - 1);
    }
    batch_.max_pages =
        std::max(batch_.max_pages, static_cast<int32_t>(input.sequence->pages.size()));
  }
  // What adapters change is of all rows, or of those of logits.
  if (!batch_.adapter_tokens.empty() && batch_.states_end > 0) {
    batch_.states_first = 0;
    batch_.states_end = batch_.n_tokens();
  }
  batch_.n_groups = n_kv_groups_;
  caches_.pack(inputs, batch_);
}

}  // namespace faststream
