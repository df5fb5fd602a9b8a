// How the blocks of a step hand rows to one another: through memory in which a word is unset
// until it has its result. Who needs a word looks for it until it is there, so data are their own
// message. Counters beside them would take two more trips to the L2 cache, and a fence that waits
// for every store of the block.
#pragma once

#include <cstdint>

#include "kernels/cuda/step_kernel/instruction.h"
#include "kernels/cuda/types.cuh"

namespace faststream::step_kernel {

/// No result has this word: in arithmetic, NaN is 0x7fffffff, or 0x7fff twice.
inline constexpr uint32_t kUnset = 0xffffffffU;

/// Where a step's rows are.
struct RowMemory {
  std::byte* data;

  [[nodiscard]] __device__ void* at(const Row& row) const { return data + row.offset; }
};

/// Past the L1 cache.
__device__ inline uint32_t load_word(const void* from) {
  uint32_t word;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
  return word;
}
__device__ inline uint4 load_words(const void* from) {
  uint4 words;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(from)
               : "memory");
  return words;
}
__device__ inline uint2 load_pair(const void* from) {
  uint2 words;
  asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];"
               : "=r"(words.x), "=r"(words.y)
               : "l"(from)
               : "memory");
  return words;
}
__device__ inline void load(const void* from, uint32_t& word) { word = load_word(from); }
__device__ inline void load(const void* from, uint2& words) { words = load_pair(from); }
__device__ inline void load(const void* from, uint4& words) { words = load_words(from); }

__device__ inline bool is_unset(uint32_t word) { return word == kUnset; }
__device__ inline bool is_unset(const uint2& words) { return is_unset(max(words.x, words.y)); }
__device__ inline bool is_unset(const uint4& words) {
  return is_unset(max(max(words.x, words.y), max(words.z, words.w)));
}
__device__ inline void make_unset(uint4& words) {
  words = make_uint4(kUnset, kUnset, kUnset, kUnset);
}

/// By a warp: asks for pieces of a row, one, two or four words: piece i from from(i), or zeros
/// where exists(i) is false.
template <int kPieces, typename Piece, typename Exists, typename From>
__device__ void ask_for(Piece (&pieces)[kPieces], const Exists& exists, const From& from) {
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    pieces[i] = Piece{};
    if (exists(i)) load(from(i), pieces[i]);
  }
}
/// Until those that it has asked for are there. All lanes look until none misses any: where some
/// went on alone, the warp would stay divided, and gather anew for every shuffle and vote behind.
template <int kPieces, typename Piece, typename From>
__device__ void await(Piece (&pieces)[kPieces], bool awaited, const From& from) {
  while (awaited) {
    bool missing = false;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) missing = missing || is_unset(pieces[i]);
    if (!__any_sync(kAllLanes, missing)) return;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (is_unset(pieces[i])) load(from(i), pieces[i]);
    }
  }
}
/// Both.
template <int kPieces, typename Piece, typename Exists, typename From>
__device__ void bring(Piece (&pieces)[kPieces], bool awaited, const Exists& exists,
                      const From& from) {
  ask_for(pieces, exists, from);
  await(pieces, awaited, from);
}

/// Asks for memory that is read after something else was awaited, so that it will be in the L1
/// cache: a sector of 32 bytes.
__device__ inline void touch(const void* sector) {
  asm volatile("{ .reg .u32 ignored; ld.global.u32 ignored, [%0]; }" ::"l"(sector));
}
/// The same of all sectors, by a warp.
template <typename Element>
__device__ void ask_for(const Element* from, int count) {
  constexpr int kSector = 32 / static_cast<int>(sizeof(Element));
  for (int i = static_cast<int>(threadIdx.x) % kWarp * kSector; i < count; i += kWarp * kSector) {
    touch(from + i);
  }
}

/// Makes a word of a result known.
__device__ inline uint32_t made_set(uint32_t word) {
  return is_unset(word) ? 0x7fff7fffU : word;  // NaN all the same
}
__device__ inline uint4 made_set(const uint4& words) {
  return make_uint4(made_set(words.x), made_set(words.y), made_set(words.z), made_set(words.w));
}
__device__ inline void publish(void* to, uint32_t word) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(made_set(word)) : "memory");
}
/// Or two.
__device__ inline void publish(void* to, const uint2& words) {
  asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(made_set(words.x)),
               "r"(made_set(words.y))
               : "memory");
}
__device__ inline void publish(void* to, float first, float second) {
  publish(to, make_uint2(__float_as_uint(first), __float_as_uint(second)));
}

/// Or four.
__device__ inline void publish(void* to, const uint4& words) {
  const uint4 set = made_set(words);
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(set.x),
               "r"(set.y), "r"(set.z), "r"(set.w)
               : "memory");
}

/// Four integers of eight bits, none of them -128, as a word that is not unset; and back.
__device__ inline uint32_t flipped(uint32_t integers) { return integers ^ 0x7f7f7f7fU; }
__device__ inline uint2 flipped(const uint2& words) {
  return make_uint2(flipped(words.x), flipped(words.y));
}
__device__ inline uint4 flipped(const uint4& words) {
  return make_uint4(flipped(words.x), flipped(words.y), flipped(words.z), flipped(words.w));
}

/// Words of sixteen bytes that are to be unset.
struct Pieces {
  uint4* first = nullptr;
  int64_t count = 0;
};
/// By all threads of all blocks.
__device__ inline void unset(const Pieces& pieces) {
  uint4 piece;
  make_unset(piece);
  const int64_t all = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < pieces.count; i += all) {
    pieces.first[i] = piece;
  }
}

}  // namespace faststream::step_kernel
