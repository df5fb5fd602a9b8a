#include "engine/executor.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/cache_kinds.h"
#include "engine/kv_groups.h"
#include "engine/load_weights.h"
#include "support/error.h"

namespace faststream {
namespace {

// Of rows without gaps.
size_t size_of_rows(const Matrix& rows) {
  return static_cast<size_t>(rows.rows * rows.cols) * dtype_size(rows.dtype);
}

}  // namespace

CacheBounds bounds_of(const RunnerLimits& limits) {
  return {.n_pages = limits.n_pages,
          .sequences = limits.sequences,
          .step_tokens = limits.batch.max_tokens,
          .states = limits.states};
}

DeviceExecutor::DeviceExecutor(const ModelFiles& files, const ModelConfig& config, Backend& backend,
                               const RunnerLimits& limits,
                               const std::function<void(size_t)>& progress)
    : config_(config), backend_(backend), limits_(limits) {
  ModelConfig whole = read_config(files.model);
  if (config.predictors.empty()) whole = without_predictors(std::move(whole));
  whole.adapters = config.adapters;
  weights_ = load_weights(files, whole, backend, progress, config.rank);
  model_ = make_model(config_, weights_, backend, limits.batch);
  allocate_memory();
}

DeviceExecutor::DeviceExecutor(const DeviceExecutor& source, size_t predictor,
                               const RunnerLimits& limits)
    : config_(predictor_of(source.decoder_->config_, predictor)),
      backend_(source.backend_),
      limits_(limits),
      model_(faststream::make_predictor(source.decoder_->config_, predictor,
                                        source.decoder_->weights_, backend_, limits.batch)),
      decoder_(source.decoder_),
      source_(&source) {
  if (!config_.output.tokens.empty()) vocabulary_.emplace(config_.output.tokens, config_.vocab);
  allocate_memory();
}

std::unique_ptr<DeviceExecutor> DeviceExecutor::make_own_predictor(
    size_t predictor, const RunnerLimits& limits) const {
  return std::unique_ptr<DeviceExecutor>(new DeviceExecutor(*this, predictor, limits));
}

std::unique_ptr<Executor> DeviceExecutor::make_predictor(size_t predictor,
                                                         const RunnerLimits& limits) {
  return make_own_predictor(predictor, limits);
}

void DeviceExecutor::copy_hidden_states(const DeviceExecutor& of, int32_t first, int32_t count,
                                        const Matrix& to) {
  const Matrix states = of.model_->layer_states();
  if (states.cols > 0) return model_->join_layer_states(states.row_range(first, count), to);
  const bool is_before_norm = config_.hidden_input->before_output_norm;
  backend_.norm(of.model_->hidden_states().row_range(first, count),
                is_before_norm ? Norm{} : of.model_->output_norm(), OutputMode::store, to);
}

void DeviceExecutor::take_hidden_states(std::span<const int32_t> rows) {
  take_states(*source_, rows);
}

void DeviceExecutor::take_own_states(std::span<const int32_t> rows) { take_states(*this, rows); }

// Rows that follow each other are copied together.
void DeviceExecutor::take_states(const DeviceExecutor& of, std::span<const int32_t> rows) {
  for (size_t first = 0, end = 0; first < rows.size(); first = end) {
    for (end = first + 1; end < rows.size() && rows[end] == rows[end - 1] + 1;) ++end;
    const auto n = static_cast<int32_t>(end - first);
    copy_hidden_states(of, rows[first], n,
                       model_->hidden_input().row_range(static_cast<int64_t>(first), n));
  }
}

void DeviceExecutor::keep_hidden_states(int32_t first, int32_t count, int32_t to) {
  copy_hidden_states(*source_, first, count, model_->kept_hidden().row_range(to, count));
}

// Of a batch that has as many tokens as rows are kept, the rows whose logits are wanted.
void DeviceExecutor::take_kept_states(std::span<const int32_t> rows) {
  taken_ = Batch{};
  taken_.add_sequence(std::vector<int32_t>(static_cast<size_t>(kMostKeptHidden)), 0);
  taken_.logit_rows.assign(rows.begin(), rows.end());
  backend_.gather_rows(backend_.upload(taken_), model_->kept_hidden(),
                       model_->hidden_input().first_rows(std::ssize(rows)));
}

void DeviceExecutor::compact_kept_states(std::span<const int32_t> rows) {
  take_kept_states(rows);
  backend_.norm(model_->hidden_input().first_rows(std::ssize(rows)), Norm{}, OutputMode::store,
                model_->kept_hidden().first_rows(std::ssize(rows)));
}

void DeviceExecutor::allocate_memory() {
  allocate_caches();
  logits_memory_ =
      backend_.allocate(static_cast<size_t>(limits_.batch.max_logits) *
                        static_cast<size_t>(logits_stride(config_.output_rows())) * sizeof(float));
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
  begin_logits(model_->forward(backend_.upload(batch), {.kv = kv_, .states = states_}),
               batch.n_logits());
}

void DeviceExecutor::begin_logits(const LogitProduct& product, int32_t n_logits) {
  n_logits_ = n_logits;
  product_ = product;
  has_logits_ = false;
  if (shared_columns() > 0) multiply_logits();
}

// Whether something that predictors read of the step is kept before that layer.
bool DeviceExecutor::has_states_before(int64_t layer, const Batch& batch) const {
  const std::vector<int64_t> kept = states_kept(config_);
  return batch.n_states() > 0 && !kept.empty() && kept.front() < layer;
}

void DeviceExecutor::begin_stage(const Batch& batch, std::span<const std::byte> given) {
  const auto [first, end] = config_.own_layers();
  const bool is_last = config_.has_last_layer();
  const Matrix rows = model_->stage_input(batch.n_tokens());
  const Matrix states = model_->stage_states(batch.n_tokens());
  const size_t n_rows = first == 0 ? 0 : size_of_rows(rows);
  const size_t n_states = has_states_before(first, batch) ? size_of_rows(states) : 0;
  if (given.size() != n_rows + n_states) throw Error("stages of a model work on different steps");
  if (n_rows > 0) backend_.copy_to_device(rows.data, given.data(), n_rows);
  if (n_states > 0) backend_.copy_to_device(states.data, given.data() + n_rows, n_states);
  stage_rows_ = model_->run_stage(backend_.upload(batch), {.kv = kv_, .states = states_});
  stage_states_ = has_states_before(end + (is_last ? 1 : 0), batch) ? states : Matrix();
}

std::vector<std::byte> DeviceExecutor::stage_rows() {
  const size_t n_rows = size_of_rows(stage_rows_);
  const size_t n_states = size_of_rows(stage_states_);
  const auto n_tokens = static_cast<int32_t>(stage_states_.rows);
  const bool is_last = config_.has_last_layer();
  std::vector<std::byte> bytes(n_rows + n_states + (is_last ? sizeof n_tokens : 0));
  if (n_rows > 0) backend_.copy_to_host(bytes.data(), stage_rows_.data, n_rows);
  if (n_states > 0) backend_.copy_to_host(bytes.data() + n_rows, stage_states_.data, n_states);
  if (is_last) std::memcpy(bytes.data() + n_rows + n_states, &n_tokens, sizeof n_tokens);
  return bytes;
}

void DeviceExecutor::finish(std::span<const std::byte> given) {
  int32_t n_tokens = 0;
  if (given.size() < sizeof n_tokens) throw Error("stages of a model work on different steps");
  const std::span<const std::byte> of_step = given.first(given.size() - sizeof n_tokens);
  std::memcpy(&n_tokens, given.data() + of_step.size(), sizeof n_tokens);
  const Matrix states = model_->finish_states(n_tokens);
  const size_t n_states = size_of_rows(states);
  if (of_step.size() < n_states) throw Error("stages of a model work on different steps");
  const std::span<const std::byte> rows = of_step.first(of_step.size() - n_states);
  const auto row_bytes = static_cast<size_t>(config_.stream_dim()) * sizeof(float);
  const auto n = static_cast<int32_t>(rows.size() / row_bytes);
  if (!rows.empty()) {
    backend_.copy_to_device(model_->finish_input(n).data, rows.data(), rows.size());
  }
  if (n_states > 0) backend_.copy_to_device(states.data, of_step.data() + rows.size(), n_states);
  begin_logits(model_->finish(n, n_tokens), n);
}

// For the last step's logits [n_logits, vocab].
Matrix DeviceExecutor::logits_memory() const {
  const Matrix rows(logits_memory_.get(), DType::f32, n_logits_,
                    logits_stride(config_.output_rows()));
  return rows.columns(0, config_.output_rows());
}

// Products like tiles.
int64_t DeviceExecutor::shared_columns() const {
  constexpr int64_t kTile = 64;
  const int64_t tiles = (config_.output_rows() + kTile - 1) / kTile;
  const int64_t each = (tiles + config_.rank.count - 1) / config_.rank.count * kTile;
  const bool all_have_some = (config_.rank.count - 1) * each < config_.output_rows();
  const int64_t bytes = n_logits_ * each * static_cast<int64_t>(sizeof(float));
  return config_.rank.count > 1 && all_have_some && bytes <= limits_.gathered_bytes ? each : 0;
}

void DeviceExecutor::multiply_logits() {
  if (has_logits_ || n_logits_ == 0) return;
  has_logits_ = true;
  const Matrix logits = logits_memory();
  const int64_t each = shared_columns();
  const int64_t first = config_.rank.index * each;
  const int64_t count =
      each > 0 ? std::min(each, config_.output_rows() - first) : config_.output_rows();
  backend_.linear(product_.input, product_.weight.row_range(first, count),
                  {.bias = product_.bias == nullptr ? nullptr : product_.bias + first},
                  logits.columns(first, count));
  if (each > 0) backend_.gather_columns(logits, each);
  if (product_.soft_cap > 0) backend_.soft_cap(product_.soft_cap, logits);
}

std::unique_ptr<Choices> DeviceExecutor::choose(std::span<const SamplingRow> rules) {
  if (!vocabulary_) return choose_rows(rules);
  return vocabulary_->choose(
      rules, [this](std::span<const SamplingRow> of_rows) { return choose_rows(of_rows); });
}

std::unique_ptr<Choices> DeviceExecutor::choose_rows(std::span<const SamplingRow> rules) {
  if (!has_logits_) {
    if (auto choices = backend_.choose_greedily(product_, logits_memory(), rules)) return choices;
  }
  multiply_logits();
  return backend_.choose(logits_memory(), rules);
}

std::vector<float> DeviceExecutor::logits() {
  const auto rows = static_cast<size_t>(n_logits_);
  const auto vocab = static_cast<size_t>(config_.output_rows());
  const auto stride = static_cast<size_t>(logits_stride(config_.output_rows()));
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
