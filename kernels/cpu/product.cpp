// x Wᵀ: which way is taken, and the way of few rows.
//
// Few rows (decode) are bound by memory: each thread streams its channels once. Many rows (prefill)
// are bound by arithmetic, and by blocks that fit into the caches. Both run on tiles where the
// machine multiplies eight-bit or bf16 numbers and the weights are such (many: product_tiles.cpp).
// AVX2 takes any number of rows as few ones beside i8 weights, in integers (integer_dot.h). Else
// few rows run on vectors of floats and many in oneDNN (product_gemm.cpp).
//
// On tiles and in integers a row of x has the same bits whatever the number of rows, so that what a
// sequence is given does not depend on how many others share its step: integers are added, or bf16
// products in one order. Elsewhere floats are: the order of their sums changes less than a text
// shows.
#include <algorithm>
#include <stdexcept>

#include "kernels/cpu/cpu_backend.h"

namespace faststream {
namespace {

// From this many rows on, oneDNN wins.
constexpr int64_t kGemmRows = 33;

}  // namespace

void CpuBackend::multiply(const Product& product) {
  const int64_t rows = product.x.rows;
  if (rows == 0) return;
  if (const TileKernels* tiles = tiles_of(product.weight.dtype)) {
    if (rows > tiles->most_dot_rows) {
      multiply_tiles(product);
    } else {
      multiply_few_rows(product);
    }
    return;
  }
  Product rounded = product;
  if (product.weight.dtype == DType::i8) rounded.x = round_rows(product.x);
  if (rows >= kGemmRows) {
    multiply_gemm(rounded);
  } else {
    multiply_few_rows(rounded);
  }
}

const TileKernels* CpuBackend::tiles_of(DType weights) const {
  const TileKernels* tiles = weights == DType::i8     ? &kernels_.tiles_i8
                             : weights == DType::bf16 ? &kernels_.tiles_bf16
                                                      : nullptr;
  return tiles != nullptr && tiles->most_dot_rows > 0 ? tiles : nullptr;
}

Matrix CpuBackend::round_rows(const Matrix& x) {
  const Matrix rounded(rounded_scratch_.get<float>(x.rows * x.cols), DType::f32, x.rows, x.cols);
  pool_.parallel_for(x.rows, 1, 8, [&](int thread, int64_t first, int64_t last) {
    Scratch& scratch = thread_scratch_[static_cast<size_t>(thread)];
    for (int64_t r = first; r < last; ++r) {
      const float* from = static_cast<const float*>(x.data) + r * x.stride;
      float* to = static_cast<float*>(rounded.data) + r * x.cols;
      auto* quantized = scratch.get<int8_t>(x.cols);
      const float scale = kernels_.quantize_i8(from, x.cols, quantized);
      kernels_.widen_i8(quantized, x.cols, to);
      for (int64_t i = 0; i < x.cols; ++i) to[i] *= scale;
    }
  });
  return rounded;
}

CpuBackend::FewRows CpuBackend::prepare_few_rows(const Matrix& x, const Weight& weight) {
  const int64_t in = weight.cols;
  const auto* values = static_cast<const float*>(x.data);
  FewRows few;
  few.dot.in = in;
  few.dot.rows = static_cast<int>(x.rows);
  few.dot.x = values;
  few.dot.x_stride = x.stride;
  if (const TileKernels* tiles = tiles_of(weight.dtype)) {
    const int64_t bytes = (in * static_cast<int64_t>(dtype_size(weight.dtype)) + 63) / 64 * 64;
    auto* packed = shared_scratch_.get<std::byte>(x.rows * bytes);
    auto* scales = scale_scratch_.get<float>(2 * x.rows);
    auto* totals = static_cast<int32_t*>(static_cast<void*>(scales + x.rows));
    constexpr int64_t kGroup = 16;
    pool_.parallel_for(x.rows, kGroup, [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; r += kGroup) {
        tiles->pack_dot(values + r * x.stride, x.stride, std::min(kGroup, x.rows - r), in,
                        {packed + r * bytes, scales + r, totals + r});
      }
    });
    few.kernel = tiles->dot;
    few.grain = 32;
    few.dot.packed = packed;
    few.dot.row_scales = scales;
    few.dot.row_totals = totals;
    return few;
  }
  switch (weight.dtype) {
    case DType::f16:
      few.kernel = kernels_.dot_f16;
      break;
    case DType::bf16:
      few.kernel = kernels_.dot_bf16;
      break;
    case DType::i8:
      few.kernel = kernels_.dot_i8;
      break;
    case DType::f32:
      few.kernel = kernels_.dot_f32;
      break;
    case DType::u8:
      throw std::logic_error("linear: u8 is not a type of weights");
  }
  return few;
}

void CpuBackend::multiply_few_rows(const Product& product) {
  const Matrix& x = product.x;
  const Weight& weight = product.weight;
  const FewRows few = prepare_few_rows(x, weight);

  // A block of channels stays in the second-level cache while the rows pass over it.
  constexpr int64_t kBlockBytes = int64_t{128} << 10;
  const int64_t channel_bytes = weight.cols * static_cast<int64_t>(dtype_size(weight.dtype));
  const int64_t block =
      std::clamp<int64_t>(kBlockBytes / channel_bytes / few.grain * few.grain, few.grain, 256);
  const int64_t channels = product.channels();
  pool_.parallel_for(channels, few.grain, channels, [&](int thread, int64_t first, int64_t last) {
    FinishTask result = product.result;
    const int64_t sums_stride = product.halves * block;
    auto* sums = thread_scratch_[static_cast<size_t>(thread)].get<float>(x.rows * sums_stride);
    result.sums = sums;
    result.sums_stride = sums_stride;
    result.rows = x.rows;
    result.up_column = block;
    for (int64_t c = first; c < last; c += block) {
      result.first = c;
      result.channels = std::min(block, last - c);
      for (int64_t half = 0; half < product.halves; ++half) {
        DotTask part = few.dot;
        part.weights =
            static_cast<const std::byte*>(weight.data) + (half * channels + c) * channel_bytes;
        part.channels = result.channels;
        part.sums = sums + half * block;
        part.sums_stride = sums_stride;
        few.kernel(part);
      }
      product.finish(result);
    }
  });
}

}  // namespace faststream
