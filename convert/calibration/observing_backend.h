// What a model's matrices are multiplied with while it runs.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "backend/forwarding_backend.h"
#include "convert/calibration/activation_statistics.h"
#include "model_file/model_file.h"
#include "models/config.h"
#include "models/tensor_plan.h"

namespace faststream::convert {

/// Passes operations on to another backend and sums up the inputs of products, which it knows by
/// the place of their weights. Logits are not computed: nobody wants them.
class ObservingBackend final : public ForwardingBackend {
 public:
  /// Observes the inputs of the matrices `wanted`, which the file of this description has, and, of
  /// those that are in `with_gram` too, products of columns in blocks of gram_columns.
  ObservingBackend(std::unique_ptr<Backend> backend, const ModelFile& file,
                   const ModelConfig& config, const std::set<TensorId>& wanted,
                   const std::set<TensorId>& with_gram, int64_t gram_columns);

  /// What has been seen.
  [[nodiscard]] ActivationStatistics statistics();

  const std::byte* load_weights(const WeightSource& source,
                                const std::function<void(size_t)>& progress) override;
  void linear(Input& input, const Weight& weight, const Epilogue& epilogue,
              const Matrix& out) override;
  void gated_linear(Input& input, const Weight& gate_up, const float* bias, const Gate& gate,
                    const Matrix& out) override;
  void head_linear(const Matrix& x, const Weight& weight, int64_t n_heads,
                   const Matrix& out) override;
  void experts(Input& input, const Matrix& scores, const Router& router, const Experts& experts,
               OutputMode output, const Matrix& out) override;
  void latent_attention(const BatchView& batch, const Matrix& queries, const Matrix& cos_sin,
                        const LatentHeads& heads, const KvLayer& kv, const AttentionRule& rule,
                        const Matrix& latent_qkv, const Matrix& latent_sums,
                        const Matrix& out) override;
  std::unique_ptr<Choices> choose_greedily(LogitProduct& product, const Matrix& logits,
                                           std::span<const SamplingRow> rules) override;

 private:
  // Of rows of inputs.
  struct Sums {
    double count = 0;
    std::vector<double> squares;  // [columns]
    Buffer gram = nullptr;        // as InputMoments has it, sums, on the device; or null
  };
  // A matrix of the file.
  struct Observed {
    TensorId id;
    uint64_t offset = 0;  // in the file
    uint64_t part_bytes = 0;
    int64_t columns = 0;
    bool of_experts = false;
    bool has_gram = false;
    std::vector<Sums> parts;
  };

  void observe(const Matrix& x, const Weight& weight);
  void add(const Observed& observed, std::span<const float> rows, Sums& sums);
  void add_products(const Observed& observed, std::span<const float> rows, Sums& sums);
  [[nodiscard]] std::vector<float> to_host(const Matrix& m);
  [[nodiscard]] InputMoments moments_of(const Observed& observed, const Sums& sums);
  /// One expert of rows [n, in]: what it gives of them, [n, hidden].
  [[nodiscard]] std::vector<float> run_expert(const Experts& experts, int64_t expert,
                                              std::span<const float> rows);

  int64_t gram_columns_;
  std::vector<Observed> observed_;  // by offset
  uint64_t first_offset_ = 0;       // of weights in the file
  const std::byte* base_ = nullptr;
  // Memory for operations of this class' own, as large as any took.
  struct Scratch {
    Buffer memory = nullptr;
    size_t bytes = 0;
  };
  std::byte* take(Scratch& scratch, size_t bytes);
  Scratch turned_;
  Scratch expert_rows_;
};

}  // namespace faststream::convert
