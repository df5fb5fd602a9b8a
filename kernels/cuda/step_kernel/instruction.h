// What a step consists of: an operation on a row, or on that of each token, for all multiprocessors
// together.
#pragma once

#include <cstdint>
#include <type_traits>

#include "backend/backend.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/linear/linear_few_rows.h"
#include "kernels/cuda/ranks/peer_memory.h"

namespace faststream {

namespace step_kernel {

/// Which packed weights a step may have: none, int4, or that and codes of floats that are widened,
/// or that and fp8, whose codes Hopper's own instructions multiply. (Beside function calls, which
/// widening has, these would wait for each other.)
enum class Packed { none, int4, widened, e4m3 };

constexpr Packed packed_of(WeightFormat format) {
  if (stored_type(format) != DType::packed) return Packed::none;
  return format == WeightFormat::int4  ? Packed::int4
         : format == WeightFormat::fp8 ? Packed::e4m3
                                       : Packed::widened;
}
/// Whether a step may have both.
constexpr bool go_together(Packed a, Packed b) {
  return a == b || a <= Packed::int4 || b <= Packed::int4;
}

}  // namespace step_kernel

/// A row in a step's memory. Each instruction's result has a place of its own there, which is
/// unset, all ones, until it is written: no result has such a word.
struct Row {
  int64_t offset = -1;   ///< bytes; negative: there is none
  bool awaited = false;  ///< an instruction of this step makes it
};

/// Attention of one token's queries, or of those of several sequences' tokens, after these and its
/// key are transformed and its key and value are in their page. Of several, token n is that of
/// sequence n, and what is said of it in numbers here is of the one with most.
struct AttendInstruction {
  AttentionArguments attention;  ///< out: null where nobody needs it there
  Row queries;                   ///< not transformed
  Row keys;                      ///< of the token, likewise, and its values; none where an earlier
  Row values;                    ///< step has brought them to their page
  bool appends = true;           ///< brings them there, or an earlier instruction does
  Row result;
  Splits splits;
  Row partials;            ///< where there are several splits: pairs of floats [token, head, split,
                           ///< 1 + head_dim / 2]
  int32_t tile_heads = 0;  ///< query heads of a split
  int32_t group = 0;       ///< query heads of a KV head
  int32_t head_tiles = 0;  ///< of all KV heads
  int32_t parts = 0;       ///< of the context
  int32_t first_token = 0;
  int32_t part_tokens = 0;
  HeadTransform transform;
  const float* cos_sin = nullptr;
  int32_t rotated_dims = 0;
  int32_t kv_len = 0;  ///< of the token's sequence, which has no other one in the step
  int32_t dealt = 0;   ///< the block that has the first item
  int32_t tokens = 1;
};

/// RowElements of a row, or of several with so many elements from one to the next.
struct RowElements {
  Row row;
  DType dtype = DType::f32;
  int64_t stride = 0;
  const void* in_place = nullptr;  ///< where no instruction makes them

  [[nodiscard]] __host__ __device__ bool exist() const {
    return row.offset >= 0 || in_place != nullptr;
  }
};

/// A product of a weight with a row, or with that of each token, or of some experts' parts of one
/// with one row, or with one for each expert. A tile is 16 rows of the weight, or of gate and up 8
/// each. Its rows go through shared memory in chunks. Or how tokens' rows become what a product
/// behind multiplies, each made by one block: `result` has bytes of its x.
struct ProductInstruction {
  Row x;
  DType x_dtype = DType::f32;
  // Where all blocks hold it, of a norm that is everyone's: byte of their memory for what is
  // multiplied. Negative: they do not.
  int32_t held_at = -1;
  int32_t x_rows = 1;  ///< tokens, or experts used, where each has its own
  int64_t x_stride = 0;
  Norm norm;            ///< of x; then it is rounded to the step's type
  RowElements factors;  ///< of a row of that type, element by element, if there are any
  const void* weight = nullptr;
  WeightFormat weight_format =
      WeightFormat::f32;  ///< the step's type, or one of integers or codes; of a router also f32
  bool rotated = false;   ///< see Weight
  int32_t inputs = 0;
  int32_t x_bytes = 0;         ///< of a row of x as it is multiplied
  int64_t row_bytes = 0;       ///< of the weight
  int32_t streamed_bytes = 0;  ///< of these, from the first on, what stages have; or of a part
  int32_t chunk_bytes = 0;     ///< of a row of the weight, of a stage
  int32_t outputs = 0;         ///< of the result: half the weight's rows when gated
  int32_t tiles = 0;           ///< of one expert
  // Which tiles are whose: of all blocks number dealt + n, from the end on as from the beginning,
  // has the n-th, n < blocks, and so on in turn.
  int32_t dealt = 0;
  int32_t blocks = 0;
  int32_t tiles_of_each = 0;  ///< that each such block has, and
  int32_t tiles_more = 0;     ///< so many have one more
  // Of several tokens, where shared memory has no room for whole rows of x: parts of the inputs. A
  // block has tiles of one; then all blocks together sum what tiles have of all parts.
  int32_t input_parts = 1;
  Row partials;  ///< twice the sums, words [part, token, output]
  bool gated = false;
  Row added;       ///< what the result is added to, if anything
  Row result;      ///< elements to.stride apart from row to row
  Destination to;  ///< out: null where nobody needs it there
  Terms terms;     ///< that the result is one rank's of, which all are given

  // Of experts.
  Row logits;             ///< f32 [n_experts]
  int32_t n_experts = 0;  ///< 0: this is no product of experts
  Router router;
  bool sums_experts = false;  ///< the results by their weights, or each in a row of its own
};

/// The state that a layer of the only sequence goes on from, and the one that it leaves.
struct StateOfToken {
  StateLayer states;
  const int32_t* from = nullptr;  ///< number of the state
  const int32_t* to = nullptr;

  [[nodiscard]] __host__ __device__ const float* before() const {
    return states.data + *from * states.stride;
  }
  [[nodiscard]] __host__ __device__ float* after() const {
    return states.data + *to * states.stride;
  }
};

/// A convolution over a row and those of the tokens before.
struct ConvolveInstruction {
  Row x;
  Convolution convolution;
  StateOfToken state;
  int32_t channels = 0;
  Row result;
  void* out = nullptr;  ///< null where nobody needs it there
};

/// A token of a recurrence.
struct RecurInstruction {
  Row q;
  Row k;
  Row v;
  Row gates;
  Recurrence recurrence;
  StateOfToken state;
  int32_t pieces = 0;         ///< that a head's columns are dealt in
  int32_t heads_of_key = 1;   ///< that a key head serves
  int32_t parts_of_warp = 1;  ///< see token_parts()
  int32_t keys_of_part = 4;
  Row result;
  void* out = nullptr;  ///< null where nobody needs it there
};

/// result = (before + norm(x)) · activation(factors), of rows, or before + a sum over ranks;
/// rounded to the result's type after the sum and after the product.
struct NormInstruction {
  RowElements x;
  Terms terms;                ///< of the sum, in the place of x: one row, without norm and factors
  bool x_is_held = false;     ///< the only row, by whoever made it: the instruction before
  int32_t held_at = 0;        ///< where products find it (theirs); 0: the next instruction alone
  bool is_everyones = false;  ///< all blocks make the only row, for themselves
  int32_t rows = 1;
  int32_t columns = 0;
  int32_t first_block = 0;  ///< that has the first row, or stores what all have
  Norm norm;                ///< or none
  Row before;               ///< if anything, of the result's type and stride
  int32_t before_at = -1;   ///< where it is held, as a product's x; negative: nowhere
  enum class Factors : int32_t { none, one, of_rows, of_elements };  ///< one for all, or for each
  Factors factors_are = Factors::none;
  Activation activation = Activation::none;
  RowElements factors;
  RowElements result;
  void* out = nullptr;  ///< null where nobody needs it there
};

struct alignas(16) Instruction {
  enum class Kind : int32_t {
    attend,
    prepare,  ///< a product's rows
    multiply,
    multiply_in_order,
    multiply_floats,
    convolve,
    recur,
    norm
  };
  Kind kind = Kind::multiply;
  bool is_read = false;  ///< its result, by another one
  union {
    AttendInstruction attend;
    ProductInstruction product;
    ConvolveInstruction convolve;
    RecurInstruction recur;
    NormInstruction norm;
  };

  explicit Instruction(const AttendInstruction& a) : kind(Kind::attend), attend(a) {}
  Instruction(Kind k, const ProductInstruction& p) : kind(k), product(p) {}
  explicit Instruction(const ConvolveInstruction& c) : kind(Kind::convolve), convolve(c) {}
  explicit Instruction(const RecurInstruction& r) : kind(Kind::recur), recur(r) {}
  explicit Instruction(const NormInstruction& n) : kind(Kind::norm), norm(n) {}

  /// Where its result is in the step's memory.
  [[nodiscard]] const Row& result() const {
    switch (kind) {
      case Kind::attend:
        return attend.result;
      case Kind::convolve:
        return convolve.result;
      case Kind::recur:
        return recur.result;
      case Kind::norm:
        return norm.result.row;
      default:
        return product.result;
    }
  }
  /// Where its result goes in memory, besides the step's.
  [[nodiscard]] void*& out() {
    switch (kind) {
      case Kind::attend:
        return attend.attention.out.data;
      case Kind::convolve:
        return convolve.out;
      case Kind::recur:
        return recur.out;
      case Kind::norm:
        return norm.out;
      default:
        return product.to.out;
    }
  }
};
static_assert(std::is_trivially_copyable_v<Instruction>);

}  // namespace faststream
