#include "kernels/cuda/tensor_map.h"

#include <array>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/driver.h"
#include "support/error.h"
#include "support/hash.h"

namespace faststream {

namespace {

CUtensorMapDataType data_type(DType dtype) {
  switch (dtype) {
    case DType::i8:
    case DType::u8:
      return CU_TENSOR_MAP_DATA_TYPE_UINT8;
    case DType::f16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::bf16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::f32:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case DType::packed:
      break;
  }
  throw std::logic_error("describe: not an element type of matrices");
}

using Encode = decltype(cuTensorMapEncodeTiled);

Encode* encoder() {
  constexpr unsigned kSinceCuda12 = 12000;
  Encode* encode = driver_function<Encode>("cuTensorMapEncodeTiled", kSinceCuda12);
  if (encode == nullptr) throw Error("The NVIDIA driver is too old for this GPU; update it.");
  return encode;
}

CUtensorMapSwizzle swizzle(int32_t box_bytes) {
  if (box_bytes == 64) return CU_TENSOR_MAP_SWIZZLE_64B;
  return box_bytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE;
}

// `extents` and `box`: elements, those of a row first; `steps`: rows from one of a dimension to the
// next, of all dimensions but a row's own.
template <size_t kDimensions>
CUtensorMap encode(const BoxedMatrix& matrix, const std::array<int64_t, kDimensions>& extents,
                   const std::array<int64_t, kDimensions - 1>& steps,
                   const std::array<int32_t, kDimensions>& box) {
  static Encode* const encode = encoder();
  std::array<cuuint64_t, kDimensions> counts{};
  std::array<cuuint32_t, kDimensions> box_counts{};
  std::array<cuuint32_t, kDimensions> ones{};
  std::array<cuuint64_t, kDimensions - 1> bytes{};
  for (size_t i = 0; i < kDimensions; ++i) {
    counts[i] = static_cast<cuuint64_t>(extents[i]);
    box_counts[i] = static_cast<cuuint32_t>(box[i]);
    ones[i] = 1;
  }
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<cuuint64_t>(steps[i] * matrix.stride) * dtype_size(matrix.dtype);
  }
  CUtensorMap map{};
  // Memory is read in pieces of 256 bytes: the next box of a row is in the L2 cache then (8B in
  // INT8, 16 sequences 4,315 and 4,359 tokens/s instead of 4,256 and 4,052, 64 sequences 2% more).
  const CUresult result =
      encode(&map, data_type(matrix.dtype), kDimensions, const_cast<void*>(matrix.data),
             counts.data(), bytes.data(), box_counts.data(), ones.data(),
             CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle(matrix.box_bytes),
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return map;
  throw Error("The GPU failed while describing a matrix (error " +
              std::to_string(static_cast<int>(result)) + ").");
}

int32_t box_columns(const BoxedMatrix& matrix) {
  return matrix.box_bytes / static_cast<int32_t>(dtype_size(matrix.dtype));
}

// All that a description says.
using Numbers = std::array<int64_t, 8>;
Numbers numbers_of(const BoxedMatrix& m, int64_t half) {
  return {static_cast<int64_t>(reinterpret_cast<uintptr_t>(m.data)),
          static_cast<int64_t>(m.dtype),
          m.rows,
          m.cols,
          m.stride,
          m.box_rows,
          m.box_bytes,
          half};
}
struct HashOfNumbers {
  size_t operator()(const Numbers& numbers) const {
    return stable_hash({reinterpret_cast<const char*>(numbers.data()), sizeof numbers});
  }
};

// What make() gives, kept from its first call with the same numbers: a step's products have five
// descriptions each, the same in the next step, and the driver takes 0.6 us to make one.
template <typename Make>
const CUtensorMap& kept(const Numbers& numbers, const Make& make) {
  constexpr size_t kMost = 4096;
  static thread_local std::unordered_map<Numbers, CUtensorMap, HashOfNumbers> maps;
  const auto found = maps.find(numbers);
  if (found != maps.end()) return found->second;
  if (maps.size() == kMost) maps.clear();
  return maps.emplace(numbers, make()).first->second;
}

}  // namespace

CUtensorMap describe(const BoxedMatrix& matrix) {
  return kept(numbers_of(matrix, 0), [&] {
    return encode<2>(matrix, {matrix.cols, matrix.rows}, {1},
                     {box_columns(matrix), matrix.box_rows});
  });
}

CUtensorMap describe_by_eights(const BoxedMatrix& matrices, int64_t half) {
  return kept(numbers_of(matrices, half), [&] {
    return encode<5>(matrices, {matrices.cols, 8, 2, half / 8, matrices.rows / (2 * half)},
                     {1, half, 8, 2 * half},
                     {box_columns(matrices), 8, 2, matrices.box_rows / 16, 1});
  });
}

}  // namespace faststream
