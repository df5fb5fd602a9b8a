#include "engine/executor.h"

#include <algorithm>

#include "engine/cache_kinds.h"
#include "engine/kv_groups.h"
#include "engine/load_weights.h"

namespace faststream {

CacheBounds bounds_of(const RunnerLimits& limits) {
  return {.n_pages = limits.n_pages,
          .sequences = limits.sequences,
          .step_tokens = limits.batch.max_tokens};
}

DeviceExecutor::DeviceExecutor(const ModelFile& file, const ModelConfig& config, Backend& backend,
                               const RunnerLimits& limits,
                               const std::function<void(size_t)>& progress)
    : config_(config), backend_(backend), limits_(limits) {
  const WeightLookup weights =
      load_weights(file, read_config(file), backend, progress, config.rank);
  model_ = make_model(config_, weights, backend, limits.batch);
  allocate_caches();
  logits_memory_ =
      backend.allocate(static_cast<size_t>(limits.batch.max_logits) *
                       static_cast<size_t>(logits_stride(config_.vocab)) * sizeof(float));
}

KvType DeviceExecutor::kv_type() const {
  return {backend_.kv_dtype(config_.weight_format), limits_.kv};
}

// Memory of the caches, one after the other, and of each its layers'.
void DeviceExecutor::allocate_caches() {
  const CacheBounds bounds = bounds_of(limits_);
  kv_bytes_ = bytes_of(cache_kinds(config_, kv_type()), bounds);
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

void DeviceExecutor::read_sources(const Batch& batch) {
  model_->read_sources(backend_.upload(batch), kv_);
}

void DeviceExecutor::forward(const Batch& batch) {
  n_logits_ = batch.n_logits();
  product_ = model_->forward(backend_.upload(batch), {.kv = kv_, .states = states_});
}

// For the last step's logits [n_logits, vocab].
Matrix DeviceExecutor::logits_memory() const {
  const Matrix rows(logits_memory_.get(), DType::f32, n_logits_, logits_stride(config_.vocab));
  return rows.columns(0, config_.vocab);
}

Matrix DeviceExecutor::multiply_logits() {
  const Matrix logits = logits_memory();
  if (logits.rows == 0) return logits;
  backend_.linear(product_.input, product_.weight, {.bias = product_.bias}, logits);
  if (product_.soft_cap > 0) backend_.soft_cap(product_.soft_cap, logits);
  return logits;
}

std::unique_ptr<Choices> DeviceExecutor::choose(std::span<const SamplingRow> rules) {
  if (auto choices = backend_.choose_greedily(product_, logits_memory(), rules)) return choices;
  return backend_.choose(multiply_logits(), rules);
}

std::vector<float> DeviceExecutor::logits() {
  const auto rows = static_cast<size_t>(n_logits_);
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

void DeviceExecutor::copy(std::span<const std::vector<PageCopy>> copies) {
  for (size_t g = 0; g < kv_groups_.size(); ++g) backend_.copy_pages(kv_groups_[g], copies[g]);
}

}  // namespace faststream
