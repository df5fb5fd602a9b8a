// Which kernel multiplies: by the number of rows, the types and the alignment.
//
//   step       one row on Hopper, 16-bit x
//                  all products of a step in one kernel
//   few_rows   at most 16 rows, 16-bit x, weights of its type or i8
//                  tensor cores, weights read once; on Hopper more than 3 beside i8 as int8
//   int8       more rows, i8, sides multiples of 16
//                  int8 x int8; on Hopper our own kernel, else cuBLASLt
//   few_rows   other i8, and up to 64 rows of few outputs, which would keep few blocks of other
//              kernels busy: 16 rows at a time
//   cublas     more than 8 rows, x and weights of one type
//                  cuBLASLt; f32 in full float32; of 16 bits on Hopper our own kernel for gates,
//                  biases, activations and many rows
//   any        else, or where cuBLASLt refuses
//                  float arithmetic, any type and alignment
//
// int4 weights and codes of floats have the first, and on Hopper our own kernel of the third for
// any number of rows, fp8 as E4M3 x E4M3, beside few rows other codes one of warps. Where that
// takes them not, they are decoded before, to i8 and to x's type, as integers whose inputs keep 16
// bits are to bf16 (widen.cu), and are that here.
//
// The first three quantize x by row beside i8 weights and add integers; the first and the fourth
// sum 16-bit products in one order. Biases are added and activations applied before a result is
// rounded, but for gates beside 16-bit weights, whose two products are rounded first. So a row's
// result does not depend on the number of rows, and neither do a router's scores, of 16-bit x and
// f32 weights: the last method sums a row in one order, too.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/linear/linear_few_rows.h"
#include "kernels/cuda/linear/linear_many_rows.h"
#include "kernels/cuda/linear/quantize.h"
#include "kernels/cuda/ranks/joined_ranks.h"

namespace faststream {

namespace {

constexpr int64_t kMaxFloatRows = 8;  // one pass of any_rows_product

// More than a few rows beside i8 weights take less time by the kernel of many: a step of 4
// sequences of Llama 3 8B, which the step's kernel does not take, 2.87 ms instead of 3.06 (H200).
constexpr int64_t kMaxFewRowsOnHopper = 3;

// From so many rows on products of ours take as long as cuBLASLt's by themselves, but begin while
// the kernel before ends. Of 512 rows, 4,096 inputs and 6,144 outputs cuBLASLt's take 35 us where
// ours take 46, of 14,336 inputs and 4,096 outputs 79 where ours take 88.
constexpr int64_t kManyRows = 1024;

bool is_ours(const Matrix& x, const ProductDestination& to) {
  return x.rows >= kManyRows || to.bias != nullptr || to.activation != Activation::none;
}

// Of other numbers of outputs cuBLASLt sums some products of 16 bits in another order (3,219 of 512
// inputs), and ours have no kernel: the last few are a product of their own.
constexpr int64_t kEvenOutputs = 8;

// Of 64 rows, 4,096 inputs and 64 outputs cuBLASLt's take 93 us.
constexpr int64_t kFewOutputs = 128;
constexpr int64_t kMaxRowsOfFewOutputs = 64;

enum class Method { few_rows, int8, cublas, any };

Method choose_method(const Matrix& x, const Weight& weight) {
  const bool few =
      x.rows <= kMaxFewRows || (weight.format == WeightFormat::int8 && !int8_fits(x, weight)) ||
      (weight.rows <= kFewOutputs && x.rows <= kMaxRowsOfFewOutputs && !int8_fits(x, weight));
  if (few && few_rows_fit(x, weight)) return Method::few_rows;
  if (int8_fits(x, weight)) return Method::int8;
  if (x.rows > kMaxFloatRows && x.dtype == weight.stored_as()) return Method::cublas;
  return Method::any;
}

}  // namespace

template <typename Multiply>
bool CudaBackend::send_share(const ProductDestination& to, int64_t rows, int64_t cols,
                             const Multiply& multiply) {
  const std::optional<ProductDestination> sent = place_of_share(to, rows, cols);
  if (!sent || !multiply(*sent)) return false;
  ranks_->peers->are_sent();
  return true;
}

bool CudaBackend::multiply_many_rows(const Matrix& x, const Weight& weight,
                                     const ProductDestination& to, const Queue& queue) {
  const int64_t even = weight.rows / kEvenOutputs * kEvenOutputs;
  if (even < weight.rows && few_rows_fit(x, weight)) {
    if (even > 0 && !multiply_many_rows(x, weight.row_range(0, even), to, queue)) return false;
    const Weight rest = weight.row_range(even, weight.rows - even);
    in_order_product(product_of(x, 0, x.rows, rest, to.from_column(even), false), x.dtype, false,
                     queue);
    return true;
  }
  const auto multiply = [&](const ProductDestination& out) {
    return finished_product_sm90a(x, weight, out, queue);
  };
  if (is_hopper_ && send_share(to, x.rows, weight.rows, multiply)) return true;
  if (is_hopper_ && is_ours(x, to) && multiply(to)) return true;
  return float_product(*matmul_, scratch_, x, weight, to, queue);
}

bool CudaBackend::multiply_fused(Input& input, const Weight& weight, const ProductDestination& to,
                                 bool gated, const Queue& queue) {
  const Matrix& multiplied = input.is_ready() ? input.x : input.normed;
  const Method method = choose_method(multiplied, weight);
  const bool has_tiles =
      is_hopper_ && multiplied.rows > kMaxFewRowsOnHopper && int8_fits(multiplied, weight);
  // A norm before eight bits is left to quantize_rows().
  const bool quantizes = weight.format == WeightFormat::int8 && method != Method::any;
  if (!quantizes || !can_quantize(input, weight.rotated)) normalize(*this, input);
  const auto multiply = [&](const ProductDestination& out) {
    return int8_product_sm90a(scratch_, input, weight, out, gated, queue);
  };
  if (has_tiles && (send_share(to, multiplied.rows, weight.rows, multiply) || multiply(to))) {
    return true;
  }
  const Matrix& x = input.x;
  switch (method) {
    case Method::few_rows:
      few_rows_product(input, weight, to, gated, scratch_, queue);
      return true;
    case Method::int8:
      return int8_product(*matmul_, scratch_, input, weight, to, gated, queue);
    case Method::cublas:
      if (gated) return is_hopper_ && gated_product_sm90a(x, weight, to, queue);
      return multiply_many_rows(x, weight, to, queue);
    case Method::any:
      return false;
  }
  return false;
}

bool CudaBackend::multiply_packed(Input& input, const Weight& weight, const ProductDestination& to,
                                  bool gated) {
  const bool coded = is_coded(weight.format);
  if (!coded && (weight.format != WeightFormat::int4 || !weight.quantizes_inputs())) return false;
  // A row alone has the bits that it has beside others.
  const Matrix& multiplied = input.is_ready() ? input.x : input.normed;
  if (coded && (!is_hopper_ || !coded_product_fits(multiplied, weight, to, gated))) return false;
  if (gated ? step_kernel_.gated_linear(input, weight, to)
            : step_kernel_.linear(input, weight, to)) {
    return true;
  }
  if (coded) {
    multiply_codes(input, weight, to, gated);
    return true;
  }
  if (!is_hopper_ || !int8_fits(multiplied, weight)) return false;
  if (!can_quantize(input, weight.rotated)) normalize(*this, input);
  const Queue queue = this->queue();
  const auto multiply = [&](const ProductDestination& out) {
    return int8_product_sm90a(scratch_, input, weight, out, gated, queue);
  };
  return send_share(to, multiplied.rows, weight.rows, multiply) || multiply(to);
}

void CudaBackend::multiply_codes(Input& input, const Weight& weight, const ProductDestination& to,
                                 bool gated) {
  if (rounds_to_e4m3(weight)) {
    if (!can_quantize(input, weight.rotated)) normalize(*this, input);
    const Queue queue = this->queue();
    const auto multiply = [&](const ProductDestination& out) {
      e4m3_product_sm90a(scratch_, input, weight, out, gated, queue);
      return true;
    };
    if (!send_share(to, input.x.rows, weight.rows, multiply)) multiply(to);
    return;
  }
  const Matrix& x = normalize(*this, input);
  const Queue queue = this->queue();
  if (x.rows <= kFewCodedRows && few_codes_fit(weight)) {
    return few_coded_product(product_of(x, 0, x.rows, weight, to, gated), weight, gated, {}, queue);
  }
  const auto multiply = [&](const ProductDestination& out) {
    coded_product_sm90a(x, weight, out, gated, queue);
    return true;
  };
  if (!send_share(to, x.rows, weight.rows, multiply)) multiply(to);
}

void CudaBackend::linear(Input& input, const Weight& given, const Epilogue& epilogue,
                         const Matrix& out) {
  if (input.x.rows == 0) return;
  ProductDestination to = Destination{.out = out.data,
                                      .dtype = out.dtype,
                                      .stride = out.stride,
                                      .scales = given.row_scales(),
                                      .bias = epilogue.bias,
                                      .add = epilogue.output == OutputMode::add,
                                      .activation = epilogue.activation};
  to.is_share = epilogue.output == OutputMode::share;
  if (multiply_packed(input, given, to, false)) return;
  const Weight weight = widened(given, input.is_ready() ? input.x.dtype : input.normed.dtype);
  to.scales = weight.row_scales();
  if (step_kernel_.linear(input, weight, to)) return;
  const Queue queue = this->queue();
  if (!multiply_fused(input, weight, to, false, queue)) {
    any_rows_product(rows_for(normalize(*this, input), weight, rotated_, queue), weight, to, queue);
  }
}

}  // namespace faststream
