// What the attention kernels share.
#pragma once

#include <cstdint>

#include "backend/backend.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/queue.h"

namespace faststream {

/// The largest head_dim; kernels keep a head's accumulators in registers.
inline constexpr int kMaxHeadDim = 256;

/// Arguments of every attention kernel. Scores are scaled by softmax scale · log2(e), so that
/// probabilities are powers of two.
struct AttentionArguments {
  Matrix q;
  Matrix out;
  KvLayer kv;
  int n_heads = 0;
  float scale_log2 = 0;
  const int32_t* query_start = nullptr;
  const int32_t* kv_len = nullptr;
  const int32_t* page_table = nullptr;
  int32_t max_pages = 0;
};

/// Attention of the sequences that have exactly one query; others are left alone. `scratch` holds
/// partial results when the cache is split among blocks.
void attention_decode(const AttentionArguments& arguments, const BatchView& batch,
                      DeviceBuffer& scratch, const Queue& queue);

/// Attention of the sequences that have more than one query; others are left alone.
void attention_prefill(const AttentionArguments& arguments, const BatchView& batch,
                       const Queue& queue);

/// The same on the tensor cores, for 16-bit types. Returns false, with nothing launched, unless q
/// and the cache have the same 16-bit type and rows start at multiples of 16 bytes.
bool attention_prefill_mma(const AttentionArguments& arguments, const BatchView& batch,
                           const Queue& queue);

}  // namespace faststream
