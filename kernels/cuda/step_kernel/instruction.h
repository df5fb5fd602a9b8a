// What a step consists of: an operation on one row, for all multiprocessors together.
#pragma once

#include <cstdint>
#include <type_traits>

#include "backend/backend.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/linear/linear_few_rows.h"

namespace faststream {

/// A row in a step's memory. Each instruction's result has a place of its own there, which is
/// unset, all ones, until it is written: no result has such a word.
struct Row {
  int64_t offset = -1;   ///< bytes; negative: there is none
  bool awaited = false;  ///< an instruction of this step makes it
};

/// Attention of a token's queries, after these and its key are transformed and its key and value
/// are in their page.
struct AttendInstruction {
  AttentionArguments attention;  ///< of one sequence; out: null where nobody needs it there
  Row qkv;                       ///< queries, not transformed, keys and values
  Row result;
  Splits splits;
  Row partials;  ///< where there are several splits: pairs of floats [head, split, 1 + head_dim /
                 ///< 2]
  int32_t tile_heads = 0;  ///< query heads of a split
  HeadTransform transform;
  const float* cos_sin = nullptr;
  int32_t rotated_dims = 0;
  int32_t kv_len = 0;  ///< of the only sequence
};

/// A product of a weight, or of some experts' parts of one, with one row, or with one for each
/// expert. A tile is 16 rows of the weight, or of gate and up 8 each. Its rows
/// go through shared memory in chunks.
struct ProductInstruction {
  Row x;
  DType x_dtype = DType::f32;
  int32_t x_rows = 1;  ///< experts used, where each has its own
  int64_t x_stride = 0;
  Norm norm;  ///< of x; then it is rounded to the step's type
  const void* weight = nullptr;
  WeightFormat weight_format =
      WeightFormat::f32;  ///< the step's type or int8; of a router also f32
  bool rotated = false;   ///< see Weight
  int32_t inputs = 0;
  int64_t row_bytes = 0;  ///< of the weight
  int32_t outputs = 0;    ///< of the result: half the weight's rows when gated
  int32_t tiles = 0;      ///< of one expert
  // Which tiles are whose: block (dealt + n) % blocks has the n-th, and so on in turn.
  int32_t dealt = 0;
  int32_t tiles_of_each = 0;  ///< that each block has, and
  int32_t tiles_more = 0;     ///< so many have one more
  bool gated = false;
  Row added;       ///< what the result is added to, if anything
  Row result;      ///< elements to.stride apart from row to row
  Destination to;  ///< out: null where nobody needs it there

  // Of experts.
  Row logits;             ///< f32 [n_experts]
  int32_t n_experts = 0;  ///< 0: this is no product of experts
  Router router;
  bool sums_experts = false;  ///< the results by their weights, or each in a row of its own
};

struct alignas(16) Instruction {
  enum class Kind : int32_t { attend, multiply, multiply_in_order, multiply_floats };
  Kind kind = Kind::multiply;
  union {
    AttendInstruction attend;
    ProductInstruction product;
  };

  explicit Instruction(const AttendInstruction& a) : kind(Kind::attend), attend(a) {}
  Instruction(Kind k, const ProductInstruction& p) : kind(k), product(p) {}
};
static_assert(std::is_trivially_copyable_v<Instruction>);

}  // namespace faststream
