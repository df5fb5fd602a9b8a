// Attention of one query a sequence on the tensor cores, as an operation of its own.
#include "kernels/cuda/attention/attention_decode_mma.cuh"

namespace faststream {

namespace {

constexpr int kTensorThreads = kDecodeWarps * kWarp;

template <typename T, int kDim, typename Rule, KvFormat kFormat>
__global__ __launch_bounds__(kTensorThreads) void attention_decode_mma_kernel(AttentionArguments a,
                                                                              Splits splits) {
  __shared__ DecodeResults<kDim> results;
  allow_next_kernel();
  const Split split = split_of_block(a, splits, kDecodeHeads);  // of the batch alone
  wait_for_inputs();
  if (split.empty()) return;
  const T* queries = static_cast<const T*>(a.q.data) + split.query * a.q.stride +
                     static_cast<int64_t>(split.first_head) * a.kv.head_dim;
  attend_split<T, kDim, Rule, kFormat>(a, split, queries, results);
  __syncthreads();
  store_split(a, splits, split, results);
}

// The same of many sequences that are short, of one split each. A warp has several tiles of heads
// to itself, and loads what comes next while it computes: what the warps of a block do beside each
// other elsewhere, it does one after the other. Blocks that began with each tile had nothing on its
// way most of the time (45 us for 2,048 sequences of 8 heads of 64 dimensions and up to 64 tokens).
constexpr int kTilesOfWarp = 2;
constexpr int kTilesOfBlock = kTilesOfWarp * kDecodeWarps;
constexpr int kShortTokens = kDecodeWarps * kDecodeTokens;
constexpr int kShortPages = kShortTokens / kPageTokens;
constexpr int kShortDim = 64;  // of others the results of all warps take too much memory

struct ShortItem {
  DecodeQueries<kShortDim> queries;
  DecodeTokens<kShortDim> tokens;
};

template <typename T, typename Rule>
__global__ __launch_bounds__(kTensorThreads) void attention_decode_short_kernel(
    AttentionArguments a, Splits splits) {
  __shared__ DecodeResults<kShortDim> results_of_warps[kDecodeWarps];
  begin_kernel();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  DecodeResults<kShortDim>& results = results_of_warps[warp];
  const auto sequence = static_cast<int>(blockIdx.z);
  const int page = lane < min(kShortPages, a.max_pages)
                       ? a.page_table[static_cast<int64_t>(sequence) * a.max_pages + lane]
                       : 0;
  const OneQuery one = one_query(a, sequence);
  const int first_tile = static_cast<int>(blockIdx.y) * kTilesOfBlock + warp * kTilesOfWarp;
  const int n_tiles = min(kTilesOfWarp, a.kv.n_kv_heads * splits.head_tiles - first_tile);
  const int n_turns = ceil_div(one.kv_len, kDecodeTokens);
  const auto split_of_item = [&](int item) {
    return split_of(a, splits, kDecodeHeads, one, first_tile + item / n_turns, 0);
  };
  const auto load = [&](int item) {
    const Split split = split_of_item(item);
    const int base = item % n_turns * kDecodeTokens;
    const int64_t row =
        row_of_token(a.kv, __shfl_sync(kAllLanes, page, base / kPageTokens), split.kv_head, base);
    const int first_seen = Rule(a, 0, split.position + 1).first_seen(split.position);
    ShortItem loaded;
    loaded.queries.load(static_cast<const T*>(a.q.data) + split.query * a.q.stride +
                            static_cast<int64_t>(split.first_head) * a.kv.head_dim,
                        split.n_heads, a.kv.head_dim);
    loaded.tokens.load(a.kv, static_cast<const T*>(a.kv.k) + row * a.kv.head_dim,
                       static_cast<const T*>(a.kv.v) + row * a.kv.v_head_dim, [&](int token) {
                         return base + token < split.last &&
                                (Rule::kPlain || base + token >= first_seen);
                       });
    return loaded;
  };

  const int n_items = n_tiles * n_turns;
  if (n_items <= 0) return;
  ShortItem next = load(0);
  for (int item = 0; item < n_items; ++item) {
    const ShortItem now = next;
    if (item + 1 < n_items) next = load(item + 1);
    const Split split = split_of_item(item);
    const int turn = item % n_turns;
    DecodeSums<T, kShortDim, Rule> sums(a, split);
    sums.add(now.queries, now.tokens, turn * kDecodeTokens);
    sums.put(results, turn);
    if (turn + 1 < n_turns) continue;
    __syncwarp();
    const int pairs = a.kv.v_head_dim / 2;
    for (int i = lane; i < split.n_heads * pairs; i += kWarp) {
      const int h = i / pairs;
      const int d = i % pairs * 2;
      const auto [maximum, weight, pair] = merge_warps(results, n_turns, h, d);
      const float total = with_sink(a, split.first_head + h, maximum, weight);
      StoreOutput{a, split.query}(split.first_head + h, d, pair[0] / total, pair[1] / total);
    }
    __syncwarp();
  }
}

}  // namespace

void attention_decode_mma(const AttentionArguments& a, int32_t n_sequences, int64_t seen,
                          Splits splits, const Queue& queue) {
  // Where even blocks of several tiles are many times those that run at once.
  constexpr int64_t kManyBlocks = 512;
  splits.head_tiles = ceil_div(a.n_heads / a.kv.n_kv_heads, kDecodeHeads);
  const int tiles = a.kv.n_kv_heads * splits.head_tiles;
  const int64_t blocks = int64_t{n_sequences} * ceil_div(tiles, kTilesOfBlock);
  const bool is_short =
      seen <= kShortTokens && a.rule.window == 0 && blocks >= kManyBlocks && !a.kv.is_coded();
  with_decode_shape(a, [&]<typename T, int kDim, KvFormat kFormat>() {
    with_rule_of_last(a, [&]<typename Rule>() {
      if constexpr (kDim == kShortDim && kFormat == KvFormat::plain) {
        if (is_short) {
          const dim3 grid(1, ceil_div(tiles, kTilesOfBlock), n_sequences);
          queue.launch("computing attention", attention_decode_short_kernel<T, Rule>,
                       {grid, kTensorThreads}, a, splits);
          return;
        }
      }
      queue.launch("computing attention", attention_decode_mma_kernel<T, kDim, Rule, kFormat>,
                   split_grid(a, splits, n_sequences, kTensorThreads), a, splits);
    });
  });
}

}  // namespace faststream
