// The fast CPU backend. An operation's work is in the file of its name; kernels for an instruction
// set are in kernels_*.cpp.
#pragma once

#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/cpu/host_backend.h"
#include "kernels/cpu/isa/isa.h"
#include "kernels/cpu/isa/kernels.h"
#include "kernels/cpu/sampling/output_screen.h"
#include "kernels/cpu/sampling/row_ranking.h"
#include "support/thread_pool.h"

namespace faststream {

/// The fast CPU backend with kernels of `isa` at most. Throws Error when this machine lacks it.
std::unique_ptr<Backend> make_cpu_backend(int threads, CpuIsa isa);

/// Memory that grows and is reused; 64-byte aligned.
class Scratch {
 public:
  /// At least `count` elements, contents undefined; valid until the next call.
  template <class T>
  T* get(int64_t count) {
    return static_cast<T*>(static_cast<void*>(reserve(static_cast<size_t>(count) * sizeof(T))));
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::byte* reserve(size_t bytes);

  std::unique_ptr<std::byte, Free> memory_;
  size_t size_ = 0;
};

/// Activations are f32; the KV cache is f32 for f32 weights, else 16 bits.
class CpuBackend final : public HostBackend {
 public:
  CpuBackend(int threads, CpuIsa isa);

  [[nodiscard]] std::string description() const override;
  [[nodiscard]] DType activation_dtype(WeightFormat) const override { return DType::f32; }
  [[nodiscard]] DType kv_dtype(WeightFormat weight_format) const override;
  [[nodiscard]] int32_t most_slots() const override { return 128; }
  [[nodiscard]] int32_t first_tokens() const override { return 4; }
  [[nodiscard]] std::span<const int32_t> row_borders() const override { return row_borders_; }
  [[nodiscard]] size_t scratch_bytes(const StepBounds& bounds) const override;

  void embed(const BatchView& batch, const Embedding& embedding, const Matrix& out) override;
  void norm(const Matrix& x, const Norm& norm, OutputMode output, const Matrix& out) override;
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
  void gather_rows(const BatchView& batch, const Matrix& x, const Matrix& out) override;
  void pool(const BatchView& batch, const Matrix& x, Pooling pooling, const Matrix& out) override;
  void soft_cap(float cap, const Matrix& logits) override;
  std::unique_ptr<Choices> choose_greedily(LogitProduct& product, const Matrix& logits,
                                           std::span<const SamplingRow> rules) override;
  void copy_pages(std::span<const KvLayer> layers, std::span<const PageCopy> copies) override;
  void read_memory(const std::byte* data, size_t bytes) override;

 private:
  void sample_rows(const Matrix& logits, std::span<const SamplingRow> rules,
                   std::span<SampledToken> sampled) override;
  void sum_squares(const Matrix& x, const Matrix& sums) override;  // norm.cpp
  void norm_by_squares(const Matrix& x, const Norm& norm, const Matrix& sums,
                       int64_t n) override;  // norm.cpp

  /// x Wᵀ in pieces of channels: `finish` is called with `result` completed by each piece's sums. A
  /// weight of two halves is a gated one: a piece has the same channels of both.
  struct Product {
    Matrix x;
    Weight weight;
    int64_t halves = 1;
    bool in_order = false;   ///< see Epilogue
    bool in_floats = false;  ///< x is not rounded
    FinishTask result;
    void (*finish)(const FinishTask&) = nullptr;

    [[nodiscard]] int64_t channels() const { return weight.rows / halves; }
  };

  /// Up to 16 rows of a product's x.
  struct RowGroup {
    const float* x = nullptr;
    int64_t x_stride = 0;
    int64_t rows = 0;
    int64_t at = 0;  ///< rows of all products before it
  };

  /// How few rows are multiplied by weights of a format.
  struct FewRows {
    WeightFormat multiplied = WeightFormat::f32;  ///< see multiplied_format()
    Kernels::Dot kernel = nullptr;
    int64_t grain = 4;               ///< channels that it takes at least
    std::vector<DotTask> rows = {};  ///< those of each product, as the kernel wants them
  };

  /// Transforms the n_heads query heads of qkv in place, and writes keys and values, if it has
  /// some, to their pages, transformed.
  void rope_append(const BatchView& batch, const Matrix& qkv, int64_t n_heads,
                   const Matrix& cos_sin, const HeadTransform& transform,
                   const KvLayer& kv);  // rope.cpp
  /// What queries of sequences [first, last) see in their pages. is_cross: positions have no
  /// meaning.
  void attend(const BatchView& batch, int32_t first, int32_t last, const Matrix& q,
              const KvLayer& kv, const AttentionRule& rule, bool is_cross,
              const Matrix& out);  // attention.cpp
  /// With what the rule says of the heads from first_head on.
  static AttentionTask attention_task(const AttentionRule& rule,
                                      int64_t first_head);  // attention.cpp
  /// All of heads of one size.
  void run(std::span<AttentionTask> tasks);  // attention.cpp
  /// What the queries of a sequence see by keys and values that heads make of its latents: see
  /// latent_attention(). Queries are rotated.
  void attend_plainly(const BatchView& batch, int32_t sequence, const Matrix& queries,
                      const LatentHeads& heads, const KvLayer& kv, const AttentionRule& rule,
                      const Matrix& out);                            // latent_attention.cpp
  [[nodiscard]] Kernels::Normalize normalizer(NormKind kind) const;  // norm.cpp
  Product linear_product(const Matrix& x, const Weight& weight, const Epilogue& epilogue,
                         const Matrix& out) const;  // linear.cpp
  Product gated_product(const Matrix& x, const Weight& gate_up, const float* bias, const Gate& gate,
                        const Matrix& out) const;  // gated_linear.cpp
  /// As head_linear(); in_floats: x is not rounded.
  void multiply_heads(const Matrix& x, const Weight& weight, int64_t n_heads, bool in_floats,
                      const Matrix& out);  // head_linear.cpp
  /// Products of one shape and format of weights, but of any numbers of rows.
  void multiply(std::vector<Product> products);  // product.cpp
  /// Products that the same kernels multiply; null: floats are multiplied.
  void multiply_alike(std::span<Product> products, const TileKernels* tiles);  // product.cpp
  /// Null where floats are multiplied.
  [[nodiscard]] const TileKernels* tiles_of(const Product& product) const;  // product.cpp
  /// The format that kernels read of weights of this one: itself, or what they are decoded to
  /// before, without loss.
  [[nodiscard]] WeightFormat multiplied_format(WeightFormat format,
                                               const TileKernels* tiles) const;  // product.cpp
  /// Of a format that is_coded().
  [[nodiscard]] const CodedKernels& coded_kernels(WeightFormat format) const {
    return kernels_.coded[static_cast<size_t>(format)];
  }
  /// Writes a channel of what multiplied_format() decodes, decoded.
  void decode_channel(const Weight& weight, int64_t channel, std::byte* to) const;  // product.cpp
  [[nodiscard]] static std::vector<RowGroup> row_groups(std::span<const Product>);  // product.cpp
  /// The group's rows without gaps as a product with `weight` takes them: themselves, or rotated,
  /// in memory of the thread until the next call.
  RowGroup rows_for(const Weight& weight, const RowGroup& group, int thread);  // product.cpp
  /// Rounds each x to eight bits by row, in f32; valid until the next call.
  void round_rows(std::span<Product> products);  // product.cpp
  /// Valid until the next call.
  FewRows prepare_few_rows(std::span<const Product> products);  // product.cpp
  void pack_few_rows(std::span<const Product> products, const TileKernels& tiles,
                     std::span<DotTask> tasks);               // product.cpp
  void multiply_few_rows(std::span<const Product> products);  // product.cpp
  void multiply_panels(const Product& product);               // product_panels.cpp
  /// `count` elements of a row as floats, but for row_scales(): themselves, or in `room`.
  const float* widen_weights(const Weight& weight, int64_t row, int64_t first, int64_t count,
                             float* room) const;  // product_panels.cpp
  void multiply_tiles(const Product& product);    // product_tiles.cpp

  /// Whether the likeliest tokens of such output matrices may be searched by screens.
  [[nodiscard]] bool has_screens_of(WeightFormat format, int64_t inputs) const;
  /// Null where they are not.
  const OutputScreen* screen_of(const LogitProduct& product,
                                std::span<const SamplingRow> rules);  // greedy.cpp
  /// Samples the rows `missed` of all by their logits.
  void sample_missed(const LogitProduct& product, const Matrix& x, const Matrix& logits,
                     std::span<const SamplingRow> rules, std::span<const size_t> missed,
                     std::span<SampledToken> sampled);  // greedy.cpp

  /// The output matrix whose likeliest tokens were wanted last.
  struct Screened {
    const void* matrix = nullptr;
    std::unique_ptr<OutputScreen> screen = {};
    int64_t rows = 0;
    int64_t missed = 0;  ///< of them, those that the screen did not serve
  };

  CpuIsa isa_;
  Kernels kernels_;
  std::vector<int32_t> row_borders_;
  ThreadPool pool_;
  std::vector<Scratch> thread_scratch_;  // one a thread
  std::vector<Scratch> thread_rows_;     // likewise: rotated rows
  std::vector<RowRanking> rankings_;     // likewise
  Scratch shared_scratch_;               // what all threads of an operation read
  Scratch scale_scratch_;
  Scratch row_scratch_;  // rows of x made anew
  Scratch expert_scratch_;
  Scratch latent_scratch_;                      // keys and values made of latents
  std::vector<AttentionTask> attention_tasks_;  // memory of them, kept from call to call
  Screened screened_;
};

/// Channels that few rows are multiplied with one after the other stay in the second-level cache,
/// where they are decoded to.
inline constexpr int64_t kFewRowsBlockBytes = int64_t{128} << 10;

/// Bytes that keys and values of a model's latents take, of sequences of so many tokens at most.
int64_t plain_bytes(const LatentBound& latent, int64_t context);

/// Floats of a thread's scratch that multiply_panels() takes.
int64_t panel_scratch();

/// The kernels' name of a type. Throws std::logic_error for integers.
FloatType float_type(DType type);

/// Throws std::logic_error unless `m` is [rows, cols] f32.
void require_f32(const Matrix& m, int64_t rows, int64_t cols, const char* what);

}  // namespace faststream
