// Descriptions of matrices for bulk copies of boxes (Hopper and later).
#pragma once

#include <cuda.h>

#include <cstdint>

#include "support/dtype.h"

namespace faststream {

/// A row-major matrix in device memory. Boxes of it have rows of 128 bytes, which lie in shared
/// memory as wgmma.cuh has them, or of 64, of which 16-byte piece p of row r is at place
/// p ^ (r / 2 % 4), or of any other multiple of 16. What is outside of the matrix is copied as
/// zeros, and not written.
struct BoxedMatrix {
  const void* data = nullptr;  ///< a multiple of 16 bytes, as is a row
  DType dtype = DType::i8;     ///< i8, f16, bf16 or f32
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;       ///< elements
  int32_t box_rows = 0;     ///< at most 256
  int32_t box_bytes = 128;  ///< of a row
};

/// Throws Error when the driver refuses.
CUtensorMap describe(const BoxedMatrix& matrix);

/// Matrices below each other, of 2 · `half` rows each, in groups of 16 rows: eight of a matrix's
/// first half, a multiple of eight, and the eight in their places of its second. A box is of
/// box_rows / 16 groups, one below the other; copy_box_by_eights() copies it.
CUtensorMap describe_by_eights(const BoxedMatrix& matrices, int64_t half);

}  // namespace faststream
