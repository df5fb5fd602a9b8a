#include "engine/kv_groups.h"

#include <algorithm>

#include "backend/batch.h"

namespace faststream {

std::vector<KvGeometry> kv_geometries(const ModelConfig& config) {
  std::vector<KvGeometry> geometries;
  for (const int64_t n : kv_layers(config)) {
    geometries.push_back(*kv_geometry(config.layer(n)));
  }
  return geometries;
}

size_t kv_token_bytes(const KvGeometry& geometry, DType dtype) {
  return static_cast<size_t>(geometry.k_dim() + geometry.v_dim()) * dtype_size(dtype);
}

KvLayer kv_layer(const KvGeometry& geometry, DType dtype, std::byte* memory, int32_t n_pages,
                 int32_t group) {
  const int64_t before_values = geometry.values_in_keys
                                    ? geometry.k_head_dim - geometry.v_head_dim
                                    : int64_t{n_pages} * kPageTokens * geometry.k_dim();
  return {.k = memory,
          .v = memory + static_cast<size_t>(before_values) * dtype_size(dtype),
          .dtype = dtype,
          .n_pages = n_pages,
          .n_kv_heads = static_cast<int32_t>(geometry.n_heads),
          .head_dim = static_cast<int32_t>(geometry.k_head_dim),
          .v_head_dim = static_cast<int32_t>(geometry.v_head_dim),
          .group = group,
          .values_in_keys = geometry.values_in_keys};
}

std::vector<KvGroup> kv_groups(const ModelConfig& config, DType dtype) {
  std::vector<KvGroup> groups(1);
  const std::vector<KvGeometry> geometries = kv_geometries(config);
  for (size_t n = 0; n < geometries.size(); ++n) {
    // A window that no text outgrows is none; pages that sources lie in, too, are kept whole.
    const bool is_cut = geometries[n].window < config.max_context && !config.encoder;
    const int64_t window = is_cut ? geometries[n].window : 0;
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const KvGroup& g) { return g.window == window; });
    if (group == groups.end()) {
      group = groups.emplace(groups.end());
      group->window = window;
    }
    group->layers.push_back(n);
    group->token_bytes += kv_token_bytes(geometries[n], dtype);
  }
  return groups;
}

int32_t window_frames(const KvGroup& group, int32_t sequences, int32_t max_tokens) {
  const int64_t each = pages_for(group.window) + 3;
  return static_cast<int32_t>(
      std::min<int64_t>(sequences * each + sequences + pages_for(max_tokens), 1 << 30));
}

}  // namespace faststream
