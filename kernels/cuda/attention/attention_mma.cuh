// What the attention kernels on the tensor cores are made for.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/attention/attention.h"

namespace faststream {

/// Calls f.operator()<T, kDim>() with the 16-bit type of queries and cache and with the width of
/// keys or values, the larger, rounded up. Only where tensor_cores_fit() (attention.cu).
template <typename F>
void with_mma_shape(const AttentionArguments& a, const F& f) {
  const int dim = a.widest_head();
  const auto with_dim = [&]<typename T>() {
    if (dim <= 64) {
      f.template operator()<T, 64>();
    } else if (dim <= 128) {
      f.template operator()<T, 128>();
    } else if (dim <= 256) {
      f.template operator()<T, 256>();
    } else {
      f.template operator()<T, kLargestMmaHeadDim>();
    }
  };
  if (a.kv.dtype == DType::f16) {
    with_dim.template operator()<__half>();
  } else {
    with_dim.template operator()<__nv_bfloat16>();
  }
}

/// The same with the format of the cache, for kernels that read codes: those of heads of at most
/// kLargestCodedDim.
template <typename F>
void with_decode_shape(const AttentionArguments& a, const F& f) {
  with_mma_shape(a, [&]<typename T, int kDim>() {
    if constexpr (kDim <= kLargestCodedDim) {
      switch (a.kv.format) {
        case KvFormat::int8:
          return f.template operator()<T, kDim, KvFormat::int8>();
        case KvFormat::fp8:
          return f.template operator()<T, kDim, KvFormat::fp8>();
        case KvFormat::plain:
          break;
      }
    }
    f.template operator()<T, kDim, KvFormat::plain>();
  });
}

}  // namespace faststream
