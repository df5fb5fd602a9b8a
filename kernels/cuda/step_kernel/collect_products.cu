// Which products become instructions.
#include "kernels/cuda/step_kernel/step_kernel.h"

#include <algorithm>
#include <cstddef>

#include "kernels/cuda/coded.cuh"
#include "kernels/cuda/experts/choose_experts.cuh"
#include "kernels/cuda/hadamard.cuh"
#include "kernels/cuda/linear/linear_few_rows.h"
#include "kernels/cuda/step_kernel/shared_memory.cuh"

namespace faststream {

namespace {

constexpr int64_t kMaxOutputs = int64_t{1} << 30;

// Whether those of any eight channels can be copied, in pieces of 16 bytes: of `outputs` channels,
// or twice as many where there are gates.
bool copies_in_pieces(const float* scales, const float* bias, int64_t outputs) {
  return outputs % 4 == 0 && begins_at(scales, 16) && begins_at(bias, 16);
}

// Of a row of x as weights of the format are multiplied with it. Groups of int4 are whole.
int64_t bytes_of_x(const Weight& weight, DType act) {
  switch (weight.format) {
    case WeightFormat::int8:
      return weight.cols;
    case WeightFormat::int4:
      return (weight.cols + kInt4Group - 1) / kInt4Group * kInt4Group;
    case WeightFormat::fp8:  // to a chunk's end
      return ceil_div(weight.cols, step_kernel::kChunkBytes) * step_kernel::kChunkBytes;
    default:
      return weight.cols * static_cast<int64_t>(dtype_size(act));
  }
}

// Of the sums of parts of several tokens' inputs.
int64_t partial_bytes(const ProductInstruction& p, int64_t outputs) {
  return int64_t{p.input_parts} * p.x_rows * outputs * static_cast<int64_t>(sizeof(int32_t));
}

// What a product multiplies, in shared memory.
int64_t input_bytes(const ProductInstruction& p) {
  if (p.weight_format != WeightFormat::fp8) return int64_t{p.x_rows} * p.x_bytes;
  const int chunks = step_kernel::e4m3_chunks(p.x_rows, p.inputs);
  return int64_t{step_kernel::kChunkBytes} * step_kernel::e4m3_columns(chunks);
}

// Of several tokens' rows, takes as few parts of them as shared memory has room for. False where
// such weights are not multiplied by these, or sums of parts would take too much memory. outputs:
// whose inputs may be parts.
bool take_input_parts(ProductInstruction& p, int64_t outputs) {
  const bool is_int8 = p.weight_format == WeightFormat::int8;
  if (!is_int8 && p.weight_format != WeightFormat::bf16) return false;
  const int most_stages = step_kernel::most_token_stages(p.x_rows);
  const int most = is_int8 && outputs > 0 ? kMaxInputParts : 1;  // floats are summed in order
  for (int parts = 1; parts <= most; ++parts) {
    if (parts > 1 && p.row_bytes % (parts * int64_t{16}) != 0) continue;
    const int64_t bytes = p.row_bytes / parts;
    if (p.x_rows * (bytes + 16) > kMaxInputBytes) continue;
    if (is_int8 && ceil_div(bytes, step_kernel::kChunkBytes) > most_stages) continue;
    p.input_parts = parts;
    p.streamed_bytes = static_cast<int32_t>(bytes);
    return parts == 1 || partial_bytes(p, outputs) <= kMaxPartialBytes;
  }
  return false;
}

}  // namespace

bool StepKernel::describe(const Input& input, const Weight& weight,
                          ProductInstruction& product) const {
  const Matrix& x = input.x;
  const bool is_float = x.dtype == DType::f32;
  const DType act = input.is_ready() ? x.dtype : input.normed.dtype;
  const int64_t row_bytes = weight.row_bytes();
  const bool is_e4m3 = weight.format == WeightFormat::fp8;
  const int64_t streamed_bytes = is_e4m3 ? e4m3_code_bytes(weight.cols) : row_bytes;
  const int64_t chunks = ceil_div(streamed_bytes, step_kernel::chunk_bytes_of(weight.format));
  const bool has_codes = is_coded(weight.format) && weight.cols % kPackedStep == 0 &&
                         chunks <= kMaxTileStages &&
                         (!is_e4m3 || x.rows * chunks <= step_kernel::kMaxE4m3Columns);
  const bool types = act == DType::bf16 && (is_float || x.dtype == act) &&
                     (has_codes || (is_integer(weight.format) && weight.quantizes_inputs()) ||
                      weight.format == WeightFormat::f32 ||
                      (weight.stored_as() == act && row_bytes % step_kernel::kPairBytes == 0));
  const int64_t x_bytes = bytes_of_x(weight, act);
  // Of int4, those that products of more rows take: a row has the same bits alone.
  const int64_t grain = is_integer(weight.format) ? 16 : 8;
  const bool fits = row_bytes % 16 == 0 && weight.cols % grain == 0 && weight.rows < kMaxOutputs &&
                    x.rows * x_bytes <= kMaxInputBytes;
  // A row with a norm is of the residual stream, and alone.
  const bool has_norm = !input.is_ready() && input.norm.kind != NormKind::none;
  const bool held = is_float
                        ? x.rows == 1 && weight.cols <= kMaxNormalized
                        : !has_norm && weight.cols <= (x.rows == 1 ? kMaxInputs : kMaxExpertInputs);
  const bool rotates = !weight.rotated || can_rotate(weight.cols);
  const bool has_kernel = go_together(step_kernel::packed_of(weight.format), packed_);
  if (!enabled_ || !types || !has_kernel || !fits || !held || !rotates ||
      !begins_at(weight.data, 16) || !rows_begin_at_16(x.data, x.stride, x.dtype) ||
      !begins_at(input.norm.weight, 16)) {
    return false;
  }
  product.x_dtype = x.dtype;
  product.x_rows = static_cast<int32_t>(x.rows);
  product.x_stride = x.stride;
  product.norm = has_norm ? input.norm : Norm{};
  product.weight = weight.data;
  product.weight_format = weight.format;
  product.rotated = weight.rotated;
  product.inputs = static_cast<int32_t>(weight.cols);
  product.x_bytes = static_cast<int32_t>(x_bytes);
  product.row_bytes = row_bytes;
  product.streamed_bytes = static_cast<int32_t>(streamed_bytes);
  product.chunk_bytes = step_kernel::chunk_bytes_of(weight.format);
  return true;
}

bool StepKernel::multiply(const Input& input, const Weight& weight, const Destination& to,
                          bool gated) {
  ProductInstruction p;
  const Matrix& x_matrix = input.x;
  const auto tokens = static_cast<int32_t>(x_matrix.rows);
  Input of_first = input;
  of_first.x = x_matrix.row_range(0, 1);
  if (!take_tokens(tokens) || !describe(of_first, weight, p)) return false;
  const bool floats = weight.format == WeightFormat::f32;
  p.x_rows = tokens;
  if (tokens > 1 && (!take_input_parts(p, gated ? 0 : weight.rows) ||
                     !rows_begin_at_16(to.out, to.stride, to.dtype))) {
    return false;
  }
  const bool is_float = to.dtype == DType::f32;
  if (floats && (gated || !is_float || instructions_.empty())) return false;
  if (!is_float && (to.add || to.dtype != DType::bf16)) return false;
  if (floats ? weight.cols > kMaxFloatInputs
             : !copies_in_pieces(to.scales, to.bias, gated ? weight.rows / 2 : weight.rows)) {
    return false;
  }
  p.outputs = static_cast<int32_t>(gated ? weight.rows / 2 : weight.rows);
  p.gated = gated;
  p.tiles = floats ? p.outputs : ceil_div(p.outputs, gated ? 8 : 16);
  p.to = to;

  const Span x = span_of(x_matrix);
  const Span out = span_of(to.out, (tokens - 1) * to.stride + p.outputs, to.dtype);
  make_way(to.add ? std::initializer_list<Span>{x, out} : std::initializer_list<Span>{x}, out);
  if (!take_factors(x, p)) {
    p.x = row_of(x);
    hold(x, p);
  }
  if (tokens > 1) {
    p.x = prepare_tokens(p);
    p.norm = {};
  }
  if (p.input_parts > 1) {
    p.partials = {reserve(static_cast<size_t>(partial_bytes(p, weight.rows))), true};
  }
  if (to.add) p.added = row_of(out);
  p.result = result_at(out);
  add(p);
  return true;
}

// What becomes of the tokens' rows before they are multiplied: those, and then their scales. By the
// first blocks: by others in turn it takes as long.
Row StepKernel::prepare_tokens(const ProductInstruction& product) {
  ProductInstruction rows = product;
  rows.to = {};
  rows.dealt = 0;
  const auto bytes = static_cast<size_t>(rows.x_bytes) + sizeof(float);
  rows.result = {reserve(static_cast<size_t>(rows.x_rows) * bytes), true};
  instructions_.emplace_back(Instruction::Kind::prepare, rows);
  return rows.result;
}

bool StepKernel::linear(const Input& input, const Weight& weight, const Destination& to) {
  return multiply(input, weight, to, false);
}

bool StepKernel::gated_linear(const Input& input, const Weight& gate_up, const Destination& to) {
  return multiply(input, gate_up, to, true);
}

bool StepKernel::experts(const Input& input, const Matrix& scores, const Router& router,
                         const Experts& experts, bool add_to, const Matrix& out) {
  ProductInstruction up;
  ProductInstruction down;
  const Matrix middle(nullptr, DType::bf16, router.used, experts.down.cols);
  if (input.x.rows != 1 || !take_tokens(1) || router.used > kMaxExpertsUsed ||
      experts.n_experts > kMaxExpertsChosenFrom ||
      choice_bytes(experts.n_experts, router) > kChoiceBytes ||
      experts.up.format == WeightFormat::f32 || experts.down.format == WeightFormat::f32 ||
      out.dtype != DType::f32 || !describe(input, experts.up, up) ||
      !describe({.x = middle}, experts.down, down) ||
      router.used * ceil_div(down.streamed_bytes, down.chunk_bytes) > kMaxTileStages ||
      !copies_in_pieces(experts.up.row_scales(), experts.up_bias, middle.cols) ||
      !copies_in_pieces(experts.down.row_scales(), experts.down_bias, out.cols)) {
    return false;
  }
  const Span x = span_of(input.x.data, up.inputs, up.x_dtype);
  const Span logits = span_of(scores.data, scores.cols, DType::f32);
  const Span result = span_of(out.data, out.cols, out.dtype);
  make_way(add_to ? std::initializer_list<Span>{x, logits, result}
                  : std::initializer_list<Span>{x, logits},
           result);

  const int64_t needed = last_maker_of({x, logits});
  up.x = row_of(x);
  hold(x, up);
  up.outputs = static_cast<int32_t>(middle.cols);
  up.gated = experts.gated;
  up.tiles = ceil_div(middle.cols, experts.gated ? 8 : 16);
  up.result = {
      .offset = reserve(static_cast<size_t>(middle.rows * middle.cols) * dtype_size(middle.dtype)),
      .awaited = true};
  up.logits = row_of(logits);
  up.n_experts = experts.n_experts;
  up.router = router;
  up.to = {.dtype = middle.dtype,
           .gate_limit = experts.gate_limit,
           .stride = middle.stride,
           .scales = experts.up.row_scales(),
           .bias = experts.up_bias,
           .activation = experts.activation};
  add(up);

  down.x = up.result;
  down.outputs = static_cast<int32_t>(out.cols);
  down.tiles = ceil_div(out.cols, 16);
  down.n_experts = experts.n_experts;
  down.router = router;
  down.sums_experts = true;
  down.to = {.out = out.data,
             .dtype = out.dtype,
             .stride = out.stride,
             .scales = experts.down.row_scales(),
             .bias = experts.down_bias,
             .add = add_to};
  if (add_to) down.added = row_of(result);
  down.result = result_at(result);
  add(down);
  order_experts(needed);
  return true;
}

// The last instruction that makes some of these; negative: none does.
int64_t StepKernel::last_maker_of(std::initializer_list<Span> spans) const {
  int64_t last = -1;
  for (const Known& known : known_) {
    if (std::any_of(spans.begin(), spans.end(),
                    [&](const Span& span) { return known.span.overlaps(span); })) {
      last = std::max(last, known.instruction);
    }
  }
  return last;
}

// Whether instruction n, a product or a norm, reads what the one before it makes, from the step's
// memory.
bool StepKernel::waits_for_last(size_t n) const {
  const int64_t made = instructions_[n - 1].result().offset;
  const Instruction& i = instructions_[n];
  switch (i.kind) {
    case Instruction::Kind::multiply:
    case Instruction::Kind::multiply_in_order:
    case Instruction::Kind::multiply_floats:
      return made >= 0 && i.product.held_at < 0 && i.product.n_experts == 0 &&
             (i.product.x.offset == made || i.product.factors.row.offset == made);
    case Instruction::Kind::norm:
      return made >= 0 && !i.norm.x_is_held && i.norm.before_at < 0 &&
             (i.norm.x.row.offset == made || i.norm.factors.row.offset == made);
    default:
      return false;
  }
}

// Two products of experts were added last, the first of which reads nothing that an instruction
// behind `needed` makes. As many as wait for the one before them are carried out after it, as their
// input is on its way meanwhile; and norms at their end after the second, where all blocks may make
// them for themselves, and nobody waits for one.
void StepKernel::order_experts(int64_t needed) {
  const size_t up = instructions_.size() - 2;
  const auto kept = static_cast<size_t>(needed + 1);
  size_t first = up;
  while (first > std::max<size_t>(kept, 1) && waits_for_last(first - 1)) --first;
  const int64_t added = instructions_.back().product.added.offset;
  size_t norms = up;
  while (norms > first && instructions_[norms - 1].kind == Instruction::Kind::norm &&
         (added < 0 || instructions_[norms - 1].result().offset != added)) {
    --norms;
  }
  const auto begin = instructions_.begin();
  const auto at = [&](size_t n) { return begin + static_cast<std::ptrdiff_t>(n); };
  std::rotate(at(norms), at(up), instructions_.end());  // both before the norms
  std::rotate(at(first), at(norms), at(norms + 1));     // the first before the others
  const auto place_of = [&](size_t n) {
    if (n < first) return n;
    if (n == up) return first;
    if (n == up + 1) return norms + 1;
    return n < norms ? n + 1 : n + 2;
  };
  for (Known& known : known_) {
    if (known.instruction < 0) continue;
    known.instruction = static_cast<int64_t>(place_of(static_cast<size_t>(known.instruction)));
  }
}

// The blocks that have all of the product of the same row before this one, as of a layer's gates: a
// tile of 16-bit weights is a chain that takes as long as several others.
int32_t StepKernel::blocks_of_few_tiles(const Row& x) const {
  if (instructions_.empty()) return 0;
  const Instruction& last = instructions_.back();
  constexpr int32_t kFew = 16;
  if (last.kind != Instruction::Kind::multiply_in_order || last.product.n_experts > 0 ||
      last.product.x.offset != x.offset || last.product.tiles > kFew) {
    return 0;
  }
  return last.product.tiles;
}

void StepKernel::add(ProductInstruction product) {
  const bool in_turn = product.n_experts > 0 && !product.sums_experts;
  const int32_t tiles = in_turn ? product.tiles * product.router.used : product.tiles;
  product.dealt = dealt_;
  const int32_t blocks =
      multiprocessors_ - (product.n_experts > 0 ? 0 : blocks_of_few_tiles(product.x));
  const int32_t of_part = blocks / product.input_parts;
  product.blocks = of_part * product.input_parts;
  product.tiles_of_each = tiles / of_part;
  product.tiles_more = tiles % of_part * product.input_parts;
  dealt_ = (dealt_ + product.tiles_more) % multiprocessors_;
  packed_ = std::max(packed_, step_kernel::packed_of(product.weight_format));
  write_over_held(input_bytes(product));
  const auto kind = is_integer(product.weight_format) || is_coded(product.weight_format)
                        ? Instruction::Kind::multiply
                    : product.weight_format == WeightFormat::f32
                        ? Instruction::Kind::multiply_floats
                        : Instruction::Kind::multiply_in_order;
  instructions_.emplace_back(kind, product);
}

}  // namespace faststream
