#include "kernels/cuda/tensor_map.h"

#include <stdexcept>
#include <string>

#include "kernels/cuda/cuda_check.h"
#include "support/error.h"

namespace faststream {

namespace {

constexpr cuuint32_t kBoxRowBytes = 128;

CUtensorMapDataType data_type(DType dtype) {
  switch (dtype) {
    case DType::i8:
      return CU_TENSOR_MAP_DATA_TYPE_UINT8;
    case DType::f16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::bf16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::f32:
    case DType::u8:
      break;
  }
  throw std::logic_error("describe: no type of tensor cores");
}

// The driver's function, found by its name: this program starts where there is no driver.
decltype(&cuTensorMapEncodeTiled) encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  constexpr unsigned kSinceCuda12 = 12000;
  cuda_check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kSinceCuda12,
                                              cudaEnableDefault, &found),
             "looking up cuTensorMapEncodeTiled");
  if (function == nullptr) throw Error("The NVIDIA driver is too old for this GPU; update it.");
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
}

}  // namespace

CUtensorMap describe(const BoxedMatrix& matrix) {
  static const auto encode = encoder();
  const auto size = static_cast<cuuint32_t>(dtype_size(matrix.dtype));
  const cuuint64_t extents[] = {static_cast<cuuint64_t>(matrix.cols),
                                static_cast<cuuint64_t>(matrix.rows)};
  const cuuint64_t row_bytes[] = {extents[0] * size};
  const cuuint32_t box[] = {kBoxRowBytes / size, static_cast<cuuint32_t>(matrix.box_rows)};
  const cuuint32_t steps[] = {1, 1};
  CUtensorMap map{};
  const CUresult result =
      encode(&map, data_type(matrix.dtype), 2, const_cast<void*>(matrix.data), extents, row_bytes,
             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return map;
  throw Error("The GPU failed while describing a matrix (error " +
              std::to_string(static_cast<int>(result)) + ").");
}

}  // namespace faststream
