#include "engine/runner.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/cache_kinds.h"
#include "engine/kv_groups.h"
#include "engine/source.h"
#include "engine/text_pages.h"
#include "support/error.h"

namespace faststream {
namespace {

CacheBounds bounds_of(const RunnerLimits& limits) {
  return {.n_pages = limits.n_pages,
          .sequences = limits.sequences,
          .step_tokens = limits.batch.max_tokens};
}

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

Runner::Runner(const ModelFile& file, Backend& backend, const RunnerLimits& limits,
               const std::function<void(size_t)>& progress)
    : config_(read_config(file)),
      backend_(backend),
      limits_(limits),
      cache_kinds_(cache_kinds(config_, kv_type())),
      caches_(cache_kinds_, bounds_of(limits), limits.n_modest_pages) {
  model_ =
      make_model(config_, load_weights(file, config_, backend, progress), backend, limits.batch);
  allocate_caches();
  logits_memory_ =
      backend.allocate(static_cast<size_t>(limits.batch.max_logits) *
                       static_cast<size_t>(logits_stride(config_.vocab)) * sizeof(float));
}

KvType Runner::kv_type() const { return {backend_.kv_dtype(config_.weight_format), limits_.kv}; }

// Memory of the caches, one after the other, and of each its layers'.
void Runner::allocate_caches() {
  const CacheBounds bounds = bounds_of(limits_);
  kv_bytes_ = bytes_of(cache_kinds_, bounds);
  kv_memory_ = backend_.allocate(kv_bytes_);
  std::byte* memory = kv_memory_.get();
  const std::vector<KvGeometry> geometries = kv_geometries(config_);
  kv_.resize(geometries.size());
  for (const KvGroup& group : kv_groups(config_, kv_type())) {
    const int32_t n_pages = pages_of_group(group, bounds);
    const auto index = static_cast<int32_t>(kv_groups_.size());
    std::vector<KvLayer>& of_group = kv_groups_.emplace_back();
    for (const size_t n : group.layers) {
      const KvType type = kv_type_of(config_, geometries[n], kv_type());
      kv_[n] = kv_layer(geometries[n], type, memory, n_pages, index);
      of_group.push_back(kv_[n]);
      memory += kv_token_bytes(geometries[n], type) * kPageTokens * static_cast<size_t>(n_pages);
    }
  }
  const int32_t states = n_states(config_, kv_type(), bounds);
  for (const int64_t n : state_layers(config_)) {
    const size_t bytes = layer_state_bytes(config_, n);
    const std::vector<std::byte> empty(bytes);
    backend_.copy_to_device(memory, empty.data(), bytes);
    states_.push_back({.data = reinterpret_cast<float*>(memory),
                       .stride = static_cast<int64_t>(bytes / sizeof(float)),
                       .n_states = states});
    memory += bytes * static_cast<size_t>(states);
  }
}

void Runner::read_sources(std::span<Source* const> sources) {
  batch_ = Batch{};
  for (const Source* source : sources) {
    batch_.max_pages = std::max(batch_.max_pages, pages_for(source->n_tokens()));
  }
  int32_t* row = add_page_rows(batch_, sources.size());
  for (const Source* source : sources) {
    check_tokens(source->tokens(), config_.encoder->vocab);
    batch_.add_sequence(source->tokens(), 0, config_.encoder->rope_length(source->n_tokens()));
    std::ranges::copy(source->pages(), row);
    row += batch_.max_pages;
  }
  if (batch_.n_tokens() > limits_.batch.max_tokens) {
    throw Error("sources of " + std::to_string(batch_.n_tokens()) +
                " tokens exceed the limit of a batch, " + std::to_string(limits_.batch.max_tokens));
  }
  model_->read_sources(backend_.upload(batch_), kv_);
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
  product_ = model_->forward(backend_.upload(batch_), {.kv = kv_, .states = states_});
}

// For the last step's logits [n_logits, vocab].
Matrix Runner::logits_memory() const {
  const Matrix rows(logits_memory_.get(), DType::f32, n_logits(), logits_stride(config_.vocab));
  return rows.columns(0, config_.vocab);
}

Matrix Runner::multiply_logits() {
  const Matrix logits = logits_memory();
  if (logits.rows == 0) return logits;
  backend_.linear(product_.input, product_.weight, {.bias = product_.bias}, logits);
  if (product_.soft_cap > 0) backend_.soft_cap(product_.soft_cap, logits);
  return logits;
}

std::unique_ptr<Choices> Runner::choose(std::span<const SamplingRow> rules) {
  if (auto choices = backend_.choose_greedily(product_, logits_memory(), rules)) return choices;
  return backend_.choose(multiply_logits(), rules);
}

void Runner::sample(std::span<const SamplingRow> rules, std::vector<SampledToken>& sampled) {
  sampled.resize(rules.size());
  const std::unique_ptr<Choices> choices = choose(rules);
  choices->wait();
  for (size_t r = 0; r < sampled.size(); ++r) choices->read(r, sampled[r]);
}

std::vector<float> Runner::logits() {
  const auto rows = static_cast<size_t>(n_logits());
  const auto vocab = static_cast<size_t>(config_.vocab);
  const auto stride = static_cast<size_t>(logits_stride(config_.vocab));
  multiply_logits();
  std::vector<float> host(rows * stride);
  backend_.copy_to_host(host.data(), logits_memory_.get(), host.size() * sizeof(float));
  for (size_t r = 1; r < rows && stride != vocab; ++r) {
    std::copy_n(host.data() + r * stride, vocab, host.data() + r * vocab);
  }
  host.resize(rows * vocab);
  return host;
}

void Runner::copy(std::span<const std::vector<PageCopy>> copies) {
  for (size_t g = 0; g < kv_groups_.size(); ++g) backend_.copy_pages(kv_groups_[g], copies[g]);
}

// Everything that begin_step() may refuse, so that a refusal changes nothing.
void Runner::check(std::span<const NewTokens> inputs) const {
  int64_t tokens = 0;
  int64_t logits = 0;
  int64_t pages = 0;
  for (const NewTokens& input : inputs) {
    if (input.tokens.empty()) throw Error("a sequence in a batch has no tokens");
    check_tokens(input.tokens, config_.vocab);
    check_tokens(input.proposed, config_.vocab);
    tokens += input.n_tokens();
    logits += input.n_logits();
    pages += input.sequence->missing_pages(int64_t{input.sequence->n_cached} + input.n_tokens());
  }
  if (tokens > limits_.batch.max_tokens || logits > limits_.batch.max_logits) {
    throw Error("a batch of " + std::to_string(tokens) + " tokens and " + std::to_string(logits) +
                " rows of logits exceeds the limits of " +
                std::to_string(limits_.batch.max_tokens) + " and " +
                std::to_string(limits_.batch.max_logits));
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
  std::vector<int32_t> joined;
  for (const NewTokens& input : inputs) {
    std::span<const int32_t> tokens = input.tokens;
    if (!input.proposed.empty()) {
      joined.assign(tokens.begin(), tokens.end());
      joined.insert(joined.end(), input.proposed.begin(), input.proposed.end());
      tokens = joined;
    }
    batch_.add_sequence(tokens, input.sequence->n_cached - input.n_tokens(),
                        input.sequence->rope_length);
    for (int32_t n = input.n_logits(); n > 0; --n) {
      batch_.logit_rows.push_back(batch_.n_tokens() - n);
    }
    batch_.max_pages =
        std::max(batch_.max_pages, static_cast<int32_t>(input.sequence->pages.size()));
  }
  batch_.n_groups = static_cast<int32_t>(kv_groups_.size());
  caches_.pack(inputs, batch_);
}

}  // namespace faststream
