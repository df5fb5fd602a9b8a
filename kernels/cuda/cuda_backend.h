// The CUDA backend. A file per operation, named as in kernels/cpu; this header is what they share.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/queue.h"
#include "kernels/cuda/step_kernel/step_kernel.h"

namespace faststream {

struct AttentionArguments;  // attention/attention.h
struct LatentShape;
struct ProductDestination;  // linear/linear_few_rows.h
class Matmul;               // linear/matmul.h

/// What choose() uploads, behind it its results, and when they are there (sampling/sample.cu).
struct ChoiceMemory {
  PinnedBuffer host;
  Event chosen;
};

/// One GPU, one stream: operations run in the order of the calls. See Backend for the contracts.
///
/// Activations are f32 for f32 weights, f16 for f16, bf16 for bf16 and i8; arithmetic inside
/// operations is float32 (int32 for products of eight-bit matrices).
class CudaBackend final : public Backend {
 public:
  /// Throws Error when `device` is not a usable GPU.
  explicit CudaBackend(int device);
  ~CudaBackend() override;

  [[nodiscard]] std::string description() const override;
  [[nodiscard]] size_t free_memory() const override;
  [[nodiscard]] bool takes_memory_on_use() const override { return false; }
  [[nodiscard]] bool runs_beside_host() const override { return true; }
  [[nodiscard]] bool keeps_choices() const override { return true; }
  [[nodiscard]] DType activation_dtype(WeightFormat weight_format) const override;
  [[nodiscard]] DType kv_dtype(WeightFormat weight_format) const override;
  [[nodiscard]] int32_t most_slots() const override { return 512; }
  [[nodiscard]] int32_t first_tokens() const override { return 2048; }
  [[nodiscard]] size_t scratch_bytes(const StepBounds& bounds) const override;

  void expect_products(WeightFormat weight_format, size_t weight_bytes) override;
  Buffer allocate(size_t bytes) override;
  void arrange(const Weight& weight) override;
  const std::byte* load_weights(const WeightSource& source,
                                const std::function<void(size_t)>& progress) override;
  void copy_to_device(void* device, const void* host, size_t bytes) override;
  void copy_to_host(void* host, const void* device, size_t bytes) override;
  void synchronize() override;
  void launch() override { static_cast<void>(launched_stream()); }
  BatchView upload(const Batch& batch) override;

  void embed(const BatchView& batch, const Embedding& embedding, const Matrix& out) override;
  void norm(const Matrix& x, const Norm& norm, OutputMode output, const Matrix& out) override;
  void norm_stream(const Matrix& x, const Norm& norm, const Matrix& copy) override;
  void linear(Input& input, const Weight& weight, const Epilogue& epilogue,
              const Matrix& out) override;
  void gated_linear(Input& input, const Weight& gate_up, const float* bias, const Gate& gate,
                    const Matrix& out) override;
  void head_linear(const Matrix& x, const Weight& weight, int64_t n_heads,
                   const Matrix& out) override;
  void experts(Input& input, const Matrix& scores, const Router& router, const Experts& experts,
               OutputMode output, const Matrix& out) override;
  void scale(const Matrix& factors, Activation activation, const Matrix& m) override;
  void keep_largest(float deviations, const Matrix& m) override;
  void combine(const Matrix& weights, int32_t parts, const Matrix& m) override;
  void match_lengths(const Matrix& like, const Matrix& m) override;
  void activate(Activation activation, const Matrix& m) override;
  void xielu(const float* numbers, const Matrix& m) override;
  void rope_table(const BatchView& batch, const Rope& rope, const Matrix& cos_sin) override;
  void attention(const BatchView& batch, const Matrix& qkv, const Matrix& cos_sin,
                 const HeadTransform& transform, const KvLayer& kv, const AttentionRule& rule,
                 const Matrix& out) override;
  void latent_attention(const BatchView& batch, const Matrix& queries, const Matrix& cos_sin,
                        const LatentHeads& heads, const KvLayer& kv, const AttentionRule& rule,
                        const Matrix& latent_qkv, const Matrix& latent_sums,
                        const Matrix& out) override;
  void append(const BatchView& batch, const Matrix& kv_rows, const KvLayer& kv) override;
  void convolve(const BatchView& batch, const Matrix& x, const Convolution& convolution,
                const StateLayer& states, const Matrix& out) override;
  void recur(const BatchView& batch, const Matrix& q, const Matrix& k, const Matrix& v,
             const Matrix& gates, const Recurrence& recurrence, const StateLayer& states,
             const Matrix& out) override;
  void scan(const BatchView& batch, const Matrix& x, const Matrix& steps, const Matrix& b,
            const Matrix& c, const SelectiveScan& scan, const StateLayer& states,
            const Matrix& out) override;
  void join(RankLink& link, DType sums) override;
  void sum_over_ranks(const Matrix& share, OutputMode output, const Matrix& out) override;
  void gather_columns(const Matrix& m, int64_t each) override;
  void sum_floats_over_ranks(const Matrix& m) override;
  void norm_over_ranks(std::span<const SharedNorm> norms) override;
  void gather_rows(const BatchView& batch, const Matrix& x, const Matrix& out) override;
  void pool(const BatchView& batch, const Matrix& x, Pooling pooling, const Matrix& out) override;
  void soft_cap(float cap, const Matrix& logits) override;
  std::unique_ptr<Choices> choose(const Matrix& logits,
                                  std::span<const SamplingRow> rules) override;
  void copy_pages(std::span<const KvLayer> layers, std::span<const PageCopy> copies) override;

  void read_memory(const std::byte* data, size_t bytes) override;
  void note_time() override;
  std::vector<double> take_times() override;

  /// Launches what the step's kernel has collected, and returns the stream of all operations; its
  /// GPU becomes the calling thread's current one.
  [[nodiscard]] cudaStream_t launched_stream();

 private:
  /// Transforms the n_heads query heads of qkv in place, and writes keys and values, if it has
  /// some, to their pages, transformed.
  void rope_append(const BatchView& batch, const Matrix& qkv, int n_heads, const Matrix& cos_sin,
                   const HeadTransform& transform, const KvLayer& kv);

  /// Attention over pages as they are; the tokens' own keys and values are there.
  void attend_plainly(const AttentionArguments& arguments,
                      const BatchView& batch);  // attention/attention.cu
  /// The same of sequences [first, last) of a batch over codes, which are widened first.
  void attend_widened(const AttentionArguments& arguments, const BatchView& batch, int32_t first,
                      int32_t last);  // attention/attention_widened.cu
  /// Attention over values in keys, of the sequences with at most so many queries.
  void attend_to_latents(const BatchView& batch, const Matrix& qkv, const Matrix& cos_sin,
                         const KvLayer& kv, const AttentionRule& rule, int32_t most_queries,
                         const Matrix& out);  // attention/attention.cu
  /// That of the others over keys and values, which are made first.
  void attend_plain(const Batch& batch, const AttentionArguments& arguments,
                    const LatentHeads& heads,
                    const LatentShape& shape);  // attention/attention_latent_plain.cu

  [[nodiscard]] Queue queue() { return {launched_stream(), overlaps_}; }

  /// Numbers of attention by blocks that stay (attention/attention_split.cuh), on Hopper, else
  /// null.
  [[nodiscard]] unsigned* dealt() const { return reinterpret_cast<unsigned*>(dealt_.get()); }

  /// The product with int4 weights, or codes of floats, as they are. False, with nothing done to
  /// the result, with others and where no kernel has it so. Normalizes the input, or leaves it as
  /// it is.
  bool multiply_packed(Input& input, const Weight& weight, const ProductDestination& to,
                       bool gated);  // linear.cu
  /// The same of codes of floats, by kernels of one operation that take it.
  void multiply_codes(Input& input, const Weight& weight, const ProductDestination& to,
                      bool gated);  // linear.cu
  /// The weight as other products take it, until the next call: of i8 where it is int4, of bf16
  /// where it is of integers and its inputs keep 16 bits, else itself.
  Weight widened(const Weight& weight, DType act);  // linear/widen.cu
  /// Whether experts' products can have tiles of Hopper's kernel. x: what is multiplied.
  [[nodiscard]] bool grouped_tiles_fit(const Matrix& x, const Experts& experts,
                                       int64_t hidden) const;  // experts/experts.cu

  /// The product by the method that linear.cu chooses. False, with nothing done to the result,
  /// where that has no kernel that finishes so. Normalizes the input, or leaves it as it is.
  bool multiply_fused(Input& input, const Weight& weight, const ProductDestination& to, bool gated,
                      const Queue& queue);  // linear.cu
  /// The same of more than a few rows of the weight's type, for any number of outputs.
  bool multiply_many_rows(const Matrix& x, const Weight& weight, const ProductDestination& to,
                          const Queue& queue);  // linear.cu

  struct Ranks;  // ranks/joined_ranks.h
  /// Where a share [rows, cols] of a sum over ranks may be put in the place of `to`, so that these
  /// find its terms there once the sum is next; nothing of other results, and where they cannot.
  std::optional<ProductDestination> place_of_share(const ProductDestination& to, int64_t rows,
                                                   int64_t cols);  // sum_over_ranks.cu
  /// Has multiply(destination) put it there. False, with nothing done to the result, where there is
  /// no such place, or it has no kernel for that.
  template <typename Multiply>
  bool send_share(const ProductDestination& to, int64_t rows, int64_t cols,
                  const Multiply& multiply);  // linear.cu
  static void forget_ranks(Ranks* ranks);
  /// See sum_over_ranks(), with terms of a type of their own, by no step's kernel.
  void add_up_over_ranks(const Matrix& share, OutputMode output, const Matrix& out,
                         DType type);  // sum_over_ranks.cu
  /// Of rows [first, first + rows), which are not many.
  void norm_over_ranks(std::span<const SharedNorm> norms, int64_t first,
                       int64_t rows);  // norm_over_ranks.cu

  int device_;
  std::string name_;
  Stream stream_;
  bool overlaps_ = false;   ///< see Queue
  bool is_hopper_ = false;  ///< has the instructions of sm_90a
  DeviceMemory dealt_;
  std::unique_ptr<Matmul> matmul_;
  StepKernel step_kernel_;
  std::vector<DeviceMemory> weights_;
  Uploads batches_;
  Batch divided_;             ///< of the batch that was uploaded last, see view_of_queries()
  DeviceBuffer chosen_;       ///< [rows] tokens that were drawn last
  DeviceBuffer scratch_;      ///< temporaries of a single operation
  DeviceBuffer widened_;      ///< weights
  DeviceBuffer rotated_;      ///< rows, see rows_for()
  DeviceBuffer coded_;        ///< keys and values made of codes
  DeviceBuffer products_;     ///< gate and up products before the activation
  std::vector<Event> noted_;  ///< times, of which the first n_noted_ are in use
  size_t n_noted_ = 0;
  std::vector<ChoiceMemory> choice_memory_;  ///< that no choices use
  /// Once it has joined others.
  std::unique_ptr<Ranks, void (*)(Ranks*)> ranks_{nullptr, &CudaBackend::forget_ranks};
};

}  // namespace faststream
