// The rotation of support/hadamard.h. Everything is local to the including file.
#pragma once

#include "kernels/cpu/isa/simd.h"
#include "support/hadamard.h"

namespace faststream {
namespace {

/// Each lane's neighbour so many lanes away: lane i has that of i ^ kDistance.
template <int kDistance>
inline Vec neighbours(Vec v) {
  static_assert(kDistance < kLanes);
#if defined(__AVX512F__)
  const auto bits = reinterpret_cast<__m512>(v);
  if constexpr (kDistance == 1) return reinterpret_cast<Vec>(_mm512_permute_ps(bits, 0xb1));
  if constexpr (kDistance == 2) return reinterpret_cast<Vec>(_mm512_permute_ps(bits, 0x4e));
  if constexpr (kDistance == 4) {
    return reinterpret_cast<Vec>(_mm512_shuffle_f32x4(bits, bits, 0xb1));
  }
  return reinterpret_cast<Vec>(_mm512_shuffle_f32x4(bits, bits, 0x4e));
#elif defined(__AVX2__)
  if constexpr (kDistance == 1) return __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6);
  if constexpr (kDistance == 2) return __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5);
  return __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3);
#else
  if constexpr (kDistance == 1) return __builtin_shufflevector(v, v, 1, 0, 3, 2);
  return __builtin_shufflevector(v, v, 2, 3, 0, 1);
#endif
}

/// Sums and differences of lanes kDistance apart.
template <int kDistance>
inline Vec butterfly(Vec v) {
  if constexpr (kDistance >= kLanes) {
    return v;
  } else {
    Vec signs;
    for (int i = 0; i < kLanes; ++i) signs[i] = (i & kDistance) != 0 ? -1 : 1;
    return v * signs + neighbours<kDistance>(v);
  }
}

/// What the columns of a block are multiplied with first.
template <int kBlock>
struct HadamardFactors {
  constexpr HadamardFactors() {
    float root = 1;
    while (root * root < kBlock) root *= 2;
    for (int i = 0; i < kBlock; ++i) values[i] = (hadamard_negates(i) ? -1 : 1) / root;
  }
  alignas(64) float values[kBlock] = {};
};

template <int kBlock>
inline void hadamard_block_of(const float* x, float* to) {
  static constexpr HadamardFactors<kBlock> kFactors;
  constexpr int kVectors = kBlock / kLanes;
  Vec v[kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kVectors; ++i) {
    v[i] = load(x + i * kLanes) * load(kFactors.values + i * kLanes);
    v[i] = butterfly<8>(butterfly<4>(butterfly<2>(butterfly<1>(v[i]))));
  }
#pragma GCC unroll 8
  for (int distance = 1; distance < kVectors; distance *= 2) {
#pragma GCC unroll 64
    for (int i = 0; i < kVectors; ++i) {
      if ((i & distance) != 0) continue;
      const Vec a = v[i];
      const Vec b = v[i + distance];
      v[i] = a + b;
      v[i + distance] = a - b;
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kVectors; ++i) store(to + i * kLanes, v[i]);
}

/// As Kernels::hadamard.
void rotate_blocks(const float* x, int64_t n, float* to) {
  int64_t i = 0;
  for (; i + 256 <= n; i += 256) hadamard_block_of<256>(x + i, to + i);
  for (; i + 64 <= n; i += 64) hadamard_block_of<64>(x + i, to + i);
  for (; i + 16 <= n; i += 16) hadamard_block_of<16>(x + i, to + i);
  for (; i + 4 <= n; i += 4) {
    const float a = (x[i] + x[i + 1]) / 2;
    const float b = (x[i] - x[i + 1]) / 2;
    const float c = (x[i + 2] - x[i + 3]) / 2;  // column 3 has changed its sign
    const float d = (x[i + 2] + x[i + 3]) / 2;
    to[i] = a + c;
    to[i + 1] = b + d;
    to[i + 2] = a - c;
    to[i + 3] = b - d;
  }
  for (; i < n; ++i) to[i] = x[i];
}

}  // namespace
}  // namespace faststream
