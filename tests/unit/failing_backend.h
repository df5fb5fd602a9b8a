// A backend that fails when it is told to.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "backend/backend.h"
#include "support/error.h"

namespace faststream {

/// Passes every operation on to another backend, after asking whether it should fail instead.
class FailingBackend final : public Backend {
 public:
  /// `fails` is asked before each operation, by its name.
  FailingBackend(std::unique_ptr<Backend> backend, std::function<bool(const std::string&)> fails)
      : backend_(std::move(backend)), fails_(std::move(fails)) {}

  [[nodiscard]] std::string description() const override { return backend_->description(); }
  [[nodiscard]] size_t free_memory() const override { return backend_->free_memory(); }
  [[nodiscard]] bool takes_memory_on_use() const override {
    return backend_->takes_memory_on_use();
  }
  [[nodiscard]] bool runs_beside_host() const override { return backend_->runs_beside_host(); }
  [[nodiscard]] DType activation_dtype(DType weight_dtype) const override {
    return backend_->activation_dtype(weight_dtype);
  }
  [[nodiscard]] DType kv_dtype(DType weight_dtype) const override {
    return backend_->kv_dtype(weight_dtype);
  }
  [[nodiscard]] int32_t most_slots() const override { return backend_->most_slots(); }
  [[nodiscard]] int32_t first_tokens() const override { return backend_->first_tokens(); }
  [[nodiscard]] size_t scratch_bytes(const StepBounds& bounds) const override {
    return backend_->scratch_bytes(bounds);
  }
  Buffer allocate(size_t bytes) override { return backend_->allocate(bytes); }
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
  void synchronize() override {
    check("synchronize");
    backend_->synchronize();
  }
  BatchView upload(const Batch& batch) override {
    check("upload");
    return backend_->upload(batch);
  }
  void embed(const BatchView& batch, const Embedding& embedding, const Matrix& out) override {
    check("embed");
    backend_->embed(batch, embedding, out);
  }
  void norm(const Matrix& x, const Norm& norm, OutputMode output, const Matrix& out) override {
    check("norm");
    backend_->norm(x, norm, output, out);
  }
  void linear(Input& input, const Weight& weight, const Epilogue& epilogue,
              const Matrix& out) override {
    check("linear");
    backend_->linear(input, weight, epilogue, out);
  }
  void gated_linear(Input& input, const Weight& gate_up, const float* bias, Activation activation,
                    const Matrix& out) override {
    check("gated_linear");
    backend_->gated_linear(input, gate_up, bias, activation, out);
  }
  void experts(Input& input, const Matrix& scores, const Router& router, const Experts& experts,
               OutputMode output, const Matrix& out) override {
    check("experts");
    backend_->experts(input, scores, router, experts, output, out);
  }
  void scale_rows(const Matrix& gate, const Matrix& m) override {
    check("scale_rows");
    backend_->scale_rows(gate, m);
  }
  void rope_table(const BatchView& batch, const float* inv_freq, float factor,
                  const Matrix& cos_sin) override {
    check("rope_table");
    backend_->rope_table(batch, inv_freq, factor, cos_sin);
  }
  void attention(const BatchView& batch, const Matrix& qkv, const Matrix& cos_sin,
                 const HeadTransform& transform, const KvLayer& kv, const AttentionRule& rule,
                 const Matrix& out) override {
    check("attention");
    backend_->attention(batch, qkv, cos_sin, transform, kv, rule, out);
  }
  void soft_cap(float cap, const Matrix& logits) override {
    check("soft_cap");
    backend_->soft_cap(cap, logits);
  }
  void append(const BatchView& batch, const Matrix& kv_rows, const KvLayer& kv) override {
    check("append");
    backend_->append(batch, kv_rows, kv);
  }
  void pool(const BatchView& batch, const Matrix& x, Pooling pooling, const Matrix& out) override {
    check("pool");
    backend_->pool(batch, x, pooling, out);
  }
  void gather_rows(const BatchView& batch, const Matrix& x, const Matrix& out) override {
    check("gather_rows");
    backend_->gather_rows(batch, x, out);
  }
  void sample(const Matrix& logits, std::span<const SamplingRow> rules,
              std::span<SampledToken> sampled) override {
    check("sample");
    backend_->sample(logits, rules, sampled);
  }
  void copy_pages(std::span<const KvLayer> layers, std::span<const PageCopy> copies) override {
    check("copy_pages");
    backend_->copy_pages(layers, copies);
  }

 private:
  void check(const std::string& operation) const {
    if (fails_(operation)) throw Error("the device failed in " + operation);
  }

  std::unique_ptr<Backend> backend_;
  std::function<bool(const std::string&)> fails_;
};

}  // namespace faststream
