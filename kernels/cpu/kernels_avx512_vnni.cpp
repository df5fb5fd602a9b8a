// Exact products of i8 weights with few rows of eight-bit activations, which are held in 16 bits:
// the processor multiplies signed by signed only there.
#include <immintrin.h>

#include "kernels/cpu/kernels.h"

namespace faststream {
namespace {

// A product is at most 127 * 128: the sum of so many fits into int32 and moves to float only then.
// Nearly all rows are shorter; their sums are the same integers that AMX tiles give.
constexpr int64_t kFlush = 1 << 17;

template <int R, int C>
inline void dot_block(const int8_t* weights, const DotTask& task, const int16_t* x,
                      const float* scales, float* sums) {
  const int64_t in = task.in;
  float total[C][R];
  for (int c = 0; c < C; ++c) {
    for (int r = 0; r < R; ++r) {
      total[c][r] = 0;
    }
  }
  for (int64_t start = 0; start < in; start += kFlush) {
    const int64_t end = start + kFlush < in ? start + kFlush : in;
    __m512i sum[C][R];
    for (int c = 0; c < C; ++c) {
      for (int r = 0; r < R; ++r) {
        sum[c][r] = _mm512_setzero_si512();
      }
    }
    const auto step = [&](int64_t k, auto load_weights) {
      __m512i xs[R];
      for (int r = 0; r < R; ++r) {
        xs[r] = _mm512_loadu_si512(x + r * task.quantized_stride + k);
      }
      for (int c = 0; c < C; ++c) {
        const __m512i w = _mm512_cvtepi8_epi16(load_weights(weights + c * in + k));
        for (int r = 0; r < R; ++r) {
          sum[c][r] = _mm512_dpwssd_epi32(sum[c][r], w, xs[r]);
        }
      }
    };
    const auto load = [](const int8_t* from) {
      return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    };
    int64_t k = start;
    for (; k + 64 <= end; k += 64) {
      for (int c = 0; c < C; ++c) {
        _mm_prefetch(reinterpret_cast<const char*>(weights + (C + c) * in + k), _MM_HINT_T0);
      }
      step(k, load);
      step(k + 32, load);
    }
    for (; k < end; k += 32) {
      const auto mask = end - k >= 32 ? 0xffffffffU : (1U << (end - k)) - 1;
      step(k, [mask](const int8_t* from) { return _mm256_maskz_loadu_epi8(mask, from); });
    }
    for (int c = 0; c < C; ++c) {
      for (int r = 0; r < R; ++r) {
        total[c][r] += static_cast<float>(_mm512_reduce_add_epi32(sum[c][r]));
      }
    }
  }
  for (int c = 0; c < C; ++c) {
    for (int r = 0; r < R; ++r) {
      sums[r * task.sums_stride + c] = total[c][r] * scales[r];
    }
  }
}

template <int R>
inline void dot_channels(const DotTask& task, int row) {
  const int16_t* x = task.quantized + row * task.quantized_stride;
  const float* scales = task.row_scales + row;
  float* sums = task.sums + row * task.sums_stride;
  const auto* weights = static_cast<const int8_t*>(task.weights);
  int64_t c = 0;
  for (; c + 4 <= task.channels; c += 4) {
    dot_block<R, 4>(weights + c * task.in, task, x, scales, sums + c);
  }
  for (; c < task.channels; ++c) {
    dot_block<R, 1>(weights + c * task.in, task, x, scales, sums + c);
  }
}

void dot_quantized(const DotTask& task) {
  for (int r = 0; r < task.rows; r += 4) {
    switch (task.rows - r) {
      case 1:
        dot_channels<1>(task, r);
        break;
      case 2:
        dot_channels<2>(task, r);
        break;
      case 3:
        dot_channels<3>(task, r);
        break;
      default:
        dot_channels<4>(task, r);
        break;
    }
  }
}

}  // namespace

void add_avx512_vnni_kernels(Kernels& kernels) { kernels.dot_quantized = dot_quantized; }

}  // namespace faststream
