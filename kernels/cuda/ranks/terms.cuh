// How kernels of several ranks give each other the terms of a sum: a word is unset until it is
// there, as between blocks (step_kernel/rows.cuh), so that it is its own message.
#pragma once

#include "kernels/cuda/ranks/peer_memory.h"
#include "kernels/cuda/row.cuh"
#include "kernels/cuda/step_kernel/rows.cuh"

namespace faststream {

/// A rank that has not given its terms by then has died.
inline constexpr uint64_t kPatience = 60'000'000'000;  // ns

__device__ inline uint64_t nanoseconds() {
  uint64_t ns = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

/// Words of a row that other GPUs write.
struct FarWords {
  const std::byte* at;
};
__device__ inline void load(const FarWords& from, uint4& words) {
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(from.at)
               : "memory");
}
__device__ inline void store_far(std::byte* to, uint32_t word) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}
__device__ inline void store_far(std::byte* to, const uint4& words) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words.x),
               "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
}

/// Sends all ranks a word of this one's terms, or four, from byte `at` on.
template <typename Words>
__device__ void send(const Terms& terms, int64_t at, const Words& words) {
  const PeerMemory& peers = terms.places;
  const Words set = step_kernel::made_set(words);
  const int64_t byte = int64_t{peers.rank} * terms.rank_bytes + at;
#pragma unroll 1
  for (int n = 1; n <= peers.count; ++n) {
    const int to = peers.rank + n < peers.count ? peers.rank + n : peers.rank + n - peers.count;
    store_far(peers.of_rank[to] + byte, set);
  }
}

/// The same of eight elements, rounded to the terms' type: those from `element` on, a multiple of
/// eight.
__device__ inline void send_eight(const Terms& terms, int64_t element, const float (&values)[8]) {
  if (terms.dtype == DType::f32) {
    uint4 words[2];
    memcpy(words, values, sizeof words);
    const int64_t at = element * int64_t{sizeof(float)};
    send(terms, at, words[0]);
    send(terms, at + int64_t{sizeof *words}, words[1]);
  } else {
    alignas(16) __nv_bfloat16 rounded[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) rounded[i] = from_float<__nv_bfloat16>(values[i]);
    uint4 words;
    memcpy(&words, rounded, sizeof words);
    send(terms, element * int64_t{sizeof *rounded}, words);
  }
}

/// By a warp: pieces that other ranks send; waits until they are there.
template <int kPieces, typename Exists, typename From>
__device__ void bring_far(uint4 (&pieces)[kPieces], const Exists& exists, const From& from) {
  step_kernel::ask_for(pieces, exists, from);
  const uint64_t begin = nanoseconds();
  step_kernel::await(pieces, true, [&](int i) {
    if (nanoseconds() - begin > kPatience) __trap();
    return from(i);
  });
}

/// By a warp: the sums of kEach eights of elements, eight e of element(e) and the seven behind it,
/// if exists(e): of all ranks' terms in the order of ranks, rounded to their type. Waits until they
/// are there.
template <int kEach, typename Exists, typename Element>
__device__ void bring_sums(const Terms& terms, const Exists& exists, const Element& element,
                           float (&sums)[kEach][8]) {
  const PeerMemory& peers = terms.places;
  constexpr int kRanks = 2;           // at once, as their words take equally long
  constexpr int kPieces = 2 * kEach;  // of a rank: halves, where they are floats
  const bool are_floats = terms.dtype == DType::f32;
#pragma unroll
  for (auto& eight : sums) {
#pragma unroll
    for (float& sum : eight) sum = 0;
  }
#pragma unroll 1
  for (int rank = 0; rank < peers.count; rank += kRanks) {
    uint4 pieces[kRanks * kPieces];
    const std::byte* rows = peers.of_rank[peers.rank] + int64_t{rank} * terms.rank_bytes;
    const auto from = [&](int i) {
      const int e = i % kPieces / 2;
      return FarWords{rows + i / kPieces * terms.rank_bytes + element(e) * (are_floats ? 4 : 2) +
                      i % 2 * 16};
    };
    const auto is_wanted = [&](int i) {
      return rank + i / kPieces < peers.count && exists(i % kPieces / 2) &&
             (i % 2 == 0 || are_floats);
    };
    bring_far(pieces, is_wanted, from);
#pragma unroll
    for (int r = 0; r < kRanks; ++r) {
      if (rank + r >= peers.count) break;
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        const uint4& low = pieces[r * kPieces + 2 * e];
        const uint4& high = pieces[r * kPieces + 2 * e + 1];
        if (are_floats) {
          float terms_of_rank[8];
          memcpy(terms_of_rank, &low, sizeof low);
          memcpy(terms_of_rank + 4, &high, sizeof high);
#pragma unroll
          for (int i = 0; i < 8; ++i) sums[e][i] += terms_of_rank[i];
        } else {
          __nv_bfloat16 terms_of_rank[8];
          memcpy(terms_of_rank, &low, sizeof low);
#pragma unroll
          for (int i = 0; i < 8; ++i) sums[e][i] += to_float(terms_of_rank[i]);
        }
      }
    }
  }
  if (are_floats) return;
#pragma unroll
  for (auto& eight : sums) {
#pragma unroll
    for (float& sum : eight) sum = to_float(from_float<__nv_bfloat16>(sum));
  }
}

}  // namespace faststream
