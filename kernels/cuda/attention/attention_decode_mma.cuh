// Attention of one query a sequence on the tensor cores (flash-decoding: arXiv:2205.14135 with the
// cache split among blocks). Memory-bound: K and V are read once for up to eight query heads that
// share them. With four heads a 16-bit value is used eight times, which is more than the other
// units have time for.
//
// A warp takes 16 tokens at a time and computes K · Qᵀ [tokens, heads] and Vᵀ · Pᵀ [dims, heads]:
// tokens and dimensions fill the instruction's sixteen rows, heads its eight columns. Memory goes
// straight to registers, 16 bytes a lane, without shared memory or shuffles:
//   - a lane gives four of K's consecutive elements where an instruction has two pairs eight apart,
//     and the same of Q: a sum does not depend on its order;
//   - Vᵀ wants two tokens of one dimension in a register. A lane reads eight dimensions of four
//     tokens and pairs them up; which dimension is which row is known when the result is stored.
// 8 kB of a warp are on the way at once (head_dim 128), 64 kB and more of a multiprocessor, where
// 3.1 TB/s at 0.7 us of latency need 17.
//
// Bytes: 2 kv_len n_kv_heads head_dim elements. 64 sequences of 1,024 tokens of Llama-3-8B: 268 MB
// a layer, 87 us at 3.10 TB/s predicted (measured: RESULTS.md).
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/attention_mma.cuh"
#include "kernels/cuda/attention/attention_split.cuh"
#include "kernels/cuda/mma.cuh"

namespace faststream {

inline constexpr int kDecodeWarps = 4;
inline constexpr int kDecodeHeads = 8;    // columns of a tensor core instruction
inline constexpr int kDecodeTokens = 16;  // rows
static_assert(kPageTokens % kDecodeTokens == 0, "the tokens of a turn are in one page");

template <int kDim, int kWarps = kDecodeWarps>
using DecodeResults = WarpResults<kWarps, kDecodeHeads, kDim + 8>;

/// Fills `results` for a split that is not empty: by kWarps warps that follow one another in the
/// block from a multiple of their number on. kDim: head_dim rounded up; the columns past head_dim
/// are zeros. queries [split.n_heads, head_dim]: rows at multiples of 16 bytes. Fewer warps, of
/// which each has one turn, give the same bits: those that have none add nothing.
template <typename T, int kDim, typename Rule, int kWarps>
__device__ void attend_split(const AttentionArguments& a, const Split& split, const T* queries,
                             WarpResults<kWarps, kDecodeHeads, kDim + 8>& results) {
  constexpr int kKeyLoads = kDim / 32;    // 16-byte loads of a row by four lanes
  constexpr int kValueLoads = kDim / 64;  // by eight
  const int dim = a.kv.head_dim;
  const int warp = static_cast<int>(threadIdx.x) / kWarp % kWarps;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int group = lane / 4;
  const int in_group = lane % 4;
  const auto load = [&](const void* data, int64_t row, int d, bool wanted) {
    return wanted && d < dim
               ? *reinterpret_cast<const uint4*>(static_cast<const T*>(data) + row + d)
               : make_uint4(0, 0, 0, 0);
  };

  uint4 q[kKeyLoads];
#pragma unroll
  for (int i = 0; i < kKeyLoads; ++i) {
    q[i] = load(queries, group * dim, 32 * i + 8 * in_group, group < split.n_heads);
  }

  // Of heads 2 in_group, 2 in_group + 1; those past the end repeat the last.
  const int n_tokens = split.position + 1;
  const Rule rules[2] = {
      {a, split.first_head + min(2 * in_group, split.n_heads - 1), n_tokens},
      {a, split.first_head + min(2 * in_group + 1, split.n_heads - 1), n_tokens}};
  const int first_seen = rules[0].first_seen(split.position);
  const auto is_seen = [&](int token) {
    return token < split.last && (Rule::kPlain || token >= first_seen);
  };
  float sums[kValueLoads][4][4] = {};
  float maxima[2] = {kLowest, kLowest};  // of heads 2 in_group, 2 in_group + 1
  float weights[2] = {};  // of this lane's tokens; the eight lanes are added at the end
  const int32_t* pages = a.page_table + static_cast<int64_t>(split.sequence) * a.max_pages;
  int64_t next_page = 0;
  if (const int base = split.first + warp * kDecodeTokens; base < split.last) {
    next_page = pages[base / kPageTokens];
  }
  for (int base = split.first + warp * kDecodeTokens; base < split.last;
       base += kWarps * kDecodeTokens) {
    const int64_t page = next_page;
    const int next = base + kWarps * kDecodeTokens;
    if (next < split.last) next_page = pages[next / kPageTokens];
    const int64_t first_row =
        ((page * a.kv.n_kv_heads + split.kv_head) * kPageTokens + base % kPageTokens) * dim;
    // Tokens that are not seen: zeros, as whatever is in the page may be NaN.
    const auto load_token = [&](const void* cache, int token, int d) {
      return load(cache, first_row + token * dim, d, is_seen(base + token));
    };
    uint4 k[kKeyLoads][2];
#pragma unroll
    for (int i = 0; i < kKeyLoads; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        k[i][half] = load_token(a.kv.k, group + 8 * half, 32 * i + 8 * in_group);
      }
    }
    uint4 v[kValueLoads][4];
#pragma unroll
    for (int i = 0; i < kValueLoads; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        v[i][j] = load_token(a.kv.v, 2 * in_group + j % 2 + 8 * (j / 2), 64 * i + 8 * group);
      }
    }

    // Of tokens group and group + 8, each with heads 2 in_group and 2 in_group + 1.
    float scores[4] = {};
    float more_scores[4] = {};  // a second chain of instructions
#pragma unroll
    for (int i = 0; i < kKeyLoads; ++i) {
      mma_16x8x16<T>(scores, {k[i][0].x, k[i][1].x, k[i][0].y, k[i][1].y}, q[i].x, q[i].y);
      mma_16x8x16<T>(more_scores, {k[i][0].z, k[i][1].z, k[i][0].w, k[i][1].w}, q[i].z, q[i].w);
    }

    float new_maxima[2] = {maxima[0], maxima[1]};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = base + group + 8 * (i / 2);
      const float score = (scores[i] + more_scores[i]) * a.scale_log2;
      scores[i] = is_seen(token) ? rules[i % 2].vary(score, split.position, token) : -INFINITY;
      new_maxima[i % 2] = fmaxf(new_maxima[i % 2], scores[i]);
    }
    float corrections[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float& maximum = new_maxima[h];
      for (int step = 4; step < kWarp; step *= 2) {
        maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, step));
      }
      corrections[h] = exp2f(maxima[h] - maximum);
      maxima[h] = maximum;
      weights[h] *= corrections[h];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scores[i] = exp2f(scores[i] - maxima[i % 2]);
      weights[i % 2] += scores[i];
    }
    const uint32_t p0 = transpose_8x8(pack_pair<T>(scores[0], scores[1]));
    const uint32_t p1 = transpose_8x8(pack_pair<T>(scores[2], scores[3]));

#pragma unroll
    for (int i = 0; i < kValueLoads; ++i) {
      uint32_t words[4][4];  // of four tokens, each with dimensions 2 tile and 2 tile + 1
#pragma unroll
      for (int j = 0; j < 4; ++j) memcpy(words[j], &v[i][j], sizeof words[j]);
#pragma unroll
      for (int tile = 0; tile < 4; ++tile) {
#pragma unroll
        for (int c = 0; c < 4; ++c) sums[i][tile][c] *= corrections[c % 2];
        mma_16x8x16<T>(sums[i][tile],
                       {__byte_perm(words[0][tile], words[1][tile], 0x5410),
                        __byte_perm(words[0][tile], words[1][tile], 0x7632),
                        __byte_perm(words[2][tile], words[3][tile], 0x5410),
                        __byte_perm(words[2][tile], words[3][tile], 0x7632)},
                       p0, p1);
      }
    }
  }

#pragma unroll
  for (int h = 0; h < 2; ++h) {
    for (int step = 4; step < kWarp; step *= 2) {
      weights[h] += __shfl_xor_sync(kAllLanes, weights[h], step);
    }
    const int head = 2 * in_group + h;
    if (group == 0) {
      results.maxima[warp][head] = maxima[h];
      results.weights[warp][head] = weights[h];
    }
    // A lane has eight dimensions in a row: tile t's rows `group` and group + 8 are 2 t and 2 t
    // + 1.
#pragma unroll
    for (int i = 0; i < kValueLoads; ++i) {
      float* to = &results.sums[warp][head][64 * i + 8 * group];
#pragma unroll
      for (int tile = 0; tile < 4; tile += 2) {
        const float(&left)[4] = sums[i][tile];
        const float(&right)[4] = sums[i][tile + 1];
        reinterpret_cast<float4*>(to)[tile / 2] =
            make_float4(left[h], left[2 + h], right[h], right[2 + h]);
      }
    }
  }
}

}  // namespace faststream
