// Copies of KV pages of all layers in one launch: the lists of both travel in its arguments.
#include <algorithm>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kThreads = 256;
// Of one launch, which has 4 kB of arguments.
constexpr size_t kMaxCopies = 128;
constexpr size_t kMaxLayers = 96;

struct CopyList {
  PageCopy copies[kMaxCopies];
};

struct LayerList {
  struct Layer {
    uint4* k;
    uint4* v;
    int64_t page_vectors;
  };
  Layer layers[kMaxLayers];
};

// A page has 32 head_dim n_kv_heads elements of at least 2 bytes: a multiple of 16 bytes.
__global__ void copy_pages_kernel(CopyList copies, LayerList layers) {
  begin_kernel();
  const PageCopy copy = copies.copies[blockIdx.x];
  const LayerList::Layer layer = layers.layers[blockIdx.y / 2];
  uint4* cache = blockIdx.y % 2 == 0 ? layer.k : layer.v;
  const uint4* from = cache + copy.from * layer.page_vectors;
  uint4* to = cache + copy.to * layer.page_vectors;
  for (int64_t i = blockIdx.z * kThreads + threadIdx.x; i < layer.page_vectors;
       i += static_cast<int64_t>(gridDim.z) * kThreads) {
    to[i] = from[i];
  }
}

}  // namespace

void CudaBackend::copy_pages(std::span<const KvLayer> layers, std::span<const PageCopy> copies) {
  const Queue queue = this->queue();
  for (size_t first_layer = 0; first_layer < layers.size(); first_layer += kMaxLayers) {
    const auto some =
        layers.subspan(first_layer, std::min(kMaxLayers, layers.size() - first_layer));
    LayerList layer_list{};
    int64_t most_vectors = 0;
    for (size_t i = 0; i < some.size(); ++i) {
      const KvLayer& layer = some[i];
      const int64_t page_vectors = static_cast<int64_t>(layer.n_kv_heads) * kPageTokens *
                                   layer.head_dim * static_cast<int64_t>(dtype_size(layer.dtype)) /
                                   16;
      layer_list.layers[i] = {static_cast<uint4*>(layer.k), static_cast<uint4*>(layer.v),
                              page_vectors};
      most_vectors = std::max(most_vectors, page_vectors);
    }
    for (size_t first = 0; first < copies.size(); first += kMaxCopies) {
      const auto part = copies.subspan(first, std::min(kMaxCopies, copies.size() - first));
      CopyList list{};
      std::ranges::copy(part, list.copies);
      const dim3 grid(
          static_cast<unsigned>(part.size()), static_cast<unsigned>(2 * some.size()),
          static_cast<unsigned>(std::clamp<int64_t>(ceil_div(most_vectors, kThreads), 1, 8)));
      queue.launch("copying KV pages", copy_pages_kernel, {grid, kThreads}, list, layer_list);
    }
  }
}

}  // namespace faststream
