// The operations of a step of few tokens, run by one kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "backend/backend.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/queue.h"
#include "kernels/cuda/ranks/peer_memory.h"
#include "kernels/cuda/recurrent/recur.h"
#include "kernels/cuda/step_kernel/instruction.h"

namespace faststream {

class PeerSums;

/// Bytes of what an instruction multiplies, in shared memory; the most that it may have.
inline constexpr int kMaxInputBytes = 44 << 10;
/// Tokens of a step, each of a sequence of its own; and where there are several, parts of a
/// weight's row, bytes of their sums, and elements of a head.
inline constexpr int kMaxTokens = 8;
inline constexpr int kMaxInputParts = 8;
inline constexpr int64_t kMaxPartialBytes = int64_t{1} << 20;
inline constexpr int kMaxTokenHead = 128;
/// Elements of a row that is normalized, and eights of any other for each thread; what registers
/// hold.
inline constexpr int kMaxNormalized = 8192;
/// Elements of a row that has an instruction for its norm; of one for a warp; and of one whose
/// elements have factors each.
inline constexpr int kMaxNormRow = 5120;
inline constexpr int kMaxWarpNormalized = 256;
inline constexpr int kMaxFactors = 256;
inline constexpr int kMaxProducts = 4096;  ///< of a product's row with factors
inline constexpr int kMaxEights = 8;       ///< a thread
inline constexpr int kMaxInputs = 8 * kMaxEights * 256;
inline constexpr int kMaxExpertInputs = 8 * kMaxEights * 64;
inline constexpr int kMaxWarpInputs = 8 * kMaxEights * 32;  // where a warp has a row of its own
/// The longest result that another instruction may read.
inline constexpr size_t kMaxRowBytes = size_t{64} << 10;
inline constexpr int kMaxFloatInputs = 4096;  ///< beside weights of floats
/// Where a tile sums several experts' results, and where blocks of a row are summed one by one.
inline constexpr int kMaxTileStages = 40;
inline constexpr int kMaxTaps = 4;         ///< of a convolution
inline constexpr int kMaxStateKeys = 128;  ///< of a recurrence
/// Limits of an instruction's experts.
inline constexpr int kMaxExpertsUsed = 32;
inline constexpr int kMaxExpertsChosenFrom = 512;
inline constexpr int kChoiceBytes = (256 + 64) * 4;  ///< 256 experts of 64 groups

inline bool begins_at(const void* data, size_t multiple) {
  return reinterpret_cast<uintptr_t>(data) % multiple == 0;
}

/// The right to run the step's kernel on a GPU. Its blocks wait for each other, so all must run at
/// once, and they would not beside those of another one: one backend of a process has it, and none
/// where processes share a GPU at the same time (CUDA's Multi-Process Service).
class StepKernelTurn {
 public:
  /// A negative device has no turn.
  explicit StepKernelTurn(int device);
  ~StepKernelTurn();
  StepKernelTurn(const StepKernelTurn&) = delete;
  StepKernelTurn& operator=(const StepKernelTurn&) = delete;

  explicit operator bool() const { return device_ >= 0; }

 private:
  int device_ = -1;  ///< negative: no turn
};

/// Collects operations on one row and launches them together: from Hopper on, products of i8, int4
/// and bf16 weights, and what is between them: attention, convolutions, recurrences, norms and
/// factors. Of several tokens' rows, products of i8 and bf16 weights and attention: of a model that
/// has others between them none, once that was seen. Each method adds an operation and returns
/// true, or returns false where the kernel cannot have it, or where it begins with anything else.
/// An operation's results are there once launch() was called and the kernel has run.
class StepKernel {
 public:
  /// Of the current GPU, which is number `device`. able: whether it can run this kernel.
  StepKernel(bool able, int device, cudaStream_t stream);

  bool linear(const Input& input, const Weight& weight, const Destination& to);
  bool gated_linear(const Input& input, const Weight& gate_up, const Destination& to);
  bool experts(const Input& input, const Matrix& scores, const Router& router,
               const Experts& experts, bool add, const Matrix& out);
  /// arguments, but for rotation; see Backend::attention(). appends: queries have keys and values
  /// behind them.
  bool attention(const BatchView& batch, const AttentionArguments& arguments,
                 const HeadTransform& transform, const Matrix& cos_sin, bool appends);
  bool convolve(const BatchView& batch, const Matrix& x, const Convolution& convolution,
                const StateLayer& states, const Matrix& out);
  bool recur(const RecurArguments& arguments);
  bool norm(const Matrix& x, const Norm& norm, bool add, const Matrix& out);
  bool scale(const Matrix& factors, Activation activation, const Matrix& m);
  /// See Backend::sum_over_ranks(); join() was called. Nobody reads the share otherwise.
  bool sum_over_ranks(const Matrix& share, bool add, const Matrix& out);

  /// The memory of the ranks' sums, which outlives this; null: there is none.
  void join(PeerSums* sums);
  /// Launches what was added, if anything.
  void launch();
  /// Whether operations are added from now on, where the GPU can run it; they are at first.
  /// several: also those of several tokens, each of a sequence of its own.
  void collect(bool on, bool several = false);

 private:
  /// A part of the GPU's memory.
  struct Span {
    const std::byte* data = nullptr;
    size_t bytes = 0;

    [[nodiscard]] bool overlaps(const Span& other) const {
      return data < other.data + other.bytes && other.data < data + bytes;
    }
    [[nodiscard]] bool covers(const Span& other) const {
      return data <= other.data && other.data + other.bytes <= data + bytes;
    }
  };
  static Span span_of(const void* data, int64_t elements, DType type);
  /// Of all rows, with what is between them: views of one matrix cover each other as their rows do.
  static Span span_of(const Matrix& m);

  /// Whether operations on so many tokens' rows are added, after a launch of those on others.
  bool take_tokens(int64_t count);

  /// What the step has of a span's present content.
  struct Known {
    Span span;
    int64_t offset = -1;       ///< in the step's memory; negative: it is not there
    int64_t instruction = -1;  ///< that makes it; negative: it comes from outside
  };

  /// Before an instruction is added that reads and writes these: launches the step, where one
  /// could not say from which result something is read, or which one is there at last.
  void make_way(std::initializer_list<Span> read, const Span& written);
  /// Whether such a part of what is known may be written anew.
  [[nodiscard]] bool can_cut(const Known& known, const Span& written) const;
  std::vector<Instruction> take_instructions();
  /// Adds what brings to memory what a step leaves of results that were written anew in part.
  void store_what_is_left();
  /// The row that is read from there.
  Row row_of(const Span& span);
  /// Some instruction reads what another one makes, if there is one.
  void note_reader_of(const Known& known);
  /// The row of the result that the next instruction makes there.
  Row result_at(const Span& span);
  int64_t reserve(size_t bytes);
  int64_t reserve(const Span& span);

  /// Whether the kernel can multiply what `input` says by rows of `weight`: fills in what follows
  /// from both, but for the row.
  bool describe(const Input& input, const Weight& weight, ProductInstruction& product) const;
  bool multiply(const Input& input, const Weight& weight, const Destination& to, bool gated);
  Row prepare_tokens(const ProductInstruction& product);
  void add(ProductInstruction product);
  [[nodiscard]] int32_t blocks_of_few_tiles(const Row& x) const;
  [[nodiscard]] bool makes(const Span& span) const;
  NormInstruction* maker_of(const Span& span);
  /// The product that makes all of a row of floats and nothing else, and nobody reads: it is
  /// forgotten; or null.
  ProductInstruction* take_product_of(const Span& span);
  void hold(const Span& span, ProductInstruction& p);
  bool make_everyones(const Span& span, int32_t columns);
  [[nodiscard]] int32_t place_of_held(const Row& row, int32_t columns) const;
  /// A block writes what an instruction needs there: so many of its bytes for what is multiplied.
  void write_over_held(int64_t bytes);
  [[nodiscard]] int64_t last_maker_of(std::initializer_list<Span> spans) const;
  [[nodiscard]] bool waits_for_last(size_t n) const;
  void order_experts(int64_t needed);
  bool take_factors(const Span& span, ProductInstruction& p);
  void add_factors(NormInstruction& n, const Span& factors, DType type, Activation activation,
                   NormInstruction::Factors kind);

  StepKernelTurn turn_;
  bool enabled_;
  cudaStream_t stream_;
  int multiprocessors_ = 0;
  std::vector<Instruction> instructions_;
  int64_t tokens_ = 1;                   ///< of the instructions
  int64_t most_tokens_ = 1;              ///< that there may be
  int64_t most_undivided_ = kMaxTokens;  ///< between whose operations the model has no others
  int launches_of_several_ = 0;          ///< since collect()
  int32_t dealt_ = 0;                    ///< the block that gets the next tile
  int32_t head_dim_ = 0;                 ///< the largest; 0: nothing attends
  bool varied_ = false;                  ///< some rule is no LastRule
  step_kernel::Packed packed_ = step_kernel::Packed::none;  ///< what weights there are
  int32_t held_ = -1;  ///< norm whose row all blocks hold for products; negative: none
  std::vector<Known> known_;
  std::vector<Known> from_outside_;  ///< what is copied to the step's memory before it runs
  std::vector<Span> in_place_;       ///< what comes from outside and is read where it is
  size_t reserved_ = 0;              ///< bytes of that memory
  /// Two steps' memories, by turns: one makes unset again what the other has used.
  struct Rows {
    DeviceBuffer memory;
    size_t size = 0;
    size_t used = 0;
  };
  Rows rows_[2];
  int turn_of_rows_ = 0;
  PeerSums* sums_ = nullptr;
  Uploads uploads_;
};

}  // namespace faststream
