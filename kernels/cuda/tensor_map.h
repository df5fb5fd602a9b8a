// Descriptions of matrices for bulk copies of boxes (Hopper and later).
#pragma once

#include <cuda.h>

#include <cstdint>

#include "support/dtype.h"

namespace faststream {

/// A row-major matrix in device memory. Boxes of it have rows of 128 bytes, which lie in shared
/// memory as wgmma.cuh has them; what is outside of the matrix is copied as zeros.
struct BoxedMatrix {
  const void* data = nullptr;  ///< a multiple of 16 bytes, as is a row
  DType dtype = DType::i8;     ///< i8, f16 or bf16
  int64_t rows = 0;
  int64_t cols = 0;
  int32_t box_rows = 0;  ///< at most 256
};

/// Throws Error when the driver refuses.
CUtensorMap describe(const BoxedMatrix& matrix);

}  // namespace faststream
