// Matrix products with many rows: cuBLASLt on the tensor cores.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <future>
#include <map>
#include <memory>

#include "kernels/cuda/device_buffer.h"
#include "support/dtype.h"

namespace faststream {

/// out [n, m] (row stride out_stride) = x [n, k] (row stride x_stride) · w [m, k]ᵀ, plus out if
/// `add`. x and w have type `in`; out is `in` or f32, and int32 when `in` is i8.
struct MatmulShape {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t x_stride = 0;
  int64_t out_stride = 0;
  DType in = DType::f32;
  bool out_f32 = true;
  bool add = false;
  uint32_t w_alignment = 0;  ///< largest power of two up to 256 that divides the address
  uint32_t x_alignment = 0;
  uint32_t out_alignment = 0;

  auto operator<=>(const MatmulShape&) const = default;
};

/// What NVIDIA recommends for Hopper.
inline constexpr size_t kMatmulWorkspaceBytes = size_t{32} << 20;

/// A cuBLASLt handle, its workspace, and the algorithms it chose, by shape.
class Matmul {
 public:
  Matmul();
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  /// Has cuBLASLt begin with what it does once before it proposes algorithms for products of this
  /// type, 0.1 s for each type of results, in a thread of its own; run() waits for it.
  void prepare(DType type, int device);

  /// Returns false, with nothing launched, when cuBLASLt has no algorithm for the shape. The
  /// alignments of `shape` are filled in here.
  bool run(MatmulShape shape, const void* x, const void* w, void* out, cudaStream_t stream);

 private:
  struct Plan;
  const Plan& plan(const MatmulShape& shape);
  [[nodiscard]] cublasLtMatmulHeuristicResult_t choose(const MatmulShape& shape, const Plan& plan);
  [[nodiscard]] bool serves(const cublasLtMatmulHeuristicResult_t& choice, const Plan& plan);
  cublasLtHandle_t handle();  // made when first asked for

  struct HandleDestroy {
    void operator()(cublasLtHandle_t handle) const;
  };
  std::unique_ptr<cublasLtContext, HandleDestroy> handle_;
  DeviceMemory workspace_;
  std::map<MatmulShape, std::unique_ptr<Plan>> plans_;
  /// The choices, each for kRowsStep numbers of rows; n is the largest.
  std::map<MatmulShape, cublasLtMatmulHeuristicResult_t> choices_;
  std::future<void> prepared_;  // last: its thread uses the others
};

}  // namespace faststream
