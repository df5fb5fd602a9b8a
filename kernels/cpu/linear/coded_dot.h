// Few rows times weights that are codes of floats, as they lie in the model file: decoded in
// registers (coded_vectors.h). A row's sums have the same bits whatever the number of rows: of
// codes of four bits scaled weights are added in the order of dot_f32; of E4M3, whose values are
// not chosen from scaled ones, each group's sum is multiplied by its scale. Everything is local to
// the including file.
//
// As of floats, several channels are read at once: a vector of x is loaded once for all of them,
// and their sums are chains of multiply-adds that need not wait for each other.
#pragma once

#include "kernels/cpu/isa/kernels.h"
#include "kernels/cpu/linear/coded_vectors.h"

namespace faststream {
namespace {

#if defined(__AVX2__)

// Rows of a pass, and channels at once.
constexpr int kCodedRows = 4;
template <int R>
constexpr int kCodedChannels = kLanes<16 && R> 2 ? 2 : 4;

/// On a Zen 5 panels with 16 rows of 4,096 inputs have three quarters of what these have, with 32
/// as much, with 128 a tenth more; on AVX2's registers half more with 32.
constexpr int64_t kMostCodedDotRows = kLanes == 16 ? 32 : 8;

/// What is prefetched beside a block of C channels: that of the channels whose bits are set, so
/// many bytes further.
struct CodedPrefetch {
  int64_t distance;
  uint32_t channels;
};

/// Vector v of a step as it is multiplied.
template <WeightFormat kFormat>
inline Vec weights_of(const CodedGroupVectors<kFormat>& group, const char* codes, int v) {
  if constexpr (CodedLayout<kFormat>::kBytes) {
    return group.unscaled(codes, v);
  } else {
    return group.step(codes, v);
  }
}

/// Adds what is left of less than a step, and writes the sums.
template <WeightFormat kFormat, int R, int C>
[[gnu::noinline]] void finish_channels(const char* weights, const DotTask& task, const float* x,
                                       const Vec* of_lanes, uint32_t have_nan, float* sums) {
  float values[C][kPackedStep];
  const int64_t count = task.in % kPackedStep;
  for (int c = 0; count > 0 && c < C; ++c) {
    decode_step_at<kFormat>(weights + c * CodedLayout<kFormat>::bytes(task.in),
                            task.in / kPackedStep, values[c]);
  }
  for (int c = 0; c < C; ++c) {
    for (int r = 0; r < R; ++r) {
      Vec sum = of_lanes[c * R + r];
      for (int64_t i = 0; i < count; i += kLanes) {
        const int64_t some = count - i < kLanes ? count - i : kLanes;
        sum = multiply_add(load_up_to(values[c] + i, some),
                           load_up_to(x + r * task.x_stride + i, some), sum);
      }
      sums[r * task.sums_stride + c] =
          (have_nan >> c & 1) != 0 ? __builtin_nanf("") : sum_of_lanes(sum);
    }
  }
}

template <WeightFormat kFormat, int R, int C>
inline void coded_channels(const char* weights, const DotTask& task, const float* x,
                           CodedPrefetch ahead, float* sums) {
  using Layout = CodedLayout<kFormat>;
  using Group = CodedGroupVectors<kFormat>;
  const int64_t channel_bytes = Layout::bytes(task.in);
  const int64_t steps = task.in / kPackedStep;  // whole ones
  Vec sum[C][R] = {};
  SeenCodes seen[C];
  const auto add_group = [&](const Group(&groups)[C], const char* codes, int64_t count) {
    Vec part[C][R] = {};
    auto& to = Layout::kBytes ? part : sum;
    for (int64_t step = 0; step < count; ++step, codes += Layout::kStepBytes, x += kPackedStep) {
#pragma GCC unroll 4
      for (int v = 0; v < kStepVectors; ++v) {
        Vec xs[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) xs[r] = load(x + r * task.x_stride + v * kLanes);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
          const Vec w = weights_of(groups[c], codes + c * channel_bytes, v);
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) to[c][r] = multiply_add(w, xs[r], to[c][r]);
        }
      }
    }
    if constexpr (Layout::kBytes) {
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        seen[c].add(codes + (c * channel_bytes - count * Layout::kStepBytes), count);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          sum[c][r] = multiply_add(part[c][r], groups[c].scale, sum[c][r]);
        }
      }
    }
  };
  const char* block = weights;
  for (int64_t first = 0; first < steps; first += Layout::kBlockSteps) {
    for (int c = 0; c < C; ++c) {
      if ((ahead.channels >> c & 1) == 0) continue;
      for (int64_t line = 0; line < Layout::kBlockBytes; line += 64) {
        __builtin_prefetch(block + c * channel_bytes + ahead.distance + line);
      }
    }
    const int64_t left = steps - first < Layout::kBlockSteps ? steps - first : Layout::kBlockSteps;
    const char* description = block;
    const char* codes = block + Layout::kDescribed;
    for (int64_t step = 0; step < left; step += Layout::kGroupSteps) {
      Group groups[C];
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) groups[c] = Group(description + c * channel_bytes);
      if (left - step >= Layout::kGroupSteps) {
        add_group(groups, codes, Layout::kGroupSteps);
      } else {
        add_group(groups, codes, left - step);
      }
      description += Layout::kGroupBytes;
      codes += Layout::kGroupSteps * Layout::kStepBytes;
    }
    block += Layout::kBlockBytes;
  }
  // Apart, and from memory, so that the sums are in registers until here.
  Vec of_lanes[C * R];
  uint32_t have_nan = 0;
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) of_lanes[c * R + r] = sum[c][r];
    if (Layout::kBytes && seen[c].have_nan()) have_nan |= 1U << c;
  }
  finish_channels<kFormat, R, C>(weights, task, x, of_lanes, have_nan, sums);
}

/// The first `rows` rows, at most R.
template <WeightFormat kFormat, int R>
inline void coded_rows(int rows, const DotTask& task, const float* x, CodedPrefetch ahead,
                       float* sums) {
  if constexpr (R > 1) {
    if (rows < R) return coded_rows<kFormat, R - 1>(rows, task, x, ahead, sums);
  }
  constexpr int kChannels = kCodedChannels<R>;
  const int64_t channel_bytes = CodedLayout<kFormat>::bytes(task.in);
  const auto* weights = static_cast<const char*>(task.weights);
  int64_t c = 0;
  for (; c + kChannels <= task.channels; c += kChannels) {
    coded_channels<kFormat, R, kChannels>(weights + c * channel_bytes, task, x, ahead, sums + c);
  }
  for (; c < task.channels; ++c) {
    coded_channels<kFormat, R, 1>(weights + c * channel_bytes, task, x, ahead, sums + c);
  }
}

/// A single pass prefetches the next channels; several share the channels after the task's.
template <WeightFormat kFormat>
void coded_dot(const DotTask& task) {
  const int64_t channel_bytes = CodedLayout<kFormat>::bytes(task.in);
  const int passes = (task.rows + kCodedRows - 1) / kCodedRows;
  for (int pass = 0; pass < passes; ++pass) {
    const int r = pass * kCodedRows;
    CodedPrefetch ahead = {4 * channel_bytes, 0xf};
    if (passes > 1) {
      ahead = {task.channels * channel_bytes, 0};
      for (int c = 0; c < 4; ++c) {
        if (c % passes == pass) ahead.channels |= 1U << c;
      }
    }
    coded_rows<kFormat, kCodedRows>(task.rows - r, task, task.x + r * task.x_stride, ahead,
                                    task.sums + r * task.sums_stride);
  }
}

#endif

template <WeightFormat kFormat>
constexpr CodedKernels coded_kernels() {
#if defined(__AVX2__)
  return {.dot = coded_dot<kFormat>,
          .most_dot_rows = kMostCodedDotRows,
          .decode = decode_coded_row<kFormat>};
#else
  return {.dot = nullptr, .most_dot_rows = 0, .decode = decode_coded_row<kFormat>};
#endif
}

}  // namespace
}  // namespace faststream
