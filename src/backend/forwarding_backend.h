// A backend around another one.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/backend.h"

namespace faststream {

/// Passes everything on to another backend, and tells what derives from it of each operation:
/// before and after the other backend was called, which may not have done it by then.
class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {}

  [[nodiscard]] std::string description() const override { return backend_->description(); }
  [[nodiscard]] size_t free_memory() const override { return backend_->free_memory(); }
  [[nodiscard]] bool takes_memory_on_use() const override {
    return backend_->takes_memory_on_use();
  }
  [[nodiscard]] bool runs_beside_host() const override { return backend_->runs_beside_host(); }
  [[nodiscard]] bool keeps_choices() const override { return backend_->keeps_choices(); }
  [[nodiscard]] DType activation_dtype(WeightFormat weight_format) const override {
    return backend_->activation_dtype(weight_format);
  }
  [[nodiscard]] DType kv_dtype(WeightFormat weight_format) const override {
    return backend_->kv_dtype(weight_format);
  }
  [[nodiscard]] int32_t most_slots() const override { return backend_->most_slots(); }
  [[nodiscard]] int32_t first_tokens() const override { return backend_->first_tokens(); }
  [[nodiscard]] std::span<const int32_t> row_borders() const override {
    return backend_->row_borders();
  }
  [[nodiscard]] size_t scratch_bytes(const StepBounds& bounds) const override {
    return backend_->scratch_bytes(bounds);
  }

  void expect_products(WeightFormat weight_format, size_t weight_bytes) override {
    backend_->expect_products(weight_format, weight_bytes);
  }
  Buffer allocate(size_t bytes) override { return backend_->allocate(bytes); }
  void arrange(const Weight& weight) override { backend_->arrange(weight); }
  const std::byte* load_weights(const WeightSource& source,
                                const std::function<void(size_t)>& progress) override {
    return backend_->load_weights(source, progress);
  }
  void copy_to_device(void* device, const void* host, size_t bytes) override {
    backend_->copy_to_device(device, host, bytes);
  }
  void copy_to_host(void* host, const void* device, size_t bytes) override {
    backend_->copy_to_host(host, device, bytes);
  }
  void launch() override { backend_->launch(); }
  void synchronize() override {
    before("synchronize");
    backend_->synchronize();
    after("synchronize");
  }
  BatchView upload(const Batch& batch) override {
    before("upload");
    const BatchView view = backend_->upload(batch);
    after("upload");
    return view;
  }

  void embed(const BatchView& batch, const Embedding& embedding, const Matrix& out) override {
    before("embed");
    backend_->embed(batch, embedding, out);
    after("embed");
  }
  void norm(const Matrix& x, const Norm& norm, OutputMode output, const Matrix& out) override {
    before("norm");
    backend_->norm(x, norm, output, out);
    after("norm");
  }
  void norm_stream(const Matrix& x, const Norm& norm, const Matrix& copy) override {
    before("norm");
    backend_->norm_stream(x, norm, copy);
    after("norm");
  }
  void linear(Input& input, const Weight& weight, const Epilogue& epilogue,
              const Matrix& out) override {
    before("linear");
    backend_->linear(input, weight, epilogue, out);
    after("linear");
  }
  void gated_linear(Input& input, const Weight& gate_up, const float* bias, const Gate& gate,
                    const Matrix& out) override {
    before("gated_linear");
    backend_->gated_linear(input, gate_up, bias, gate, out);
    after("gated_linear");
  }
  void head_linear(const Matrix& x, const Weight& weight, int64_t n_heads,
                   const Matrix& out) override {
    before("head_linear");
    backend_->head_linear(x, weight, n_heads, out);
    after("head_linear");
  }
  void experts(Input& input, const Matrix& scores, const Router& router, const Experts& experts,
               OutputMode output, const Matrix& out) override {
    before("experts");
    backend_->experts(input, scores, router, experts, output, out);
    after("experts");
  }
  void scale(const Matrix& factors, Activation activation, const Matrix& m) override {
    before("scale");
    backend_->scale(factors, activation, m);
    after("scale");
  }
  void activate(Activation activation, const Matrix& m) override {
    before("activate");
    backend_->activate(activation, m);
    after("activate");
  }
  void keep_largest(float deviations, const Matrix& m) override {
    before("keep_largest");
    backend_->keep_largest(deviations, m);
    after("keep_largest");
  }
  void combine(const Matrix& weights, int32_t parts, const Matrix& m) override {
    before("combine");
    backend_->combine(weights, parts, m);
    after("combine");
  }
  void match_lengths(const Matrix& like, const Matrix& m) override {
    before("match_lengths");
    backend_->match_lengths(like, m);
    after("match_lengths");
  }
  void xielu(const float* numbers, const Matrix& m) override {
    before("xielu");
    backend_->xielu(numbers, m);
    after("xielu");
  }
  void rope_table(const BatchView& batch, const Rope& rope, const Matrix& cos_sin) override {
    before("rope_table");
    backend_->rope_table(batch, rope, cos_sin);
    after("rope_table");
  }
  void attention(const BatchView& batch, const Matrix& qkv, const Matrix& cos_sin,
                 const HeadTransform& transform, const KvLayer& kv, const AttentionRule& rule,
                 const Matrix& out) override {
    before("attention");
    backend_->attention(batch, qkv, cos_sin, transform, kv, rule, out);
    after("attention");
  }
  void latent_attention(const BatchView& batch, const Matrix& queries, const Matrix& cos_sin,
                        const LatentHeads& heads, const KvLayer& kv, const AttentionRule& rule,
                        const Matrix& latent_qkv, const Matrix& latent_sums,
                        const Matrix& out) override {
    before("latent_attention");
    backend_->latent_attention(batch, queries, cos_sin, heads, kv, rule, latent_qkv, latent_sums,
                               out);
    after("latent_attention");
  }
  void append(const BatchView& batch, const Matrix& kv_rows, const KvLayer& kv) override {
    before("append");
    backend_->append(batch, kv_rows, kv);
    after("append");
  }
  void convolve(const BatchView& batch, const Matrix& x, const Convolution& convolution,
                const StateLayer& states, const Matrix& out) override {
    before("convolve");
    backend_->convolve(batch, x, convolution, states, out);
    after("convolve");
  }
  void recur(const BatchView& batch, const Matrix& q, const Matrix& k, const Matrix& v,
             const Matrix& gates, const Recurrence& recurrence, const StateLayer& states,
             const Matrix& out) override {
    before("recur");
    backend_->recur(batch, q, k, v, gates, recurrence, states, out);
    after("recur");
  }
  void scan(const BatchView& batch, const Matrix& x, const Matrix& steps, const Matrix& b,
            const Matrix& c, const SelectiveScan& scan, const StateLayer& states,
            const Matrix& out) override {
    before("scan");
    backend_->scan(batch, x, steps, b, c, scan, states, out);
    after("scan");
  }
  void join(RankLink& link, DType sums) override { backend_->join(link, sums); }
  void gather_columns(const Matrix& m, int64_t each) override {
    before("gather_columns");
    backend_->gather_columns(m, each);
    after("gather_columns");
  }
  void sum_over_ranks(const Matrix& share, OutputMode output, const Matrix& out) override {
    before("sum over ranks");
    backend_->sum_over_ranks(share, output, out);
    after("sum over ranks");
  }
  void sum_floats_over_ranks(const Matrix& m) override {
    before("sum_floats_over_ranks");
    backend_->sum_floats_over_ranks(m);
    after("sum_floats_over_ranks");
  }
  void norm_over_ranks(std::span<const SharedNorm> norms) override {
    before("norm_over_ranks");
    backend_->norm_over_ranks(norms);
    after("norm_over_ranks");
  }
  void gather_rows(const BatchView& batch, const Matrix& x, const Matrix& out) override {
    before("gather_rows");
    backend_->gather_rows(batch, x, out);
    after("gather_rows");
  }
  void pool(const BatchView& batch, const Matrix& x, Pooling pooling, const Matrix& out) override {
    before("pool");
    backend_->pool(batch, x, pooling, out);
    after("pool");
  }
  void soft_cap(float cap, const Matrix& logits) override {
    before("soft_cap");
    backend_->soft_cap(cap, logits);
    after("soft_cap");
  }
  std::unique_ptr<Choices> choose(const Matrix& logits,
                                  std::span<const SamplingRow> rules) override {
    before("sample");
    std::unique_ptr<Choices> choices = backend_->choose(logits, rules);
    after("sample");
    return choices;
  }
  std::unique_ptr<Choices> choose_greedily(LogitProduct& product, const Matrix& logits,
                                           std::span<const SamplingRow> rules) override {
    before("likeliest");
    std::unique_ptr<Choices> choices = backend_->choose_greedily(product, logits, rules);
    if (choices) after("likeliest");
    return choices;
  }
  void copy_pages(std::span<const KvLayer> layers, std::span<const PageCopy> copies) override {
    before("copy_pages");
    backend_->copy_pages(layers, copies);
    after("copy_pages");
  }

  void read_memory(const std::byte* data, size_t bytes) override {
    backend_->read_memory(data, bytes);
  }
  void note_time() override { backend_->note_time(); }
  std::vector<double> take_times() override { return backend_->take_times(); }

 protected:
  /// By the operation's name.
  virtual void before(std::string_view /*operation*/) {}
  virtual void after(std::string_view /*operation*/) {}

 private:
  std::unique_ptr<Backend> backend_;
};

}  // namespace faststream
