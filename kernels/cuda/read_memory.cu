#include <algorithm>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"

namespace faststream {
namespace {

constexpr unsigned kReadThreads = 512;
constexpr int kLoads = 8;  // of 16 bytes, under way at once in each thread

// Blocks stay and take turns, so that neighbours read neighbouring memory.
__global__ void __launch_bounds__(kReadThreads)
    read_kernel(const uint4* data, size_t count, uint32_t* found) {
  begin_kernel();
  const size_t threads = size_t{gridDim.x} * kReadThreads;
  uint32_t mixed = 0;
  for (size_t i = size_t{blockIdx.x} * kReadThreads + threadIdx.x; i < count;
       i += kLoads * threads) {
    uint4 words[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const size_t at = i + k * threads;
      words[k] = at < count ? __ldcs(data + at) : uint4{};
    }
#pragma unroll
    for (const uint4& w : words) mixed += w.x ^ w.y ^ w.z ^ w.w;
  }
  if (mixed == 0x5EED5EED) *found = mixed;  // so that the compiler keeps the reads
}

}  // namespace

void CudaBackend::read_memory(const std::byte* data, size_t bytes) {
  const auto blocks = 4U * static_cast<unsigned>(gpu_attribute(cudaDevAttrMultiProcessorCount));
  auto* found = reinterpret_cast<uint32_t*>(scratch_.at_least(sizeof(uint32_t)));
  queue().launch("reading memory", read_kernel, {.blocks = blocks, .threads = kReadThreads},
                 reinterpret_cast<const uint4*>(data), bytes / sizeof(uint4), found);
}

// What is timed by itself is a kernel of its own: a step of one operation would take as long as
// it takes to hand it over.
void CudaBackend::note_time() {
  const cudaStream_t stream = this->launched_stream();
  step_kernel_.collect(false);
  if (n_noted_ == noted_.size()) noted_.push_back(make_timing_event());
  cuda_check(cudaEventRecord(noted_[n_noted_++].get(), stream), "noting the time");
}

std::vector<double> CudaBackend::take_times() {
  synchronize();
  step_kernel_.collect(true);
  std::vector<double> seconds;
  for (size_t i = 1; i < n_noted_; ++i) {
    float milliseconds = 0;
    cuda_check(cudaEventElapsedTime(&milliseconds, noted_[i - 1].get(), noted_[i].get()),
               "reading the time");
    seconds.push_back(milliseconds * 1e-3);
  }
  n_noted_ = 0;
  return seconds;
}

}  // namespace faststream
