// What the attention kernels on the tensor cores are made for.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/attention/attention.h"

namespace faststream {

/// Calls f.operator()<T, kDim>() with the 16-bit type of queries and cache and with head_dim
/// rounded up. Returns false, without a call, when they have no such type in common, or when rows
/// of the cache do not start at multiples of 16 bytes.
template <typename F>
bool with_mma_shape(const AttentionArguments& a, const F& f) {
  if (a.q.dtype != a.kv.dtype || a.kv.head_dim % 8 != 0) return false;
  const auto with_dim = [&]<typename T>() {
    if (a.kv.head_dim <= 64) {
      f.template operator()<T, 64>();
    } else if (a.kv.head_dim <= 128) {
      f.template operator()<T, 128>();
    } else {
      f.template operator()<T, 256>();
    }
  };
  if (a.kv.dtype == DType::f16) {
    with_dim.template operator()<__half>();
  } else if (a.kv.dtype == DType::bf16) {
    with_dim.template operator()<__nv_bfloat16>();
  } else {
    return false;
  }
  return true;
}

}  // namespace faststream
