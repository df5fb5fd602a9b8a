// Copies of KV pages of all layers in one launch: the lists of both travel in its arguments.
#include <algorithm>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

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
    int32_t k_vectors;  // of a page
    int32_t v_vectors;
  };
  Layer layers[kMaxLayers];
};

// A page has 32 rows of elements, and of scales, of 1 byte and more: a multiple of 16 bytes.
__global__ void copy_pages_kernel(CopyList copies, LayerList layers) {
  begin_kernel();
  const PageCopy copy = copies.copies[blockIdx.x];
  const LayerList::Layer layer = layers.layers[blockIdx.y / 2];
  const bool is_key = blockIdx.y % 2 == 0;
  uint4* cache = is_key ? layer.k : layer.v;
  const int64_t page_vectors = is_key ? layer.k_vectors : layer.v_vectors;
  const uint4* from = cache + copy.from * page_vectors;
  uint4* to = cache + copy.to * page_vectors;
  for (int64_t i = blockIdx.z * kElementThreads + threadIdx.x; i < page_vectors;
       i += static_cast<int64_t>(gridDim.z) * kElementThreads) {
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
    int32_t most_vectors = 0;
    for (size_t i = 0; i < some.size(); ++i) {
      const KvLayer& layer = some[i];
      const auto vectors_of = [&](int64_t head_bytes) {
        return static_cast<int32_t>(layer.n_kv_heads * head_bytes / int64_t{sizeof(uint4)});
      };
      const LayerList::Layer copied{static_cast<uint4*>(layer.k), static_cast<uint4*>(layer.v),
                                    vectors_of(layer.k_head_bytes()),
                                    vectors_of(layer.v_head_bytes())};
      layer_list.layers[i] = copied;
      most_vectors = std::max({most_vectors, copied.k_vectors, copied.v_vectors});
    }
    for (size_t first = 0; first < copies.size(); first += kMaxCopies) {
      const auto part = copies.subspan(first, std::min(kMaxCopies, copies.size() - first));
      CopyList list{};
      std::ranges::copy(part, list.copies);
      const dim3 grid(static_cast<unsigned>(part.size()), static_cast<unsigned>(2 * some.size()),
                      static_cast<unsigned>(
                          std::clamp<int64_t>(ceil_div(most_vectors, kElementThreads), 1, 8)));
      queue.launch("copying KV pages", copy_pages_kernel, {grid, kElementThreads}, list,
                   layer_list);
    }
  }
}

}  // namespace faststream
