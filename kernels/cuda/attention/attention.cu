// Attention over KV pages. A packed batch may hold sequences in decode (one query, split over the
// cache) and in prefill (tiles of queries): each kernel skips the other's sequences.
#include "kernels/cuda/attention/attention.h"

#include <string>

#include "kernels/cuda/cuda_backend.h"

namespace faststream {

void CudaBackend::attention(const BatchView& batch, const Matrix& q, const KvLayer& kv, float scale,
                            const Matrix& out) {
  if (batch.n_tokens == 0) return;
  if (kv.head_dim > kMaxHeadDim) {
    throw Error("The GPU backend supports heads of up to " + std::to_string(kMaxHeadDim) +
                " dimensions, but the model has " + std::to_string(kv.head_dim) +
                "; use --device cpu.");
  }
  constexpr float kLog2E = 1.44269504088896340736F;
  const Queue queue = this->queue();
  AttentionArguments arguments;
  arguments.q = q;
  arguments.out = out;
  arguments.kv = kv;
  arguments.n_heads = static_cast<int>(q.cols / kv.head_dim);
  arguments.scale_log2 = scale * kLog2E;
  arguments.query_start = batch.query_start;
  arguments.kv_len = batch.kv_len;
  arguments.page_table = batch.page_table;
  arguments.max_pages = batch.max_pages;

  const bool may_decode = batch.max_query_len == 1 || batch.n_sequences > 1;
  if (may_decode) attention_decode(arguments, batch, scratch_, queue);
  if (batch.max_query_len > 1 && !attention_prefill_mma(arguments, batch, queue)) {
    attention_prefill(arguments, batch, queue);
  }
}

}  // namespace faststream
