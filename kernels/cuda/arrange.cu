// The order of fp8's elements on a GPU: a row's codes come first, then what describes their groups.
// So boxes of codes begin where lines of memory do, which the L2 cache reads whole.
#include <algorithm>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/types.cuh"
#include "kernels/cuda/weight_rows.cuh"

namespace faststream {

namespace {

constexpr int64_t kUnit = sizeof(uint4);
constexpr int64_t kMostBytes = int64_t{16} << 20;  // of rows that are arranged at a time

constexpr int64_t kDescribedUnits = described_bytes(WeightFormat::fp8) / kUnit;
constexpr int64_t kBlockUnits = packed_block_bytes(WeightFormat::fp8) / kUnit;
static_assert(kDescribedUnits == 1);

// Rows in units.
__global__ void __launch_bounds__(kElementThreads)
    arrange_kernel(const uint4* from, uint4* to, int64_t row_units, int64_t code_units) {
  begin_kernel();
  from += blockIdx.x * row_units;
  to += blockIdx.x * row_units;
  for (int64_t unit = threadIdx.x; unit < row_units; unit += kElementThreads) {
    const int64_t block = unit / kBlockUnits;
    const int64_t in_block = unit % kBlockUnits;
    const int64_t place =
        in_block == 0 ? code_units + block : block * (kBlockUnits - 1) + in_block - kDescribedUnits;
    to[place] = from[unit];
  }
}

}  // namespace

void CudaBackend::arrange(const Weight& weight) {
  if (weight.format != WeightFormat::fp8 || weight.rows == 0) return;
  const int64_t row_bytes = weight.row_bytes();
  const int64_t at_once = std::clamp<int64_t>(kMostBytes / row_bytes, 1, weight.rows);
  const DeviceMemory copy = allocate_device(static_cast<size_t>(at_once * row_bytes));
  auto* data = static_cast<std::byte*>(const_cast<void*>(weight.data));  // this backend's own
  const Queue queue = this->queue();
  for (int64_t first = 0; first < weight.rows; first += at_once) {
    const int64_t rows = std::min(at_once, weight.rows - first);
    std::byte* to = data + first * row_bytes;
    cuda_check(cudaMemcpyAsync(copy.get(), to, static_cast<size_t>(rows * row_bytes),
                               cudaMemcpyDeviceToDevice, queue.stream),
               "arranging weights");
    queue.launch("arranging weights", arrange_kernel,
                 {static_cast<unsigned>(rows), kElementThreads},
                 reinterpret_cast<const uint4*>(copy.get()), reinterpret_cast<uint4*>(to),
                 row_bytes / kUnit, e4m3_code_bytes(weight.cols) / kUnit);
  }
  synchronize();
}

}  // namespace faststream
