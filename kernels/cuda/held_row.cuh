// Rows of 16-byte pieces in registers: all of a row is on its way at once, and loaded once.
#pragma once

#include "kernels/cuda/linear/linear_few_rows.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/row.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream {

inline constexpr int kHeldEach = 8;  ///< elements that a thread has in a row
inline constexpr int kMaxHeldTurns = 4;

/// Eight elements in a row, at a multiple of 16 bytes.
template <typename T>
__device__ inline void pack_eight(const float (&values)[kHeldEach], uint4 (&words)[sizeof(T) / 2]) {
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      words[i] = make_uint4(__float_as_uint(values[4 * i]), __float_as_uint(values[4 * i + 1]),
                            __float_as_uint(values[4 * i + 2]), __float_as_uint(values[4 * i + 3]));
    }
  } else {
    words[0] = make_uint4(pack_pair<T>(values[0], values[1]), pack_pair<T>(values[2], values[3]),
                          pack_pair<T>(values[4], values[5]), pack_pair<T>(values[6], values[7]));
  }
}
template <typename T>
__device__ inline void store_eight(T* to, const float (&values)[kHeldEach]) {
  uint4 words[sizeof(T) / 2];
  pack_eight<T>(values, words);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T) / 2); ++i)
    reinterpret_cast<uint4*>(to)[i] = words[i];
}

struct Eight {
  float values[kHeldEach];
};

/// What one of kThreads threads, kRowLanes or a warp's, has of a row of at most kTurns · kThreads ·
/// kHeldEach elements, a multiple of eight. Lanes have what those of measure_row<8>() have.
template <typename T, int kTurns, int kThreads = kRowLanes>
struct HeldRow {
  static constexpr int kPieces = sizeof(T) / 2;  // of 16 bytes, in a turn
  uint4 pieces[kTurns * kPieces] = {};           // zeros where the row has ended

  static __device__ int column(int turn) {
    return (turn * kThreads + static_cast<int>(threadIdx.x) % kThreads) * kHeldEach;
  }

  __device__ void load(const T* row, int n) {
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      if (column(turn) >= n) continue;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        pieces[turn * kPieces + i] = reinterpret_cast<const uint4*>(row + column(turn))[i];
      }
    }
  }

  /// What it has of a turn.
  __device__ Eight eight(int turn) const {
    T elements[kHeldEach];
    memcpy(elements, &pieces[turn * kPieces], sizeof elements);
    Eight eight;
#pragma unroll
    for (int i = 0; i < kHeldEach; ++i) eight.values[i] = to_float(elements[i]);
    return eight;
  }

  /// Rounds them to T, as what it has of a turn.
  __device__ void set(int turn, const float (&values)[kHeldEach]) {
    uint4 packed[kPieces];
    pack_eight<T>(values, packed);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) pieces[turn * kPieces + i] = packed[i];
  }

  /// Calls f(turn, c, values) for the elements from c on.
  template <typename F>
  __device__ void for_each(int n, const F& f) const {
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      if (column(turn) >= n) continue;
      Eight eight = this->eight(turn);
      f(turn, column(turn), eight.values);
    }
  }

  /// team: of these threads.
  template <typename Team>
  __device__ MeasuredNorm measured(int n, const Norm& norm, Team& team) const {
    return measure(n, norm, team, [&](const auto& add) {
      for_each(n, [&](int turn, int /*c*/, const float(&values)[kHeldEach]) {
#pragma unroll
        for (const float value : values) add(turn % Team::kTurns, value);
      });
    });
  }
};

/// Elements of these weights, normalized by a norm without bias.
__device__ inline void normalize_eight(const MeasuredNorm& norm, const Eight& weights,
                                       float (&values)[kHeldEach]) {
#pragma unroll
  for (int i = 0; i < kHeldEach; ++i) values[i] = norm.apply(values[i], weights.values[i], 0);
}

/// Elements from c on, normalized.
__device__ inline void normalize_eight(const MeasuredNorm& norm, int c,
                                       float (&values)[kHeldEach]) {
  if (norm.norm.kind == NormKind::none) return;
  float weights[kHeldEach];
  load_floats(norm.norm.weight + c, weights);
  float biases[kHeldEach] = {};
  if (norm.norm.bias != nullptr) load_floats(norm.norm.bias + c, biases);
#pragma unroll
  for (int i = 0; i < kHeldEach; ++i) values[i] = norm.apply(values[i], weights[i], biases[i]);
}

/// Whether kThreads threads can hold a matrix' rows.
template <int kThreads = kRowLanes>
bool can_hold(const Matrix& x) {
  return rows_begin_at_16(x.data, x.stride, x.dtype) && x.cols % kHeldEach == 0 &&
         x.cols <= kMaxHeldTurns * kThreads * kHeldEach;
}

/// Whether normalize_eight() can load what the norm has.
inline bool can_hold(const Norm& norm) {
  return reinterpret_cast<uintptr_t>(norm.weight) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(norm.bias) % 16 == 0;
}

/// Calls f.operator()<kTurns>() with the turns of kThreads threads that n elements take.
template <int kThreads = kRowLanes, typename F>
void with_held_turns(int64_t n, const F& f) {
  constexpr int64_t kTurn = kThreads * kHeldEach;
  if (n <= kTurn) {
    f.template operator()<1>();
  } else if (n <= 2 * kTurn) {
    f.template operator()<2>();
  } else {
    f.template operator()<kMaxHeldTurns>();
  }
}

}  // namespace faststream
