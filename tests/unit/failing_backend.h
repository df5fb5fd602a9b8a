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
  [[nodiscard]] DType activation_dtype(DType weights) const override {
    return backend_->activation_dtype(weights);
  }
  [[nodiscard]] DType kv_dtype(DType weights) const override { return backend_->kv_dtype(weights); }
  [[nodiscard]] StepSizes step_sizes() const override { return backend_->step_sizes(); }
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
  void embed(const BatchView& batch, const Weight& table, const Matrix& out) override {
    check("embed");
    backend_->embed(batch, table, out);
  }
  void rms_norm(const Matrix& x, const float* weight, float eps, const Matrix& out) override {
    check("rms_norm");
    backend_->rms_norm(x, weight, eps, out);
  }
  void linear(const Matrix& x, const Weight& weight, const float* bias, LinearOutput mode,
              const Matrix& out) override {
    check("linear");
    backend_->linear(x, weight, bias, mode, out);
  }
  void gated_linear(const Matrix& x, const Weight& gate_up, Activation activation,
                    const Matrix& out) override {
    check("gated_linear");
    backend_->gated_linear(x, gate_up, activation, out);
  }
  void rope_table(const BatchView& batch, const float* inv_freq, const Matrix& cos_sin) override {
    check("rope_table");
    backend_->rope_table(batch, inv_freq, cos_sin);
  }
  void rope_append(const BatchView& batch, const Matrix& cos_sin, const Matrix& qkv,
                   const KvLayer& kv) override {
    check("rope_append");
    backend_->rope_append(batch, cos_sin, qkv, kv);
  }
  void attention(const BatchView& batch, const Matrix& q, const KvLayer& kv, float scale,
                 const Matrix& out) override {
    check("attention");
    backend_->attention(batch, q, kv, scale, out);
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
