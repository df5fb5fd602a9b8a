// x Wᵀ: which way is taken, and the way of few rows.
//
// Few rows (decode) are bound by memory: each thread streams its channels once. Many rows (prefill)
// are bound by arithmetic: AMX tiles where the machine has them and the weights are i8 or bf16
// (product_tiles.cpp), else oneDNN (product_gemm.cpp).
//
// All ways round a row of x alike, to eight bits for i8 weights and to bf16 for bf16 ones on tiles:
// what a sequence is given does not depend on how many others share its step.
#include <algorithm>

#include "kernels/cpu/cpu_backend.h"

namespace faststream {
namespace {

// From this many rows on, tiles win although rows are packed.
constexpr int64_t kTileRows = 8;
// From this many rows on, oneDNN wins.
constexpr int64_t kGemmRows = 16;

}  // namespace

void CpuBackend::multiply(const Product& product) {
  const int64_t rows = product.x.rows;
  const DType weights = product.weight.dtype;
  const bool has_tiles =
      kernels_.tiles_i8 != nullptr && (weights == DType::i8 || weights == DType::bf16);
  if (rows == 0) return;
  if (has_tiles && rows >= kTileRows) {
    multiply_tiles(product);
    return;
  }
  Product rounded = product;
  const bool rounds_itself = weights == DType::i8 && kernels_.dot_quantized != nullptr;
  if (!rounds_itself && (weights == DType::i8 || has_tiles)) {
    rounded.x = round_rows(product.x, weights);
  }
  if (rows >= kGemmRows) {
    multiply_gemm(rounded);
  } else {
    multiply_few_rows(rounded);
  }
}

Matrix CpuBackend::round_rows(const Matrix& x, DType type) {
  const Matrix rounded(rounded_scratch_.get<float>(x.rows * x.cols), DType::f32, x.rows, x.cols);
  for_pieces(x.rows, 1, 8, [&](int thread, int64_t first, int64_t last) {
    Scratch& scratch = thread_scratch_[static_cast<size_t>(thread)];
    for (int64_t r = first; r < last; ++r) {
      const float* from = static_cast<const float*>(x.data) + r * x.stride;
      float* to = static_cast<float*>(rounded.data) + r * x.cols;
      if (type == DType::i8) {
        auto* quantized = scratch.get<int8_t>(x.cols);
        const float scale = kernels_.quantize_i8(from, x.cols, quantized);
        kernels_.widen(quantized, KernelType::i8, x.cols, to);
        for (int64_t i = 0; i < x.cols; ++i) to[i] *= scale;
      } else {
        auto* narrowed = scratch.get<uint16_t>(x.cols);
        kernels_.narrow(from, kernel_type(type), x.cols, narrowed);
        kernels_.widen(narrowed, kernel_type(type), x.cols, to);
      }
    }
  });
  return rounded;
}

void CpuBackend::multiply_few_rows(const Product& product) {
  const Matrix& x = product.x;
  const Weight& weight = product.weight;
  const int64_t in = weight.cols;
  DotTask dot;
  dot.in = in;
  dot.rows = static_cast<int>(x.rows);
  dot.x = static_cast<const float*>(x.data);
  dot.x_stride = x.stride;

  Kernels::Dot kernel = nullptr;
  switch (weight.dtype) {
    case DType::f16:
      kernel = kernels_.dot_f16;
      break;
    case DType::bf16:
      kernel = kernels_.dot_bf16;
      break;
    case DType::i8:
      kernel = kernels_.dot_quantized ? kernels_.dot_quantized : kernels_.dot_i8;
      break;
    default:
      kernel = kernels_.dot_f32;
      break;
  }
  if (kernel == kernels_.dot_quantized) {
    const int64_t stride = (in + kQuantizedPadding - 1) / kQuantizedPadding * kQuantizedPadding;
    auto* quantized = shared_scratch_.get<int16_t>(x.rows * stride);
    auto* scales = scale_scratch_.get<float>(x.rows);
    for (int64_t r = 0; r < x.rows; ++r) {
      scales[r] = kernels_.quantize_padded(dot.x + r * x.stride, in, quantized + r * stride);
    }
    dot.quantized = quantized;
    dot.quantized_stride = stride;
    dot.row_scales = scales;
  }

  // A block of channels stays in the second-level cache while the rows pass over it.
  constexpr int64_t kBlockBytes = int64_t{128} << 10;
  const int64_t channel_bytes = in * static_cast<int64_t>(dtype_size(weight.dtype));
  const int64_t block = std::clamp<int64_t>(kBlockBytes / channel_bytes / 4 * 4, 4, 256);
  const int64_t channels = product.channels();
  for_pieces(channels, 4, channels, [&](int thread, int64_t first, int64_t last) {
    DotTask piece = dot;
    FinishTask result = product.result;
    piece.sums_stride = product.halves * block;
    piece.sums =
        thread_scratch_[static_cast<size_t>(thread)].get<float>(x.rows * piece.sums_stride);
    result.sums = piece.sums;
    result.sums_stride = piece.sums_stride;
    result.rows = x.rows;
    result.up_column = block;
    for (int64_t c = first; c < last; c += block) {
      piece.channels = std::min(block, last - c);
      for (int64_t half = 0; half < product.halves; ++half) {
        DotTask part = piece;
        part.weights =
            static_cast<const std::byte*>(weight.data) + (half * channels + c) * channel_bytes;
        part.sums += half * block;
        kernel(part);
      }
      result.first = c;
      result.channels = piece.channels;
      product.finish(result);
    }
  });
}

}  // namespace faststream
