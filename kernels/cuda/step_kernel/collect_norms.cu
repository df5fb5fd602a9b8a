// Which norms and factors of rows become instructions.
#include <algorithm>

#include "kernels/cuda/ranks/peer_sums.h"
#include "kernels/cuda/step_kernel/shared_memory.cuh"
#include "kernels/cuda/step_kernel/step_kernel.h"

namespace faststream {

namespace {

// Whether all elements follow each other, in eights at multiples of 16 bytes.
bool has_eights_in_a_row(const Matrix& m) {
  const bool is_known = m.dtype == DType::f32 || m.dtype == DType::bf16;
  return is_known && m.cols % 8 == 0 && (m.rows == 1 || m.stride == m.cols) &&
         begins_at(m.data, 16) &&
         static_cast<size_t>(m.rows * m.cols) * dtype_size(m.dtype) <= kMaxRowBytes;
}

// Of rows that are functions of their elements alone, so many that all multiprocessors have some.
int32_t piece_of_elements(int64_t elements) {
  int32_t piece = kMaxFactors;
  while (elements % piece != 0) piece /= 2;
  return piece;
}

// Of the memory of what is multiplied that its rows take.
int64_t bytes_of(const NormInstruction& n) {
  const int64_t teams = n.columns > kMaxWarpNormalized ? 1 : step_kernel::kConsumers;
  const int64_t rows = n.terms.exist() ? 1 : 2;
  return rows * teams * std::max(n.columns, kMaxWarpNormalized) *
         static_cast<int64_t>(sizeof(float));
}

// What factors are of a matrix of one token, of whose row each may serve a part: of rows then.
// None: of something else.
NormInstruction::Factors kind_of(const Matrix& factors, const Matrix& m) {
  using enum NormInstruction::Factors;
  const bool is_float = factors.dtype == DType::f32;
  if (factors.rows == 1 && factors.cols == 1 && is_float) return one;
  if (factors.rows != m.rows) return none;
  if (factors.cols == m.cols) return has_eights_in_a_row(factors) ? of_elements : none;
  const int64_t each = m.cols / factors.cols;
  const bool is_whole = m.rows == 1 && each * factors.cols == m.cols && each % 8 == 0;
  const bool in_pairs = factors.dtype == DType::bf16 && factors.cols % 2 == 0;
  const bool has_words = begins_at(factors.data, 4) && (is_float || in_pairs);
  return is_whole && has_words && each <= kMaxNormRow ? of_rows : none;
}

}  // namespace

// Whether the last instruction makes some of a span.
bool StepKernel::makes(const Span& span) const {
  const auto last = static_cast<int64_t>(instructions_.size()) - 1;
  return std::any_of(known_.begin(), known_.end(), [&](const Known& known) {
    return known.instruction == last && known.span.overlaps(span);
  });
}

// The last instruction, if it is a norm that makes all of a span and nothing else; or null.
NormInstruction* StepKernel::maker_of(const Span& span) {
  if (instructions_.empty() || instructions_.back().kind != Instruction::Kind::norm) return nullptr;
  const auto last = static_cast<int64_t>(instructions_.size()) - 1;
  const bool is_made = std::any_of(known_.begin(), known_.end(), [&](const Known& known) {
    return known.instruction == last && known.span.covers(span) && span.covers(known.span);
  });
  return is_made ? &instructions_.back().norm : nullptr;
}

// Where the last instructions make a row of floats, each of the one before, which is all that a
// product reads: every block makes it for itself, so that none waits for another's.
bool StepKernel::make_everyones(const Span& span, int32_t columns) {
  const NormInstruction* last = maker_of(span);
  if (last == nullptr || last->rows != 1 || last->columns != columns ||
      last->result.dtype != DType::f32) {
    return false;
  }
  for (auto i = instructions_.rbegin();; ++i) {
    i->norm.is_everyones = true;
    if (!i->norm.x_is_held && i->norm.before_at != 0) return true;
  }
}

// Where all blocks have the row of floats that a product reads, it brings none: the last
// instruction makes it for all, or an earlier one has, and nobody has written over it since.
void StepKernel::hold(const Span& span, ProductInstruction& p) {
  if (p.x_dtype != DType::f32) return;
  if (make_everyones(span, p.inputs)) {
    NormInstruction& last = instructions_.back().norm;
    const int64_t behind = bytes_of(last);
    const bool fits = behind + static_cast<int64_t>(span.bytes) <= kMaxInputBytes;
    last.held_at = fits ? static_cast<int32_t>(behind) : 0;
    held_ = fits ? static_cast<int32_t>(instructions_.size()) - 1 : -1;
    p.held_at = last.held_at;
  } else {
    p.held_at = place_of_held(p.x, p.inputs);
  }
}

// Where all blocks have a row of floats; negative: nowhere.
int32_t StepKernel::place_of_held(const Row& row, int32_t columns) const {
  if (held_ < 0) return -1;
  const NormInstruction& norm = instructions_[static_cast<size_t>(held_)].norm;
  const bool is_held = norm.result.row.offset == row.offset && norm.columns == columns;
  return is_held ? norm.held_at : -1;
}

void StepKernel::write_over_held(int64_t bytes) {
  if (held_ >= 0 && bytes > instructions_[static_cast<size_t>(held_)].norm.held_at) held_ = -1;
}

// Where the last instruction multiplies a product's row by factors: the product does that itself,
// in the place of waiting for it, and reads what the instruction reads. That remains, where others
// or memory want its result.
bool StepKernel::take_factors(const Span& span, ProductInstruction& p) {
  const NormInstruction* last = maker_of(span);
  if (last == nullptr || last->factors_are != NormInstruction::Factors::of_elements ||
      last->activation != Activation::none || last->norm.kind != NormKind::none ||
      last->before.offset >= 0 || last->x.dtype != DType::bf16 ||
      last->result.dtype != DType::bf16 || last->rows * last->columns != p.inputs ||
      p.inputs > kMaxProducts) {
    return false;
  }
  p.x = last->x.row;
  p.factors = last->factors;
  return true;
}

bool StepKernel::norm(const Matrix& x, const Norm& norm, bool add, const Matrix& out) {
  if (instructions_.empty() || tokens_ > 1 || !has_eights_in_a_row(x) ||
      !has_eights_in_a_row(out) || x.cols > kMaxNormRow || !begins_at(norm.weight, 16) ||
      !begins_at(norm.bias, 16)) {
    return false;
  }
  const Span from = span_of(x.data, x.rows * x.cols, x.dtype);
  const Span result = span_of(out.data, out.rows * out.cols, out.dtype);
  make_way(add ? std::initializer_list<Span>{from, result} : std::initializer_list<Span>{from},
           result);
  NormInstruction n;
  const bool has_norm = norm.kind != NormKind::none;
  n.columns = has_norm ? static_cast<int32_t>(x.cols) : piece_of_elements(x.rows * x.cols);
  n.rows = static_cast<int32_t>(x.rows * x.cols / n.columns);
  n.first_block = dealt_;
  n.norm = has_norm ? norm : Norm{};
  const auto holds = [&](const NormInstruction* maker, DType type) {
    return maker != nullptr && maker->rows == 1 && n.rows == 1 && maker->columns == n.columns &&
           type == DType::f32;
  };
  if (const NormInstruction* maker = maker_of(from); holds(maker, x.dtype)) {
    n.x_is_held = true;
    n.first_block = maker->first_block;
  } else if (add && holds(maker_of(result), out.dtype)) {
    n.before_at = 0;
    n.first_block = instructions_.back().norm.first_block;
  }
  n.x = {row_of(from), x.dtype, n.columns};
  if (add) n.before = row_of(result);
  if (add && n.before_at < 0 && n.rows == 1) n.before_at = place_of_held(n.before, n.columns);
  n.result = {result_at(result), out.dtype, n.columns};
  n.out = out.data;
  write_over_held(bytes_of(n));
  instructions_.emplace_back(n);
  return true;
}

ProductInstruction* StepKernel::take_product_of(const Span& span) {
  const auto known = std::find_if(known_.begin(), known_.end(), [&](const Known& k) {
    return k.instruction >= 0 && k.span.covers(span) && span.covers(k.span);
  });
  if (known == known_.end()) return nullptr;
  Instruction& maker = instructions_[static_cast<size_t>(known->instruction)];
  const bool makes_pairs = maker.kind == Instruction::Kind::multiply ||
                           maker.kind == Instruction::Kind::multiply_in_order;
  if (!makes_pairs || maker.is_read || maker.product.to.dtype != DType::f32) return nullptr;
  known_.erase(known);
  return &maker.product;
}

bool StepKernel::sum_over_ranks(const Matrix& share, bool add, const Matrix& out) {
  const bool are_floats = share.dtype == DType::f32 && out.dtype == DType::f32;
  if (instructions_.empty() || tokens_ > 1 || share.rows != 1 || share.cols > kMaxNormalized ||
      !are_floats || !has_eights_in_a_row(out) || !sums_->has_place_for(share.cols)) {
    return false;
  }
  const Span own = span_of(share.data, share.cols, share.dtype);
  const Span result = span_of(out.data, out.cols, out.dtype);
  make_way(add ? std::initializer_list<Span>{own, result} : std::initializer_list<Span>{own},
           result);
  ProductInstruction* product = instructions_.empty() ? nullptr : take_product_of(own);
  if (product == nullptr) return false;
  product->terms = sums_->reserve(share.cols);
  product->result = {};
  product->to.out = nullptr;
  NormInstruction n;
  n.columns = static_cast<int32_t>(share.cols);
  n.first_block = dealt_;
  n.terms = product->terms;
  if (add) n.before = row_of(result);
  if (add) n.before_at = place_of_held(n.before, n.columns);
  n.result = {result_at(result), out.dtype, n.columns};
  n.out = out.data;
  write_over_held(bytes_of(n));
  instructions_.emplace_back(n);
  return true;
}

bool StepKernel::scale(const Matrix& factors, Activation activation, const Matrix& m) {
  using Factors = NormInstruction::Factors;
  const Factors kind = kind_of(factors, m);
  if (instructions_.empty() || tokens_ > 1 || !has_eights_in_a_row(m) || kind == Factors::none) {
    return false;
  }
  const Span by = span_of(factors.data, factors.rows * factors.cols, factors.dtype);
  const Span result = span_of(m.data, m.rows * m.cols, m.dtype);

  make_way({by, result}, result);
  if (instructions_.empty()) return false;
  // What makes the rows may multiply them, too.
  NormInstruction* maker = maker_of(result);
  const bool joins =
      maker != nullptr && !maker->terms.exist() && maker->factors_are == Factors::none &&
      kind != Factors::of_rows &&
      (kind == Factors::one || (maker->columns <= kMaxFactors && maker->before.offset < 0)) &&
      !makes(by);
  if (!joins) {
    NormInstruction n;
    n.columns = kind == Factors::of_rows ? static_cast<int32_t>(m.cols / factors.cols)
                                         : piece_of_elements(m.rows * m.cols);
    n.rows = static_cast<int32_t>(m.rows * m.cols / n.columns);
    n.first_block = dealt_;
    n.x = {row_of(result), m.dtype, n.columns};
    n.out = m.data;
    add_factors(n, by, factors.dtype, activation, kind);
    n.result = {result_at(result), m.dtype, n.columns};
    write_over_held(bytes_of(n));
    instructions_.emplace_back(n);
  } else {
    add_factors(*maker, by, factors.dtype, activation, kind);
  }
  return true;
}

void StepKernel::add_factors(NormInstruction& n, const Span& factors, DType type,
                             Activation activation, NormInstruction::Factors kind) {
  n.activation = activation;
  n.factors_are = kind;
  const bool is_known = std::any_of(known_.begin(), known_.end(), [&](const Known& known) {
    return known.span.overlaps(factors);
  });
  n.factors.dtype = type;
  n.factors.stride = n.columns;
  if (is_known) {
    n.factors.row = row_of(factors);
  } else {
    n.factors.in_place = factors.data;
    in_place_.push_back(factors);
  }
}

void StepKernel::store_what_is_left() {
  for (const Known& known : known_) {
    if (known.instruction < 0 ||
        instructions_[static_cast<size_t>(known.instruction)].out() != nullptr) {
      continue;
    }
    note_reader_of(known);
    const auto words = static_cast<int64_t>(known.span.bytes / sizeof(float));
    NormInstruction n;
    n.columns = piece_of_elements(words);
    n.rows = static_cast<int32_t>(words / n.columns);
    n.x = {.row = {.offset = known.offset, .awaited = true}, .stride = n.columns};
    n.result = n.x;
    n.result.row = {};
    n.out = const_cast<std::byte*>(known.span.data);
    instructions_.emplace_back(n);
  }
}

}  // namespace faststream
