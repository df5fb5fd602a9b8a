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
  store_split(a, splits, split, results, StoreOutput{a, split.query});
}

}  // namespace

void attention_decode_mma(const AttentionArguments& a, int32_t n_sequences, Splits splits,
                          const Queue& queue) {
  splits.head_tiles = ceil_div(a.n_heads / a.kv.n_kv_heads, kDecodeHeads);
  with_mma_shape(a, [&]<typename T, int kDim>() {
    with_rule_of_last(a, [&]<typename Rule>() {
      queue.launch("computing attention", attention_decode_mma_kernel<T, kDim, Rule>,
                   split_grid(a, splits, n_sequences, kThreads), a, splits);
    });
  });
}

}  // namespace faststream
