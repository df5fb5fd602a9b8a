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
// Bytes: kv_len n_kv_heads (head_dim + v_head_dim) elements. 64 sequences of 1,024 tokens of
// Llama-3-8B: 268 MB a layer, 87 us at 3.10 TB/s predicted (measured: RESULTS.md).
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/attention_mma.cuh"
#include "kernels/cuda/attention/attention_split.cuh"
#include "kernels/cuda/attention/kv_rows.cuh"
#include "kernels/cuda/barriers.cuh"
#include "kernels/cuda/mma.cuh"

namespace faststream {

inline constexpr int kDecodeWarps = 4;
inline constexpr int kDecodeHeads = 8;    // columns of a tensor core instruction
inline constexpr int kDecodeTokens = 16;  // rows
static_assert(kPageTokens % kDecodeTokens == 0, "the tokens of a turn are in one page");

/// Warps that share tokens, each with as many columns of them, where all are too many for one.
template <int kDim>
inline constexpr int kDecodeParts = kDim > 256 ? 2 : 1;

template <int kDim>
using DecodeResults = WarpResults<kDecodeWarps / kDecodeParts<kDim>, kDecodeHeads, kDim + 4>;

/// A lane's part of the queries of up to kDecodeHeads heads. kDim here and below: the width of keys
/// or values, the larger, rounded up, or a part of it; the columns past them are zeros.
template <int kDim>
struct DecodeQueries {
  static constexpr int kLoads = kDim / 32;  // 16 bytes each, of a row by four lanes
  uint4 q[kLoads];

  /// queries [n_heads, dim]: rows at multiples of 16 bytes. Columns from `first` on.
  template <typename T>
  __device__ void load(const T* queries, int n_heads, int dim, int first = 0) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int head = lane / 4;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int d = first + 32 * i + 8 * (lane % 4);
      q[i] = head < n_heads && d < dim ? *reinterpret_cast<const uint4*>(queries + head * dim + d)
                                       : make_uint4(0, 0, 0, 0);
    }
  }
};

/// A lane's part of the keys and values of kDecodeTokens tokens, as they are in memory: loads do
/// not wait for each other.
template <int kDim, KvFormat kFormat = KvFormat::plain>
struct DecodeTokens {
  static constexpr bool kIsCoded = kFormat != KvFormat::plain;
  static constexpr int kKeyLoads = DecodeQueries<kDim>::kLoads;
  static constexpr int kValueLoads = kDim / 64;  // of a row by eight lanes
  using Piece = std::conditional_t<kIsCoded, uint2, uint4>;
  Piece k[kKeyLoads][2];
  Piece v[kValueLoads][4];
  KvScale k_scales[2];  // of codes: tokens lane / 4 and lane / 4 + 8
  KvScale v_scales[2];

  /// keys and values of kDecodeTokens tokens, columns from `first` on. Tokens that are not seen
  /// become zeros, as whatever is in their place may be NaN.
  template <typename T, typename IsSeen>
  __device__ void load(const KvRows<T, kFormat>& keys, const KvRows<T, kFormat>& values,
                       const IsSeen& is_seen, int first = 0) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const auto load_part = [&](const KvRows<T, kFormat>& rows, int token, int d) {
      return is_seen(token) && d < rows.dim() ? rows.piece(token, d) : Piece{};
    };
#pragma unroll
    for (int i = 0; i < kKeyLoads; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        k[i][half] = load_part(keys, lane / 4 + 8 * half, first + 32 * i + 8 * (lane % 4));
      }
    }
#pragma unroll
    for (int i = 0; i < kValueLoads; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        v[i][j] = load_part(values, 2 * (lane % 4) + j % 2 + 8 * (j / 2),
                            first + 64 * i + 8 * (lane / 4));
      }
    }
    if constexpr (kIsCoded) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int token = lane / 4 + 8 * half;
        k_scales[half] = is_seen(token) ? keys.scale(token) : KvScale();
        v_scales[half] = is_seen(token) ? values.scale(token) : KvScale();
      }
    }
  }
  /// keys [kDecodeTokens, head_dim] and values [kDecodeTokens, v_head_dim] of kv, plain ones.
  template <typename T, typename IsSeen>
  __device__ void load(const KvLayer& kv, const T* keys, const T* values, const IsSeen& is_seen,
                       int first = 0) {
    load(KvRows<T, KvFormat::plain>(keys, kv.head_dim, 0),
         KvRows<T, KvFormat::plain>(values, kv.v_head_dim, 0), is_seen, first);
  }

  /// What a lane's numbers of T of its tokens lane / 4 + 8 half are multiplied by.
  template <typename T>
  [[nodiscard]] __device__ float k_factor(int half) const {
    return kIsCoded ? factor_of<T, kFormat>(k_scales[half]) : 1.0F;
  }
  template <typename T>
  [[nodiscard]] __device__ float v_factor(int half) const {
    return kIsCoded ? factor_of<T, kFormat>(v_scales[half]) : 1.0F;
  }
};

/// What a warp finds of a split.
template <typename T, int kDim, typename Rule>
class DecodeSums {
 public:
  __device__ DecodeSums(const AttentionArguments& a, const Split& split)
      : split_(split),
        scale_log2_(a.scale_log2),
        group_(static_cast<int>(threadIdx.x) % kWarp / 4),
        in_group_(static_cast<int>(threadIdx.x) % 4),
        // Of heads 2 in_group, 2 in_group + 1; those past the end repeat the last.
        rules_{
            {a, split.first_head + min(2 * in_group_, split.n_heads - 1), split.position + 1},
            {a, split.first_head + min(2 * in_group_ + 1, split.n_heads - 1), split.position + 1}},
        first_seen_(rules_[0].first_seen(split.position)) {}

  [[nodiscard]] __device__ bool is_seen(int token) const {
    return token < split_.last && (Rule::kPlain || token >= first_seen_);
  }

  /// Tokens from `base` on.
  template <KvFormat kFormat>
  __device__ void add(const DecodeQueries<kDim>& queries, const DecodeTokens<kDim, kFormat>& tokens,
                      int base) {
    add(queries, tokens, base, [](const float4&) { return make_float4(0, 0, 0, 0); });
  }
  /// The same where warps have parts of the columns: others_of(scores of this warp's) are those of
  /// the others'.
  template <KvFormat kFormat, typename OthersOf>
  __device__ void add(const DecodeQueries<kDim>& queries, const DecodeTokens<kDim, kFormat>& tokens,
                      int base, const OthersOf& others_of) {
    // Of tokens group and group + 8, each with heads 2 in_group and 2 in_group + 1.
    float scores[4] = {};
    float more_scores[4] = {};  // a second chain of instructions
#pragma unroll
    for (int i = 0; i < DecodeQueries<kDim>::kLoads; ++i) {
      const uint4 k[2] = {widen_eight<T, kFormat>(tokens.k[i][0]),
                          widen_eight<T, kFormat>(tokens.k[i][1])};
      const uint4& q = queries.q[i];
      mma_16x8x16<T>(scores, {k[0].x, k[1].x, k[0].y, k[1].y}, q.x, q.y);
      mma_16x8x16<T>(more_scores, {k[0].z, k[1].z, k[0].w, k[1].w}, q.z, q.w);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[i] += more_scores[i];
    const float4 others = others_of(make_float4(scores[0], scores[1], scores[2], scores[3]));
    scores[0] += others.x;
    scores[1] += others.y;
    scores[2] += others.z;
    scores[3] += others.w;

    float new_maxima[2] = {maxima_[0], maxima_[1]};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = base + group_ + 8 * (i / 2);
      float score = scores[i] * scale_log2_;
      if constexpr (kFormat != KvFormat::plain) score *= tokens.template k_factor<T>(i / 2);
      scores[i] = is_seen(token) ? rules_[i % 2].vary(score, split_.position, token) : -INFINITY;
      new_maxima[i % 2] = fmaxf(new_maxima[i % 2], scores[i]);
    }
    float corrections[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float& maximum = new_maxima[h];
      for (int step = 4; step < kWarp; step *= 2) {
        maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, step));
      }
      corrections[h] = exp2f(maxima_[h] - maximum);
      maxima_[h] = maximum;
      weights_[h] *= corrections[h];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scores[i] = exp2f(scores[i] - maxima_[i % 2]);
      weights_[i % 2] += scores[i];
      if constexpr (kFormat != KvFormat::plain) scores[i] *= tokens.template v_factor<T>(i / 2);
    }
    const uint32_t p0 = transpose_8x8(pack_pair<T>(scores[0], scores[1]));
    const uint32_t p1 = transpose_8x8(pack_pair<T>(scores[2], scores[3]));

#pragma unroll
    for (int i = 0; i < kValueLoads; ++i) {
      uint32_t words[4][4];  // of four tokens, each with dimensions 2 tile and 2 tile + 1
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint4 v = widen_eight<T, kFormat>(tokens.v[i][j]);
        memcpy(words[j], &v, sizeof words[j]);
      }
#pragma unroll
      for (int tile = 0; tile < 4; ++tile) {
#pragma unroll
        for (int c = 0; c < 4; ++c) sums_[i][tile][c] *= corrections[c % 2];
        mma_16x8x16<T>(sums_[i][tile],
                       {__byte_perm(words[0][tile], words[1][tile], 0x5410),
                        __byte_perm(words[0][tile], words[1][tile], 0x7632),
                        __byte_perm(words[2][tile], words[3][tile], 0x5410),
                        __byte_perm(words[2][tile], words[3][tile], 0x7632)},
                       p0, p1);
      }
    }
  }

  /// As those of this warp.
  __device__ void put(DecodeResults<kDim>& results) {
    put(results, static_cast<int>(threadIdx.x) / kWarp % kDecodeWarps);
  }
  /// As those of warp `warp`; columns from `first` on.
  template <typename Results>
  __device__ void put(Results& results, int warp, int first = 0) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      for (int step = 4; step < kWarp; step *= 2) {
        weights_[h] += __shfl_xor_sync(kAllLanes, weights_[h], step);
      }
      const int head = 2 * in_group_ + h;
      if (group_ == 0) {
        results.maxima[warp][head] = maxima_[h];
        results.weights[warp][head] = weights_[h];
      }
      // A lane has eight dimensions in a row: tile t's rows `group` and group + 8 are 2 t and 2 t
      // + 1.
#pragma unroll
      for (int i = 0; i < kValueLoads; ++i) {
        float* to = &results.sums[warp][head][first + 64 * i + 8 * group_];
#pragma unroll
        for (int tile = 0; tile < 4; tile += 2) {
          const float(&left)[4] = sums_[i][tile];
          const float(&right)[4] = sums_[i][tile + 1];
          reinterpret_cast<float4*>(to)[tile / 2] =
              make_float4(left[h], left[2 + h], right[h], right[2 + h]);
        }
      }
    }
  }

 private:
  static constexpr int kValueLoads = DecodeTokens<kDim>::kValueLoads;

  const Split& split_;
  float scale_log2_;
  int group_;
  int in_group_;
  Rule rules_[2];
  int first_seen_;
  float sums_[kValueLoads][4][4] = {};
  float maxima_[2] = {kLowest, kLowest};  // of heads 2 in_group, 2 in_group + 1
  float weights_[2] = {};  // of this lane's tokens; the eight lanes are added at the end
};

/// Where the keys or values of a page's token are for one KV head, counted in rows of its width.
inline __device__ int64_t row_of_token(const KvLayer& kv, int64_t page, int kv_head, int token) {
  return (page * kv.n_kv_heads + kv_head) * kPageTokens + token % kPageTokens;
}

/// Fills `results` for a split that is not empty. queries: as DecodeQueries has them. By
/// kDecodeWarps warps.
template <typename T, int kDim, typename Rule, KvFormat kFormat = KvFormat::plain>
__device__ void attend_split(const AttentionArguments& a, const Split& split, const T* queries,
                             DecodeResults<kDim>& results) {
  constexpr int kParts = kDecodeParts<kDim>;
  constexpr int kPartDim = kDim / kParts;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int team = warp / kParts;  // the warps of the same tokens
  const int first_column = warp % kParts * kPartDim;
  DecodeQueries<kPartDim> q;
  q.load(queries, split.n_heads, a.kv.head_dim, first_column);
  DecodeSums<T, kPartDim, Rule> sums(a, split);
  const int32_t* pages = a.page_table + static_cast<int64_t>(split.sequence) * a.max_pages;
  constexpr int kTurnTokens = kDecodeWarps / kParts * kDecodeTokens;
  int64_t next_page = 0;
  if (const int base = split.first + team * kDecodeTokens; base < split.last) {
    next_page = pages[base / kPageTokens];
  }
  int turn = 0;
  for (int base = split.first + team * kDecodeTokens; base < split.last; base += kTurnTokens) {
    const int64_t page = next_page;
    const int next = base + kTurnTokens;
    if (next < split.last) next_page = pages[next / kPageTokens];
    const auto rows = [&](const void* cache, int dim) {
      return KvRows<T, kFormat>(head_in_page<T, kFormat>(a.kv, cache, dim, page, split.kv_head),
                                dim, base % kPageTokens);
    };
    DecodeTokens<kPartDim, kFormat> tokens;
    tokens.load(
        rows(a.kv.k, a.kv.head_dim), rows(a.kv.v, a.kv.v_head_dim),
        [&](int token) { return sums.is_seen(base + token); }, first_column);
    if constexpr (kParts == 1) {
      sums.add(q, tokens, base);
    } else {
      static_assert(kParts == 2);
      // By turns in two places, so that one barrier a turn is enough.
      __shared__ float4 scores[2][kDecodeWarps][kWarp];
      const int lane = static_cast<int>(threadIdx.x) % kWarp;
      sums.add(q, tokens, base, [&](const float4& own) {
        scores[turn % 2][warp][lane] = own;
        synchronize_threads(1 + team, kParts * kWarp);
        return scores[turn % 2][warp ^ 1][lane];
      });
      ++turn;
    }
  }
  sums.put(results, team, first_column);
}

}  // namespace faststream
