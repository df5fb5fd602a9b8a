// Products of floats with many rows on vectors. Everything is local to the including file.
//
// Lanes are rows of x, which is packed for this: a panel's rows lie beside each other. Weights are
// read where they lie, six channels at once, and broadcast: nothing of the model is packed. The
// sums of a panel's rows and of the channels stay in registers, and each adds the inner dimension
// in order, so that a row has the same bits whatever the number of rows.
//
// With AVX-512 an element of the inner dimension takes 10 loads for 24 multiply-adds, with AVX2 8
// for 12. On a Zen 4, 116 GFLOP/s a core, 128 rows of 512 to 4,096 inputs have 102 to 107 with all
// that belongs to a product, 32 rows 92 and 16 rows 80; oneDNN 2.6.3, which packs weights in each
// call, 83 to 94 and 72. Panels of 32 rows and twelve channels have 65 to 85% of that: the
// beginnings of twelve channels are at one place of the first-level cache where they are a power of
// two apart.
#pragma once

#include "kernels/cpu/isa/kernels.h"
#include "kernels/cpu/isa/simd.h"

namespace faststream {
namespace {

constexpr int kPanelVectors = kLanes == 16 ? 4 : 2;
constexpr int kPanelChannels = 6;
constexpr int64_t kPanelGroups = (kPanelVectors * kLanes + kPanelRows - 1) / kPanelRows;
// Fewer are faster as few rows, which fill vectors of four lanes as well.
constexpr int64_t kLeastPanelRows = kLanes == 4 ? 32 : 8;
static_assert(kPanelBlock % kPanelChannels == 0);

void pack_panel(const float* x, int64_t stride, int64_t rows, int64_t in, float* to,
                int64_t to_stride) {
  for (int64_t i = 0; i < in; i += kLanes) {
    const int64_t count = in - i < kLanes ? in - i : kLanes;
    for (int64_t r = 0; r < kPanelRows; r += kLanes) {
      Vec block[kLanes];
      for (int64_t j = 0; j < kLanes; ++j) {
        block[j] = r + j < rows ? load_up_to(x + (r + j) * stride + i, count) : Vec{};
      }
      transpose(block);
      for (int64_t j = 0; j < count; ++j) store(to + (i + j) * to_stride + r, block[j]);
    }
  }
}

/// V vectors of rows from `row` on times kPanelChannels channels.
template <int V>
inline void multiply_vectors(const PanelTask& task, int64_t row, int64_t channel) {
  const float* weights[kPanelChannels];
  for (int c = 0; c < kPanelChannels; ++c) weights[c] = task.weights[channel + c];
  float* partial = task.partial + channel * task.partial_stride + row;
  Vec sums[kPanelChannels][V] = {};
  if (!task.is_first) {
    for (int c = 0; c < kPanelChannels; ++c) {
      for (int v = 0; v < V; ++v) {
        sums[c][v] = load(partial + c * task.partial_stride + v * kLanes);
      }
    }
  }
  const float* x = task.packed + row;
  // The next channels' weights, a cache line each at a time.
  const bool is_last = channel + kPanelChannels >= task.channels;
  const float* const* ahead = task.weights + channel + (is_last ? 0 : kPanelChannels);
  constexpr int64_t kLine = 16;
  for (int64_t begin = 0; begin < task.in; begin += kLine) {
    for (int c = 0; c < kPanelChannels; ++c) __builtin_prefetch(ahead[c] + begin);
    const int64_t end = begin + kLine < task.in ? begin + kLine : task.in;
    for (int64_t k = begin; k < end; ++k) {
      Vec rows[V];
      for (int v = 0; v < V; ++v) rows[v] = load(x + v * kLanes);
      for (int c = 0; c < kPanelChannels; ++c) {
        const Vec weight = splat(weights[c][k]);
        for (int v = 0; v < V; ++v) sums[c][v] += weight * rows[v];
      }
      x += task.rows;
    }
  }
  for (int c = 0; c < kPanelChannels; ++c) {
    for (int v = 0; v < V; ++v) {
      store(partial + c * task.partial_stride + v * kLanes, sums[c][v]);
    }
  }
}

/// `vectors` vectors of rows from `row` on, at most V, times all channels.
template <int V>
inline void multiply_channels(int64_t vectors, const PanelTask& task, int64_t row) {
  if constexpr (V > 1) {
    if (vectors < V) return multiply_channels<V - 1>(vectors, task, row);
  }
  for (int64_t channel = 0; channel < task.channels; channel += kPanelChannels) {
    multiply_vectors<V>(task, row, channel);
  }
}

void multiply_panel(const PanelTask& task) {
  constexpr int64_t kRows = kPanelVectors * kLanes;
  for (int64_t row = 0; row < task.rows; row += kRows) {
    const int64_t rows = task.rows - row < kRows ? task.rows - row : kRows;
    multiply_channels<kPanelVectors>(rows / kLanes, task, row);
  }
}

void transpose_sums(const float* from, int64_t from_stride, int64_t columns, int64_t rows,
                    float* to, int64_t to_stride) {
  for (int64_t c = 0; c < columns; c += kLanes) {
    for (int64_t r = 0; r < rows; r += kLanes) {
      Vec block[kLanes];
      for (int64_t j = 0; j < kLanes; ++j) block[j] = load(from + (c + j) * from_stride + r);
      transpose(block);
      for (int64_t j = 0; j < kLanes; ++j) store(to + (r + j) * to_stride + c, block[j]);
    }
  }
}

}  // namespace
}  // namespace faststream
