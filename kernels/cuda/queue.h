// Kernel launches: kernels of one stream that overlap where they can.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

#include "kernels/cuda/cuda_check.h"

namespace faststream {

/// How many blocks of how many threads, each block with how many bytes of dynamic shared memory, in
/// clusters of how many blocks.
struct Grid {
  dim3 blocks;
  dim3 threads;
  size_t shared_bytes = 0;
  unsigned cluster = 1;
};

/// Threads of a block where each thread computes elements of its own.
inline constexpr int kElementThreads = 256;

/// Where kernels are launched. From one kernel's end to the next one's first instruction a GPU
/// takes 1 us and more, of steps of a few hundred kernels that often take no longer themselves.
/// From Hopper on a kernel may be launched while the one before it still runs ("programmatic
/// dependent launch", CUDA C++ Programming Guide): its blocks take the places that become free, do
/// what needs nothing of the kernels before, and wait for these.
struct Queue {
  cudaStream_t stream = nullptr;
  bool overlaps = false;  ///< the GPU can, and the code compiled for it waits

  /// Launches a kernel that calls begin_kernel(), or allow_next_kernel() and wait_for_inputs(), in
  /// every block. Throws Error, "The GPU failed while <doing>".
  template <typename... Parameters, typename... Arguments>
  void launch(std::string_view doing, void (*kernel)(Parameters...), const Grid& grid,
              Arguments&&... arguments) const {
    std::array<cudaLaunchAttribute, 2> attributes{};
    unsigned count = 0;
    if (overlaps) {
      attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (grid.cluster > 1) {
      attributes[count].id = cudaLaunchAttributeClusterDimension;
      attributes[count++].val.clusterDim = {grid.cluster, 1, 1};
    }
    cudaLaunchConfig_t config{};
    config.gridDim = grid.blocks;
    config.blockDim = grid.threads;
    config.dynamicSmemBytes = grid.shared_bytes;
    config.stream = stream;
    config.attrs = attributes.data();
    config.numAttrs = count;
    cuda_check(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...), doing);
  }
};

/// Lets launches of `kernel` on the current GPU ask for so much shared memory, more than the 48 KB
/// that any kernel may have. The driver is asked once for each GPU: that takes as long as half a
/// launch.
void allow_shared_memory(const void* kernel, size_t bytes);
template <typename... Parameters>
void allow_shared_memory(void (*kernel)(Parameters...), size_t bytes) {
  allow_shared_memory(reinterpret_cast<const void*>(kernel), bytes);
}

/// How many clusters of a grid's kernel the current GPU runs at once.
template <typename... Parameters>
int active_clusters(void (*kernel)(Parameters...), const Grid& grid) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {grid.cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks;
  config.blockDim = grid.threads;
  config.dynamicSmemBytes = grid.shared_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  cuda_check(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config),
             "reading how many blocks run at once");
  return clusters;
}

/// A number that describes the current GPU.
inline int gpu_attribute(cudaDeviceAttr attribute) {
  int device = 0;
  int value = 0;
  cuda_check(cudaGetDevice(&device), "reading the current GPU");
  cuda_check(cudaDeviceGetAttribute(&value, attribute, device), "reading the GPU's properties");
  return value;
}

/// Whether kernels of this program can overlap on the current GPU. Code for older GPUs has no
/// instruction to wait with, whatever GPU it is compiled for at last.
bool kernels_overlap();

#ifdef __CUDACC__

/// The next kernel's blocks may take the places that this one's leave, once all of its blocks have
/// said so. A kernel that is over soon says it first. One that reads weights for long says it last:
/// the next such kernel would take places while it runs, more on some multiprocessors than on
/// others, and be as slow as those (Llama-3.2-1B in bf16: 637 tokens/s instead of 759).
__device__ inline void allow_next_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Before it, a kernel may touch only weights, which no kernel writes, and a step's batch, which is
/// there before its first kernel; after it, what kernels before this one wrote is there, too. Every
/// block calls it, or the next kernel might not wait for the one before this.
__device__ inline void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Both: the first statement of most kernels.
__device__ inline void begin_kernel() {
  allow_next_kernel();
  wait_for_inputs();
}

#endif

}  // namespace faststream
