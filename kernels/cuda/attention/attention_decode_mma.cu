// Attention of one query a sequence on the tensor cores, as an operation of its own.
#include "kernels/cuda/attention/attention_decode_mma.cuh"

namespace faststream {

namespace {

constexpr int kThreads = kDecodeWarps * kWarp;

template <typename T, int kDim, typename Rule>
__global__ __launch_bounds__(kThreads) void attention_decode_mma_kernel(AttentionArguments a,
                                                                        Splits splits) {
  __shared__ DecodeResults<kDim> results;
  begin_kernel();
  const Split split = split_of_block(a, splits, kDecodeHeads);
  if (split.empty()) return;
  const T* queries = static_cast<const T*>(a.q.data) + split.query * a.q.stride +
                     static_cast<int64_t>(split.first_head) * a.kv.head_dim;
  attend_split<T, kDim, Rule>(a, split, queries, results);
  __syncthreads();
  store_split(a, splits, split, results);
}

// The same of many sequences that may be short, of one split each, for kTiles tiles of heads in a
// block: a split that fewer warps can do in a turn leaves the others to other tiles.
constexpr int kTiles = kDecodeWarps;

template <typename T, int kDim, typename Rule>
__global__ __launch_bounds__(kThreads) void attention_decode_short_kernel(AttentionArguments a,
                                                                          Splits splits) {
  __shared__ union {
    DecodeResults<kDim, 1> of_one[4];
    DecodeResults<kDim, 2> of_two[2];
    DecodeResults<kDim, 4> of_four[1];
  } results;
  begin_kernel();
  const OneQuery one = one_query(a, static_cast<int>(blockIdx.z));
  const auto attend = [&]<int kWarps>(DecodeResults<kDim, kWarps>* of_teams) {
    constexpr int kTeams = kDecodeWarps / kWarps;
    const int team = static_cast<int>(threadIdx.x) / (kWarps * kWarp);
    for (int first = 0; first < kTiles; first += kTeams) {
      const int tile = static_cast<int>(blockIdx.y) * kTiles + first + team;
      const Split split = split_of(a, splits, kDecodeHeads, one, tile, 0);
      if (split.empty()) return;  // all tiles are
      const T* queries = static_cast<const T*>(a.q.data) + split.query * a.q.stride +
                         static_cast<int64_t>(split.first_head) * a.kv.head_dim;
      if (first > 0) __syncthreads();
      attend_split<T, kDim, Rule>(a, split, queries, of_teams[team]);
      __syncthreads();
      store_split(a, splits, split, of_teams[team], StoreOutput{a, split.query});
    }
  };
  const int n_tokens = one.kv_len - first_split_token(a, one.kv_len);
  if (n_tokens <= kDecodeTokens) {
    attend(results.of_one);
  } else if (n_tokens <= 2 * kDecodeTokens) {
    attend(results.of_two);
  } else {
    attend(results.of_four);
  }
}

}  // namespace

void attention_decode_mma(const AttentionArguments& a, int32_t n_sequences, Splits splits,
                          const Queue& queue) {
  // Where even four tiles a block make many times the blocks that run at once.
  constexpr int64_t kManyBlocks = 1024;
  splits.head_tiles = ceil_div(a.n_heads / a.kv.n_kv_heads, kDecodeHeads);
  const int tiles = a.kv.n_kv_heads * splits.head_tiles;
  const bool many = splits.count == 1 && tiles % kTiles == 0 &&
                    int64_t{n_sequences} * tiles / kTiles >= kManyBlocks;
  with_mma_shape(a, [&]<typename T, int kDim>() {
    with_rule_of_last(a, [&]<typename Rule>() {
      if (many) {
        const dim3 grid(1, tiles / kTiles, n_sequences);
        queue.launch("computing attention", attention_decode_short_kernel<T, kDim, Rule>,
                     {grid, kThreads}, a, splits);
        return;
      }
      queue.launch("computing attention", attention_decode_mma_kernel<T, kDim, Rule>,
                   split_grid(a, splits, n_sequences, kThreads), a, splits);
    });
  });
}

}  // namespace faststream
