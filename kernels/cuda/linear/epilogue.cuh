// The last step of every product.
#pragma once

#include "kernels/cuda/linear/linear_few_rows.h"
#include "kernels/cuda/types.cuh"

namespace faststream {

__device__ inline void finish_product(const Epilogue& epilogue, int64_t row, int64_t column,
                                      float value) {
  const int64_t index = row * epilogue.stride + column;
  if (epilogue.add) value += load_element(epilogue.out, epilogue.dtype, index);
  if (epilogue.bias != nullptr) value += epilogue.bias[column];
  store_element(epilogue.out, epilogue.dtype, index, value);
}

__device__ inline float silu(float x) { return x / (1.0F + expf(-x)); }

}  // namespace faststream
