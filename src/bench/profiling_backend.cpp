#include "bench/profiling_backend.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "backend/rank_link.h"

namespace faststream::bench {
namespace {

std::string shape_of(const Weight& weight) {
  return std::to_string(weight.rows) + " x " + std::to_string(weight.cols) + ' ' +
         std::string(format_name(weight.format));
}

}  // namespace

ProfilingBackend::ProfilingBackend(std::unique_ptr<Backend> backend, WeightFormat weights,
                                   size_t ahead)
    : ForwardingBackend(std::move(backend)),
      weights_(weights),
      ahead_(allocate(ahead)),
      ahead_bytes_(ahead / 64 * 64) {}

void ProfilingBackend::start() {
  constexpr int kReads = 8;
  for (int i = 0; i < kReads; ++i) read_memory(ahead_.get(), ahead_bytes_);
  on_ = true;
  note_time();
}

std::vector<OperationProfile> ProfilingBackend::stop() {
  on_ = false;
  const std::vector<double> seconds = take_times();
  for (size_t i = 0; i < timed_.size(); ++i) timed_[i]->seconds += seconds[i];
  timed_.clear();
  std::vector<OperationProfile> sorted;
  for (auto& [name, profile] : std::exchange(profiles_, {})) sorted.push_back(std::move(profile));
  std::ranges::sort(sorted, std::greater(), &OperationProfile::seconds);
  return sorted;
}

// Of so many rows with a weight, or with `used` of its `of` equal parts, which each row chooses.
StepWork ProfilingBackend::product_work(int64_t rows, const Weight& weight, double used,
                                        double of) const {
  const double elements = static_cast<double>(weight.rows) * static_cast<double>(weight.cols);
  const double read = 1 - std::pow(1 - used / of, static_cast<double>(rows));
  const double ops = 2 * static_cast<double>(rows) * elements * used / of;
  const bool of_weights = weight.format == weights_;
  return {.weight_bytes = read * static_cast<double>(weight.rows * weight.row_bytes()),
          .weight_ops = of_weights ? ops : 0,
          .activation_ops = of_weights ? 0 : ops};
}

void ProfilingBackend::describe(std::string_view details, const StepWork& work,
                                double exchanged_bytes) {
  if (!on_) return;
  details_ = ' ' + std::string(details);
  work_ = work;
  exchanged_bytes_ = exchanged_bytes;
}

void ProfilingBackend::after(std::string_view operation) {
  if (!on_) return;
  note_time();
  const std::string name = std::string(operation) + std::exchange(details_, {});
  OperationProfile& profile = profiles_[name];
  profile.operation = name;
  ++profile.calls;
  profile.work += std::exchange(work_, {});
  profile.exchanged_bytes += std::exchange(exchanged_bytes_, 0);
  timed_.push_back(&profile);
}

void ProfilingBackend::linear(Input& input, const Weight& weight, const Epilogue& epilogue,
                              const Matrix& out) {
  describe(shape_of(weight), product_work(input.x.rows, weight));
  ForwardingBackend::linear(input, weight, epilogue, out);
}

void ProfilingBackend::gated_linear(Input& input, const Weight& gate_up, const float* bias,
                                    const Gate& gate, const Matrix& out) {
  describe(shape_of(gate_up), product_work(input.x.rows, gate_up));
  ForwardingBackend::gated_linear(input, gate_up, bias, gate, out);
}

void ProfilingBackend::head_linear(const Matrix& x, const Weight& weight, int64_t n_heads,
                                   const Matrix& out) {
  describe(std::to_string(n_heads) + " heads of " + shape_of(weight), product_work(x.rows, weight));
  ForwardingBackend::head_linear(x, weight, n_heads, out);
}

void ProfilingBackend::experts(Input& input, const Matrix& scores, const Router& router,
                               const Experts& experts, OutputMode output, const Matrix& out) {
  StepWork work = product_work(input.x.rows, experts.up, router.used, experts.n_experts);
  work += product_work(input.x.rows, experts.down, router.used, experts.n_experts);
  describe(std::to_string(router.used) + " of " + shape_of(experts.up), work);
  ForwardingBackend::experts(input, scores, router, experts, output, out);
}

void ProfilingBackend::attention(const BatchView& batch, const Matrix& qkv, const Matrix& cos_sin,
                                 const HeadTransform& transform, const KvLayer& kv,
                                 const AttentionRule& rule, const Matrix& out) {
  describe("over " + std::to_string(batch.max_kv_len) +
               (rule.window > 0 ? ", window " + std::to_string(rule.window) : ""),
           attention_work({.sequences = batch.n_sequences,
                           .n_cached = batch.max_kv_len - batch.max_query_len,
                           .n_new = batch.max_query_len,
                           .n_heads = out.cols / kv.v_head_dim,
                           .geometry = {.n_heads = kv.n_kv_heads,
                                        .k_head_dim = kv.head_dim,
                                        .v_head_dim = kv.v_head_dim,
                                        .window = rule.window,
                                        .values_in_keys = kv.values_in_keys},
                           .kv = {kv.dtype, kv.format}}));
  ForwardingBackend::attention(batch, qkv, cos_sin, transform, kv, rule, out);
}

void ProfilingBackend::latent_attention(const BatchView& batch, const Matrix& queries,
                                        const Matrix& cos_sin, const LatentHeads& heads,
                                        const KvLayer& kv, const AttentionRule& rule,
                                        const Matrix& latent_qkv, const Matrix& latent_sums,
                                        const Matrix& out) {
  StepWork work = attention_work({.sequences = batch.n_sequences,
                                  .n_cached = batch.max_kv_len - batch.max_query_len,
                                  .n_new = batch.max_query_len,
                                  .n_heads = heads.n_heads,
                                  .geometry = {.n_heads = kv.n_kv_heads,
                                               .k_head_dim = kv.head_dim,
                                               .v_head_dim = kv.v_head_dim,
                                               .values_in_keys = true},
                                  .kv = {kv.dtype, kv.format},
                                  .head_dims = (queries.cols + out.cols) / heads.n_heads});
  work += product_work(queries.rows, heads.keys);
  work += product_work(queries.rows, heads.values);
  describe("over " + std::to_string(batch.max_kv_len), work);
  ForwardingBackend::latent_attention(batch, queries, cos_sin, heads, kv, rule, latent_qkv,
                                      latent_sums, out);
}

void ProfilingBackend::join(RankLink& link, DType sums) {
  other_ranks_ = link.count() - 1;
  sums_ = sums;
  ForwardingBackend::join(link, sums);
}

void ProfilingBackend::sum_over_ranks(const Matrix& share, OutputMode output, const Matrix& out) {
  const auto bytes = static_cast<double>(share.rows * share.cols) *
                     static_cast<double>(dtype_size(sums_)) * other_ranks_;
  describe(std::string(dtype_name(sums_)), {}, bytes);
  ForwardingBackend::sum_over_ranks(share, output, out);
}

void ProfilingBackend::gather_columns(const Matrix& m, int64_t each) {
  const auto bytes =
      static_cast<double>(m.rows * std::min(each, m.cols)) * static_cast<double>(sizeof(float));
  describe("f32", {}, bytes * other_ranks_);
  ForwardingBackend::gather_columns(m, each);
}

void ProfilingBackend::sum_floats_over_ranks(const Matrix& m) {
  describe("f32", {}, static_cast<double>(m.rows * m.cols) * sizeof(float) * other_ranks_);
  ForwardingBackend::sum_floats_over_ranks(m);
}

void ProfilingBackend::norm_over_ranks(std::span<const SharedNorm> norms) {
  const SharedNorm& first = norms.front();
  const auto sums = static_cast<double>(first.x.rows * first.share.groups);
  describe("f32", {}, sums * sizeof(float) * other_ranks_);
  ForwardingBackend::norm_over_ranks(norms);
}

}  // namespace faststream::bench
