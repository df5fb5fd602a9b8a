// The kernels that are the same for every instruction set but for the width of its vectors.
// Included by one file for each (kernels_*.cpp); everything is local to the including file.
#pragma once

#include "kernels/cpu/attention/attention_kernel.h"
#include "kernels/cpu/isa/kernels.h"
#include "kernels/cpu/isa/simd.h"
#include "kernels/cpu/linear/coded_dot.h"
#include "kernels/cpu/linear/hadamard_kernel.h"
#include "kernels/cpu/linear/int4_levels.h"
#include "kernels/cpu/linear/panel_kernel.h"
#include "kernels/cpu/linear/product_results.h"
#include "kernels/cpu/linear/quantize_kernel.h"
#include "kernels/cpu/norm_kernels.h"
#include "kernels/cpu/recurrent/recurrent_kernels.h"
#include "kernels/cpu/sampling/sample_kernel.h"
#include "kernels/cpu/scale_kernel.h"

namespace faststream {
namespace {

// --- Products with few rows
// ---------------------------------------------------------------------------
//
// Bound by memory: C channels are read at once, each element once for R rows, a cache line of every
// channel at a time. More rows pass over the task's channels again, which the second-level cache
// holds; meanwhile the channels after them are prefetched, so that memory does not wait.

/// What is prefetched beside a line of C channels: that of the channels whose bits are set, so many
/// elements further.
struct Prefetch {
  int64_t distance;
  uint32_t channels;
};

template <class T, int R, int C>
inline void dot_block(const T* weights, const DotTask& task, const float* x, Prefetch ahead,
                      float* sums) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
  constexpr int kVectors = kLine / kLanes;
  const int64_t in = task.in;
  Vec sum[C][R] = {};
  int64_t k = 0;
  for (; k + kLine <= in; k += kLine) {
    for (int c = 0; c < C; ++c) {
      if ((ahead.channels >> c & 1) != 0) {
        __builtin_prefetch(weights + c * in + k + ahead.distance);
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      const int64_t i = k + v * kLanes;
      Vec xs[R];
      for (int r = 0; r < R; ++r) {
        xs[r] = load(x + r * task.x_stride + i);
      }
      for (int c = 0; c < C; ++c) {
        const Vec w = widen(weights + c * in + i);
        for (int r = 0; r < R; ++r) {
          sum[c][r] += w * xs[r];
        }
      }
    }
  }
  for (; k < in; k += kLanes) {
    const int64_t count = in - k < kLanes ? in - k : kLanes;
    for (int c = 0; c < C; ++c) {
      const Vec w = widen_some(weights + c * in + k, count);
      for (int r = 0; r < R; ++r) {
        sum[c][r] += w * widen_some(x + r * task.x_stride + k, count);
      }
    }
  }
  for (int c = 0; c < C; ++c) {
    for (int r = 0; r < R; ++r) {
      sums[r * task.sums_stride + c] = sum_of_lanes(sum[c][r]);
    }
  }
}

// Rows of a pass, and channels at once: their sums fill the registers. A widened weight serves all
// rows, and a row that has left the first-level cache all channels.
constexpr int kPassRows = kLanes == 16 ? 6 : 4;
template <int R>
constexpr int kPassChannels = kLanes<16 && R> 2 ? 2 : 4;

template <class T, int R>
inline void dot_channels(const DotTask& task, const float* x, Prefetch ahead, float* sums) {
  constexpr int kChannels = kPassChannels<R>;
  const T* weights = static_cast<const T*>(task.weights);
  int64_t c = 0;
  for (; c + kChannels <= task.channels; c += kChannels) {
    dot_block<T, R, kChannels>(weights + c * task.in, task, x, ahead, sums + c);
  }
  for (; c < task.channels; ++c) {
    dot_block<T, R, 1>(weights + c * task.in, task, x, ahead, sums + c);
  }
}

/// The first `rows` rows, at most R.
template <class T, int R>
inline void dot_rows(int rows, const DotTask& task, const float* x, Prefetch ahead, float* sums) {
  if constexpr (R > 1) {
    if (rows < R) return dot_rows<T, R - 1>(rows, task, x, ahead, sums);
  }
  dot_channels<T, R>(task, x, ahead, sums);
}

/// A single pass prefetches the next channels; several share the channels after the task's.
template <class T>
void dot(const DotTask& task) {
  const int passes = (task.rows + kPassRows - 1) / kPassRows;
  for (int pass = 0; pass < passes; ++pass) {
    const int r = pass * kPassRows;
    Prefetch ahead = {4 * task.in, 0xf};
    if (passes > 1) {
      ahead = {task.channels * task.in, 0};
      for (int c = 0; c < 4; ++c) {
        if (c % passes == pass) ahead.channels |= 1U << c;
      }
    }
    dot_rows<T, kPassRows>(task.rows - r, task, task.x + r * task.x_stride, ahead,
                           task.sums + r * task.sums_stride);
  }
}

// --- Conversion
// -----------------------------------------------------------------------------------------

template <class T>
inline void widen_all(const T* from, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    store(to + i, widen(from + i));
  }
  if (i < count) store_some(to + i, widen_some(from + i, count - i), count - i);
}

void widen_elements(const void* from, FloatType type, int64_t count, float* to) {
  switch (type) {
    case FloatType::f32:
      widen_all(static_cast<const float*>(from), count, to);
      break;
    case FloatType::f16:
      widen_all(static_cast<const StoredF16*>(from), count, to);
      break;
    case FloatType::bf16:
      widen_all(static_cast<const StoredBf16*>(from), count, to);
      break;
  }
}

void widen_i8(const int8_t* from, int64_t count, float* to) { widen_all(from, count, to); }

void decode_int4(const void* from, int64_t count, int8_t* to) {
  const auto* block = static_cast<const char*>(from);
  for (; count >= kInt4Block; count -= kInt4Block) {
    decode_block(block, to);
    block += kInt4CodeBytes + kInt4Block / kInt4Group * kInt4GroupBytes;
    to += kInt4Block;
  }
  for (const char* code = block; count > 0; ++code) {
    int8_t values[kInt4Group];
    decode_group(*code, block + kInt4CodeBytes + (code - block) * kInt4GroupBytes, values);
    const int64_t some = count < kInt4Group ? count : kInt4Group;
    __builtin_memcpy(to, values, static_cast<size_t>(some));
    to += some;
    count -= some;
  }
}

/// Round to nearest even; NaN stays NaN.
inline HalfWordVec to_bf16(Vec v) {
  const auto bits = reinterpret_cast<WordVec>(v);
  const WordVec rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const WordVec quiet = (bits >> 16) | 0x40U;
  const auto is_nan = reinterpret_cast<WordVec>((bits & 0x7fffffffU) > 0x7f800000U);
  const WordVec result = (is_nan & quiet) | (~is_nan & rounded);
#if defined(__AVX512F__)
  return reinterpret_cast<HalfWordVec>(_mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(result)));
#else
  return __builtin_convertvector(result, HalfWordVec);
#endif
}

inline HalfWordVec to_f16(Vec v) {
#if defined(__AVX512F__)
  return reinterpret_cast<HalfWordVec>(_mm512_cvtps_ph(reinterpret_cast<__m512>(v), 0));
#elif defined(__F16C__)
  return reinterpret_cast<HalfWordVec>(_mm256_cvtps_ph(reinterpret_cast<__m256>(v), 0));
#else
  const auto bits = reinterpret_cast<WordVec>(v);
  const WordVec size = bits & 0x7fffffffU;
  const WordVec normal = (size + 0xfffU + ((size >> 13) & 1U) - 0x38000000U) >> 13;
  // Below 2^-14: adding 0.5 rounds to the grid of the subnormals.
  const WordVec subnormal =
      reinterpret_cast<WordVec>(reinterpret_cast<Vec>(size) + 0.5F) - 0x3f000000U;
  const auto is_small = reinterpret_cast<WordVec>(size < 0x38800000U);
  const auto is_large = reinterpret_cast<WordVec>(size >= 0x47800000U);
  const auto is_nan = reinterpret_cast<WordVec>(size > 0x7f800000U);
  const WordVec special = 0x7c00U | (is_nan & 0x200U);
  const WordVec result = (is_small & subnormal) | (is_large & special) |
                         (~is_small & ~is_large & normal) | ((bits >> 16) & 0x8000U);
  return __builtin_convertvector(result, HalfWordVec);
#endif
}

template <HalfWordVec (*convert)(Vec)>
inline void narrow_all(const float* from, int64_t count, uint16_t* to) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t n = count - i < kLanes ? count - i : kLanes;
    const HalfWordVec v = convert(n == kLanes ? load(from + i) : widen_some(from + i, n));
    __builtin_memcpy(to + i, &v, static_cast<size_t>(n) * sizeof(uint16_t));
  }
}

void narrow_elements(const float* from, FloatType type, int64_t count, void* to) {
  switch (type) {
    case FloatType::f32:
      __builtin_memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
      break;
    case FloatType::f16:
      narrow_all<to_f16>(from, count, static_cast<uint16_t*>(to));
      break;
    case FloatType::bf16:
      narrow_all<to_bf16>(from, count, static_cast<uint16_t*>(to));
      break;
  }
}

template <WeightFormat... kFormats>
inline void add_coded_kernels(Kernels& kernels) {
  ((kernels.coded[static_cast<int>(kFormats)] = coded_kernels<kFormats>()), ...);
}

inline Kernels vector_kernels() {
  Kernels kernels = {};
  kernels.dot_f32 = dot<float>;
  kernels.dot_f16 = dot<StoredF16>;
  kernels.dot_bf16 = dot<StoredBf16>;
  kernels.dot_i8 = dot<int8_t>;
  add_coded_kernels<WeightFormat::fp8, WeightFormat::mxfp4, WeightFormat::nf4,
                    WeightFormat::int4_g32, WeightFormat::int4_g64, WeightFormat::int4_g128>(
      kernels);
  kernels.panel_groups = kPanelGroups;
  kernels.least_panel_rows = kLeastPanelRows;
  kernels.pack_panel = pack_panel;
  kernels.multiply_panel = multiply_panel;
  kernels.transpose_sums = transpose_sums;
  kernels.quantize_i8 = quantize_i8;
  kernels.hadamard = rotate_blocks;
  kernels.widen = widen_elements;
  kernels.widen_i8 = widen_i8;
  kernels.decode_int4 = decode_int4;
  kernels.narrow = narrow_elements;
  kernels.finish_linear = finish_linear;
  kernels.finish_gated = finish_gated;
  kernels.no_norm = no_norm;
  kernels.rms_norm = rms_norm;
  kernels.sum_squares = sum_squares;
  kernels.norm_by_square = norm_by_square;
  kernels.layer_norm = layer_norm;
  kernels.rotate = rotate;
  kernels.convolve = convolve;
  kernels.recur = recur;
  kernels.scan = scan;
  kernels.scale = scale;
  kernels.activate = activate_row;
  kernels.soft_cap = soft_cap;
  kernels.xielu = xielu;
  kernels.attention = attend;
  kernels.largest_logits = largest_logits;
  kernels.sum_logits = sum_logits;
  kernels.add_sums = add_sums;
  kernels.copy_logits = copy_logits;
  kernels.find_logit = find_logit;
  kernels.count_logits = count_logits;
  kernels.weigh_logits = weigh_logits;
  kernels.total_mass = total_mass;
  return kernels;
}

}  // namespace
}  // namespace faststream
