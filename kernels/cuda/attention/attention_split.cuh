// What the attention kernels for one query a sequence share. A block works on a split of what the
// query sees of a sequence's cache, for some of the query heads of one KV head. How that is split
// depends on its own length alone, so a result does not depend on the other sequences of a batch.
#pragma once

#include <cfloat>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/score_rule.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream {

inline constexpr float kLowest = -FLT_MAX;  // finite: the difference of two is no NaN

// The first token of the first page that the query of a cache of `kv_len` tokens sees.
inline __host__ __device__ int first_split_token(const AttentionArguments& a, int kv_len) {
  const int window = a.rule.window;
  if (window == 0) return 0;
  const int first =
      a.rule.window_in_blocks ? (kv_len - 1) / window * window : max(0, kv_len - window);
  return first / kPageTokens * kPageTokens;
}

// Tokens of each split of `seen` tokens: short ones keep all multiprocessors busy, merging many
// would cost more.
inline __host__ __device__ int split_tokens(const AttentionArguments& a, int seen) {
  return max(a.split_tokens, ceil_div(pages_for(seen), a.most_splits) * kPageTokens);
}

inline __device__ int64_t partial_index(const AttentionArguments& a, const Splits& splits,
                                        int sequence, int head, int part) {
  return ((static_cast<int64_t>(sequence) * a.n_heads + head) * splits.count + part) *
         (2 + a.kv.v_head_dim);
}

struct Split {
  int sequence = 0;
  int part = 0;       // of the sequence
  int64_t query = 0;  // the sequence's only one
  int position = 0;   // of it
  int first = 0;      // token
  int last = 0;       // the token after
  int kv_head = 0;
  int first_head = 0;
  int n_heads = 0;
  bool alone = false;  // the only one of its sequence

  /// Nothing to do: past the cache's end, or a sequence in prefill.
  [[nodiscard]] __device__ bool empty() const { return first >= last; }
};

/// A sequence with one query.
struct OneQuery {
  int sequence = 0;
  int64_t query = 0;
  int kv_len = 0;  // 0: the sequence has more queries
};

/// Part `part` of a sequence, for tile `head_tile` of all KV heads * head tiles, a tile being up to
/// `tile_heads` query heads.
inline __device__ Split split_of(const AttentionArguments& a, const Splits& splits, int tile_heads,
                                 const OneQuery& one, int head_tile, int part) {
  Split split;
  split.sequence = one.sequence;
  split.part = part;
  split.query = one.query;
  const int kv_len = one.kv_len;
  split.position = kv_len - 1;
  const int first = first_split_token(a, kv_len);
  const int tokens = split_tokens(a, kv_len - first);
  split.first = first + part * tokens;
  split.last = min(split.first + tokens, kv_len);
  split.alone = kv_len - first <= tokens;
  const int group = a.n_heads / a.kv.n_kv_heads;
  split.kv_head = head_tile / splits.head_tiles;
  const int first_in_group = head_tile % splits.head_tiles * tile_heads;
  split.first_head = split.kv_head * group + first_in_group;
  split.n_heads = min(tile_heads, group - first_in_group);
  return split;
}

inline __device__ OneQuery one_query(const AttentionArguments& a, int sequence) {
  OneQuery one{
      .sequence = sequence, .query = a.query_start[sequence], .kv_len = a.kv_len[sequence]};
  if (a.query_start[sequence + 1] - one.query != 1) one.kv_len = 0;
  return one;
}

/// That of this block in a grid of (splits, KV heads * head tiles, sequences).
inline __device__ Split split_of_block(const AttentionArguments& a, const Splits& splits,
                                       int tile_heads) {
  return split_of(a, splits, tile_heads, one_query(a, static_cast<int>(blockIdx.z)),
                  static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x));
}

inline Grid split_grid(const AttentionArguments& a, const Splits& splits, int n_sequences,
                       unsigned threads) {
  return {dim3(splits.count, a.kv.n_kv_heads * splits.head_tiles, n_sequences), threads};
}

/// What a block's warps have found for each head: the largest score, the sum of all weights
/// 2^(score - largest), and the sum of the values so weighted.
template <int kWarps, int kHeads, int kStride>
struct WarpResults {
  alignas(16) float sums[kWarps][kHeads][kStride];  // v_head_dim of them are used
  float maxima[kWarps][kHeads];
  float weights[kWarps][kHeads];
};

/// Where outputs go in kernels of one operation: a.out.
struct StoreOutput {
  const AttentionArguments& a;
  int64_t query;

  __device__ void operator()(int head, int d, float first, float second) const {
    const int64_t index = query * a.out.stride + static_cast<int64_t>(head) * a.kv.v_head_dim + d;
    store_element(a.out.data, a.out.dtype, index, first);
    store_element(a.out.data, a.out.dtype, index + 1, second);
  }
};

/// Two elements of what a block's warps have found together.
struct MergedPair {
  float maximum = kLowest;
  float weight = 0;
  float sums[2] = {};
};

/// Of elements d and d + 1 of a split's head h. Only the first n_warps have anything; without the
/// others the bits are the same. Where columns are dealt among warps, those from `first` on, each
/// `step` further, have these.
template <typename Results>
__device__ MergedPair merge_warps(const Results& results, int n_warps, int h, int d, int first = 0,
                                  int step = 1) {
  MergedPair merged;
  for (int w = first; w < n_warps; w += step) {
    merged.maximum = fmaxf(merged.maximum, results.maxima[w][h]);
  }
  for (int w = first; w < n_warps; w += step) {
    const float factor = exp2f(results.maxima[w][h] - merged.maximum);
    for (int j = 0; j < 2; ++j) {
      merged.sums[j] = __fmaf_rn(results.sums[w][h][d + j], factor, merged.sums[j]);
    }
    merged.weight = __fmaf_rn(results.weights[w][h], factor, merged.weight);
  }
  return merged;
}

/// Stores what a block's warps have found, of which merged(h, d) is elements d and d + 1 of head h:
/// as output if its split is the only one that any sequence may have, by store(head, d, elements d
/// and d + 1); else, to be merged, by keep(head, i, two floats), which are the maximum and the
/// weight where i is 0 and elements 2 i - 2 and 2 i - 1 of the sums elsewhere. By these warps,
/// after a barrier; others do the same again.
template <int kWarps, typename Merged, typename Store, typename Keep>
__device__ void store_merged(const AttentionArguments& a, const Splits& splits, const Split& split,
                             const Merged& merged, const Store& store, const Keep& keep) {
  const int pairs = a.kv.v_head_dim / 2;
  for (int i = static_cast<int>(threadIdx.x) % (kWarps * kWarp); i < split.n_heads * pairs;
       i += kWarps * kWarp) {
    const int h = i / pairs;
    const int d = i % pairs * 2;
    const auto [maximum, weight, sums] = merged(h, d);
    const int head = split.first_head + h;
    if (splits.count == 1) {
      const float total = with_sink(a, head, maximum, weight);
      store(head, d, sums[0] / total, sums[1] / total);
    } else {
      if (d == 0) keep(head, 0, maximum, weight);
      keep(head, 1 + d / 2, sums[0], sums[1]);
    }
  }
}

/// The same of results whose columns each warp has all.
template <int kWarps, int kHeads, int kStride, typename Store, typename Keep>
__device__ void store_split(const AttentionArguments& a, const Splits& splits, const Split& split,
                            const WarpResults<kWarps, kHeads, kStride>& results, const Store& store,
                            const Keep& keep) {
  store_merged<kWarps>(
      a, splits, split, [&](int h, int d) { return merge_warps(results, kWarps, h, d); }, store,
      keep);
}

/// The same for merge_head().
template <int kWarps, int kHeads, int kStride, typename Store>
__device__ void store_split(const AttentionArguments& a, const Splits& splits, const Split& split,
                            const WarpResults<kWarps, kHeads, kStride>& results,
                            const Store& store) {
  store_split(a, splits, split, results, store, [&](int head, int i, float first, float second) {
    float* partial = splits.partials + partial_index(a, splits, split.sequence, head, split.part);
    reinterpret_cast<float2*>(partial)[i] = make_float2(first, second);
  });
}

/// The same in kernels of one operation, where splits of other sequences tell nothing of this one:
/// what has no others is output, and merge_splits() leaves it.
template <int kWarps, int kHeads, int kStride>
__device__ void store_split(const AttentionArguments& a, Splits splits, const Split& split,
                            const WarpResults<kWarps, kHeads, kStride>& results) {
  if (split.alone) splits.count = 1;
  store_split(a, splits, split, results, StoreOutput{a, split.query});
}

/// The number of a sequence's splits. kv_len: its cache's tokens.
inline __device__ int parts_of(const AttentionArguments& a, int kv_len) {
  const int seen = kv_len - first_split_token(a, kv_len);
  return ceil_div(seen, split_tokens(a, seen));
}

/// Stores the output of one head of a split's sequence, of all `parts` of its splits. By `threads`
/// threads, of which this is number `thread`.
template <typename Store>
__device__ void merge_head(const AttentionArguments& a, const Splits& splits, const Split& split,
                           int head, int parts, int thread, int threads, const Store& store) {
  const int dim = a.kv.v_head_dim;
  const float* partials = splits.partials + partial_index(a, splits, split.sequence, head, 0);
  const int step = 2 + dim;

  // Many loads at once: memory takes long, and nothing else is left to do.
  float maximum = kLowest;
#pragma unroll 16
  for (int part = 0; part < parts; ++part) maximum = fmaxf(maximum, partials[part * step]);
  for (int d = 2 * thread; d < dim; d += 2 * threads) {
    float sums[2] = {};
    float weight = 0;
#pragma unroll 8
    for (int part = 0; part < parts; ++part) {
      const float factor = exp2f(partials[part * step] - maximum);
      weight = __fmaf_rn(partials[part * step + 1], factor, weight);
      const auto pair = *reinterpret_cast<const float2*>(&partials[part * step + 2 + d]);
      sums[0] = __fmaf_rn(pair.x, factor, sums[0]);
      sums[1] = __fmaf_rn(pair.y, factor, sums[1]);
    }
    const float total = with_sink(a, head, maximum, weight);
    store(head, d, sums[0] / total, sums[1] / total);
  }
}

/// Attention of those of the first n_sequences that have exactly one query; others are left alone.
/// With more than one split, merge_splits() makes the output. Any types and any even widths:
void attention_decode_float(const AttentionArguments& arguments, int32_t n_sequences,
                            const Splits& splits, const Queue& queue);
/// The same on the tensor cores, where they fit (attention.cu). `seen`: the most tokens that a
/// query sees.
void attention_decode_mma(const AttentionArguments& arguments, int32_t n_sequences, int64_t seen,
                          Splits splits, const Queue& queue);
/// The same, bit for bit, on Hopper. False, with nothing done, where there is too little to do for
/// blocks that stay. dealt [2]: zeros, and again after.
bool attention_decode_sm90a(const AttentionArguments& arguments, int32_t n_sequences, int64_t seen,
                            Splits splits, unsigned* dealt, const Queue& queue);
void merge_splits(const AttentionArguments& arguments, int32_t n_sequences, const Splits& splits,
                  const Queue& queue);

}  // namespace faststream
