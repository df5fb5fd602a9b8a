// Rows of the embedding table. Bytes: one table row read and one float row written for each token.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

template <typename T>
__global__ void embed_kernel(BatchView batch, Embedding embedding, float* out, int64_t out_stride) {
  begin_kernel();
  const int64_t hidden = embedding.table.cols;
  const T* from =
      static_cast<const T*>(embedding.table.data) + token_of(batch, blockIdx.x) * hidden;
  const Weight& learned = embedding.positions;
  const int64_t learned_row = (int64_t{batch.positions[blockIdx.x]} + embedding.offset) * hidden;
  const Weight& segments = embedding.segments;
  const int64_t segment = batch.segments != nullptr ? batch.segments[blockIdx.x] : 0;
  float* to = out + blockIdx.x * out_stride;
  for (int64_t c = threadIdx.x; c < hidden; c += kElementThreads) {
    float value = embedding.multiplier * to_float(from[c]);
    if (learned.data != nullptr)
      value += load_element(learned.data, stored_type(learned.format), learned_row + c);
    if (segments.data != nullptr)
      value += load_element(segments.data, stored_type(segments.format), segment * hidden + c);
    to[c] = value;
  }
}

}  // namespace

void CudaBackend::embed(const BatchView& batch, const Embedding& embedding, const Matrix& out) {
  if (batch.n_tokens == 0) return;
  const Queue queue = this->queue();
  with_float_type(embedding.table.stored_as(), [&](auto zero) {
    queue.launch("embedding tokens", embed_kernel<decltype(zero)>,
                 {batch.n_tokens, kElementThreads}, batch, embedding, static_cast<float*>(out.data),
                 out.stride);
  });
}

}  // namespace faststream
