// Copies of KV pages, one launch a layer: the list of pages travels in the kernel's arguments.
#include <algorithm>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kThreads = 256;
constexpr int kMaxCopies = 128;  // 1 kB of arguments

struct CopyList {
  PageCopy copies[kMaxCopies];
};

// A page has 32 head_dim n_kv_heads elements of at least 2 bytes: a multiple of 16 bytes.
__global__ void copy_pages_kernel(CopyList list, uint4* k, uint4* v, int64_t page_vectors) {
  begin_kernel();
  const PageCopy copy = list.copies[blockIdx.x];
  uint4* cache = blockIdx.y == 0 ? k : v;
  const uint4* from = cache + copy.from * page_vectors;
  uint4* to = cache + copy.to * page_vectors;
  for (int64_t i = blockIdx.z * kThreads + threadIdx.x; i < page_vectors;
       i += static_cast<int64_t>(gridDim.z) * kThreads) {
    to[i] = from[i];
  }
}

}  // namespace

void CudaBackend::copy_pages(std::span<const KvLayer> layers, std::span<const PageCopy> copies) {
  const Queue queue = this->queue();
  for (size_t first = 0; first < copies.size(); first += kMaxCopies) {
    const size_t count = std::min<size_t>(kMaxCopies, copies.size() - first);
    CopyList list{};
    std::copy_n(copies.begin() + static_cast<std::ptrdiff_t>(first), count, list.copies);
    for (const KvLayer& layer : layers) {
      const int64_t page_vectors = static_cast<int64_t>(layer.n_kv_heads) * kPageTokens *
                                   layer.head_dim * static_cast<int64_t>(dtype_size(layer.dtype)) /
                                   16;
      const dim3 grid(
          static_cast<unsigned>(count), 2,
          static_cast<unsigned>(std::min<int64_t>(8, ceil_div(page_vectors, kThreads))));
      queue.launch("copying KV pages", copy_pages_kernel, {grid, kThreads}, list,
                   static_cast<uint4*>(layer.k), static_cast<uint4*>(layer.v), page_vectors);
    }
  }
}

}  // namespace faststream
