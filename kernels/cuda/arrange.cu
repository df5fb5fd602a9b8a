// The order of elements on a GPU, where it is another than a file's.
//
// Of fp8 a row's codes come first, then what describes their groups. So boxes of codes begin where
// lines of memory do, which the L2 cache reads whole. Of mxfp4 the bits of each word of codes are
// where kernels want them (E2m1Word).
#include <algorithm>

#include "kernels/cuda/coded.cuh"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int64_t kUnit = sizeof(uint4);
constexpr int64_t kMostBytes = int64_t{16} << 20;  // of rows that are arranged at a time

/// Units of a block of columns, of which the first describes groups.
constexpr int64_t block_units(WeightFormat format) {
  return static_cast<int64_t>(packed_block_bytes(format) / kUnit);
}
constexpr int64_t kDescribedUnits = 1;
static_assert(described_bytes(WeightFormat::fp8) == kDescribedUnits * kUnit);
static_assert(described_bytes(WeightFormat::mxfp4) == kDescribedUnits * kUnit);

// Rows in units.
__global__ void __launch_bounds__(kElementThreads)
    codes_first_kernel(const uint4* from, uint4* to, int64_t row_units, int64_t code_units) {
  begin_kernel();
  constexpr int64_t kBlockUnits = block_units(WeightFormat::fp8);
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

// Pair n of a word of a file: halves of bytes, two bytes after each other.
__device__ uint32_t stored_pair(uint32_t word, int n) {
  return word >> (n % 2 * 8 + n / 2 * 4) & 0x000f000fU;
}

__device__ uint32_t arranged(uint32_t word) {
  const uint32_t pairs[4] = {stored_pair(word, 0), stored_pair(word, 1), stored_pair(word, 2),
                             stored_pair(word, 3)};
  return E2m1Word(pairs).word();
}

__global__ void __launch_bounds__(kElementThreads)
    bits_in_places_kernel(uint4* units, int64_t row_units) {
  begin_kernel();
  units += blockIdx.x * row_units;
  for (int64_t unit = threadIdx.x; unit < row_units; unit += kElementThreads) {
    if (unit % block_units(WeightFormat::mxfp4) < kDescribedUnits) continue;
    const uint4 words = units[unit];
    units[unit] =
        make_uint4(arranged(words.x), arranged(words.y), arranged(words.z), arranged(words.w));
  }
}

void put_codes_first(const Weight& weight, std::byte* data, const Queue& queue) {
  const int64_t row_bytes = weight.row_bytes();
  const int64_t at_once = std::clamp<int64_t>(kMostBytes / row_bytes, 1, weight.rows);
  const DeviceMemory copy = allocate_device(static_cast<size_t>(at_once * row_bytes));
  for (int64_t first = 0; first < weight.rows; first += at_once) {
    const int64_t rows = std::min(at_once, weight.rows - first);
    std::byte* to = data + first * row_bytes;
    cuda_check(cudaMemcpyAsync(copy.get(), to, static_cast<size_t>(rows * row_bytes),
                               cudaMemcpyDeviceToDevice, queue.stream),
               "arranging weights");
    queue.launch("arranging weights", codes_first_kernel,
                 {static_cast<unsigned>(rows), kElementThreads},
                 reinterpret_cast<const uint4*>(copy.get()), reinterpret_cast<uint4*>(to),
                 row_bytes / kUnit, e4m3_code_bytes(weight.cols) / kUnit);
  }
  cuda_check(cudaStreamSynchronize(queue.stream), "arranging weights");
}

void put_bits_in_places(const Weight& weight, std::byte* data, const Queue& queue) {
  queue.launch("arranging weights", bits_in_places_kernel,
               {static_cast<unsigned>(weight.rows), kElementThreads},
               reinterpret_cast<uint4*>(data), weight.row_bytes() / kUnit);
  cuda_check(cudaStreamSynchronize(queue.stream), "arranging weights");
}

}  // namespace

void CudaBackend::arrange(const Weight& weight) {
  if (weight.rows == 0) return;
  auto* data = static_cast<std::byte*>(const_cast<void*>(weight.data));  // this backend's own
  if (weight.format == WeightFormat::fp8) put_codes_first(weight, data, queue());
  if (weight.format == WeightFormat::mxfp4) put_bits_in_places(weight, data, queue());
}

}  // namespace faststream
