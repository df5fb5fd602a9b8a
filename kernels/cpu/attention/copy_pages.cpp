#include <cstring>
#include <utility>

#include "kernels/cpu/cpu_backend.h"

namespace faststream {

void CpuBackend::copy_pages(std::span<const KvLayer> layers, std::span<const PageCopy> copies) {
  const auto n_copies = static_cast<int64_t>(copies.size());
  const int64_t count = static_cast<int64_t>(layers.size()) * n_copies;
  pool_.parallel_for(count, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const KvLayer& kv = layers[static_cast<size_t>(i / n_copies)];
      const PageCopy& copy = copies[static_cast<size_t>(i % n_copies)];
      for (const auto& [cache, head_bytes] :
           {std::pair(kv.k, kv.k_head_bytes()), std::pair(kv.v, kv.v_head_bytes())}) {
        const auto bytes = static_cast<size_t>(kv.n_kv_heads * head_bytes);
        auto* pages = static_cast<std::byte*>(cache);
        std::memcpy(pages + static_cast<size_t>(copy.to) * bytes,
                    pages + static_cast<size_t>(copy.from) * bytes, bytes);
      }
    }
  });
}

}  // namespace faststream
