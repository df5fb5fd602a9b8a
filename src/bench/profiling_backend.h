// Where the time of steps goes, by operation.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/forwarding_backend.h"
#include "bench/step_work.h"

namespace faststream::bench {

/// What an operation took, in all steps of a profile.
struct OperationProfile {
  std::string operation;  ///< with the shape of its weights: "linear 6144 x 4096 int8"
  int64_t calls = 0;
  double seconds = 0;
  StepWork work;               ///< of products and attention; of others none is counted
  double exchanged_bytes = 0;  ///< between this rank and the others, one way
};

/// Times the operations of another backend, one by one: each begins once the one before is done. So
/// they take longer together than in a step of their own, where a GPU begins with some while others
/// run, or does many in one kernel.
class ProfilingBackend final : public ForwardingBackend {
 public:
  /// weights: the type of the model's matrices. Takes `ahead` bytes of memory, which are read
  /// before each profile's operations so that these wait for the device and not for the host.
  ProfilingBackend(std::unique_ptr<Backend> backend, WeightFormat weights, size_t ahead);

  /// From here to stop() each operation is timed. Sequences of a step must be of one length.
  void start();
  /// Waits for all operations. Returns what took longest first.
  std::vector<OperationProfile> stop();

  void linear(Input& input, const Weight& weight, const Epilogue& epilogue,
              const Matrix& out) override;
  void gated_linear(Input& input, const Weight& gate_up, const float* bias, const Gate& gate,
                    const Matrix& out) override;
  void head_linear(const Matrix& x, const Weight& weight, int64_t n_heads,
                   const Matrix& out) override;
  void experts(Input& input, const Matrix& scores, const Router& router, const Experts& experts,
               OutputMode output, const Matrix& out) override;
  void attention(const BatchView& batch, const Matrix& qkv, const Matrix& cos_sin,
                 const HeadTransform& transform, const KvLayer& kv, const AttentionRule& rule,
                 const Matrix& out) override;
  void latent_attention(const BatchView& batch, const Matrix& queries, const Matrix& cos_sin,
                        const LatentHeads& heads, const KvLayer& kv, const AttentionRule& rule,
                        const Matrix& latent_qkv, const Matrix& latent_sums,
                        const Matrix& out) override;
  void join(RankLink& link, DType sums) override;
  void sum_over_ranks(const Matrix& share, OutputMode output, const Matrix& out) override;
  void gather_columns(const Matrix& m, int64_t each) override;
  void sum_floats_over_ranks(const Matrix& m) override;
  void norm_over_ranks(std::span<const SharedNorm> norms) override;

 private:
  /// Of the operation that comes next.
  void describe(std::string_view details, const StepWork& work, double exchanged_bytes = 0);
  void after(std::string_view operation) override;

  [[nodiscard]] StepWork product_work(int64_t rows, const Weight& weight, double used = 1,
                                      double of = 1) const;

  WeightFormat weights_;
  int other_ranks_ = 0;
  DType sums_ = DType::f32;
  Buffer ahead_;
  size_t ahead_bytes_;
  bool on_ = false;
  std::string details_;  // of the next operation
  StepWork work_;        // likewise
  double exchanged_bytes_ = 0;
  std::map<std::string, OperationProfile> profiles_;
  std::vector<OperationProfile*> timed_;  // in order
};

}  // namespace faststream::bench
