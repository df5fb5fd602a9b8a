// What the linear kernels share.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/tensor.h"
#include "kernels/cuda/device_buffer.h"
#include "support/dtype.h"

namespace faststream {

/// Where a product goes: out[row, column] = or += product · scales[column] + bias[column]. Null
/// scales are ones, null biases zeros.
struct Epilogue {
  void* out = nullptr;
  DType dtype = DType::f32;
  int64_t stride = 0;
  const float* scales = nullptr;
  const float* bias = nullptr;
  bool add = false;
};

/// Rows that the tensor core kernels take in one pass over the weights.
inline constexpr int64_t kMaxFewRows = 16;

/// Whether few_rows_product can run: 16-bit x, weights of x's type (or i8 with bf16), and rows of
/// both that start at multiples of 16 bytes.
bool few_rows_fit(const Matrix& x, const Weight& weight);

/// x [rows, in] · weightᵀ on the tensor cores. If `gated`, weight is gate_up and the result is
/// silu(gate) · up with half as many columns. Beside i8 weights, x is quantized as int8_product()
/// does it, into `scratch`, and taken kMaxFewRows rows in a pass over the weights; beside others it
/// has at most kMaxFewRows rows.
void few_rows_product(const Matrix& x, const Weight& weight, const Epilogue& epilogue, bool gated,
                      DeviceBuffer& scratch, cudaStream_t stream);

/// Before the first few_rows_product() on the current device.
void prepare_in_order_products();

/// The part of few_rows_product for 16-bit weights.
void in_order_product(const Matrix& x, const Weight& weight, const Epilogue& epilogue, bool gated,
                      cudaStream_t stream);

/// The same (ungated) for any number of rows, any types and any alignment: float arithmetic, one
/// pass over the weights for each eight rows.
void any_rows_product(const Matrix& x, const Weight& weight, const Epilogue& epilogue,
                      cudaStream_t stream);

}  // namespace faststream
