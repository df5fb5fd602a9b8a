#include "kernels/cuda/queue.h"

#include <map>
#include <mutex>
#include <utility>

namespace faststream {

void allow_shared_memory(const void* kernel, size_t bytes) {
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, size_t> allowed;
  int device = 0;
  cuda_check(cudaGetDevice(&device), "reading the current GPU");
  const std::lock_guard lock(mutex);
  size_t& most = allowed[{device, kernel}];
  if (bytes <= most) return;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)),
             "reserving shared memory");
  most = bytes;
}

}  // namespace faststream
