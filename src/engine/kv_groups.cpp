#include "engine/kv_groups.h"

#include <algorithm>
#include <optional>

#include "backend/batch.h"

namespace faststream {
namespace {

// A window that no text outgrows is none; pages that sources lie in, too, are kept whole.
int64_t window_of(const ModelConfig& config, const KvGeometry& geometry) {
  return geometry.window < config.max_context && !config.encoder ? geometry.window : 0;
}

}  // namespace

std::vector<KvGeometry> kv_geometries(const ModelConfig& config) {
  std::vector<KvGeometry> geometries;
  for (const int64_t n : kv_layers(config)) {
    geometries.push_back(*kv_geometry(config.layer(n)));
  }
  return geometries;
}

KvType kv_type_of(const ModelConfig& config, const KvGeometry& geometry, KvType wanted) {
  const bool is_plain = geometry.exact || config.encoder || window_of(config, geometry) > 0;
  return is_plain ? KvType(wanted.dtype) : wanted;
}

int64_t n_layers_of_format(const ModelConfig& config, KvType wanted) {
  return std::ranges::count_if(kv_geometries(config), [&](const KvGeometry& geometry) {
    return kv_type_of(config, geometry, wanted) == wanted;
  });
}

size_t kv_token_bytes(const KvGeometry& geometry, KvType type) {
  const int64_t values =
      geometry.values_in_keys ? 0 : geometry.n_heads * kv_row_bytes(type, geometry.v_head_dim);
  return static_cast<size_t>(geometry.n_heads * kv_row_bytes(type, geometry.k_head_dim) + values);
}

KvLayer kv_layer(const KvGeometry& geometry, KvType type, std::byte* memory, int32_t n_pages,
                 int32_t group) {
  KvLayer layer{.k = memory,
                .dtype = type.dtype,
                .n_pages = n_pages,
                .n_kv_heads = static_cast<int32_t>(geometry.n_heads),
                .head_dim = static_cast<int32_t>(geometry.k_head_dim),
                .v_head_dim = static_cast<int32_t>(geometry.v_head_dim),
                .group = group,
                .values_in_keys = geometry.values_in_keys,
                .format = type.format};
  const int64_t before_values = geometry.values_in_keys
                                    ? kv_row_bytes(type, geometry.k_head_dim - geometry.v_head_dim)
                                    : int64_t{n_pages} * layer.n_kv_heads * layer.k_head_bytes();
  layer.v = memory + before_values;
  return layer;
}

std::vector<KvGroup> kv_groups(const ModelConfig& config, KvType wanted) {
  std::vector<KvGroup> groups(1);
  const auto [first, end] = config.own_layers();
  size_t place = 0;
  for (int64_t n = 0; n < config.n_layers(); ++n) {
    const std::optional<KvGeometry> geometry = kv_geometry(config.layer(n));
    if (!geometry) continue;
    const int64_t window = window_of(config, *geometry);
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const KvGroup& g) { return g.window == window; });
    if (group == groups.end()) {
      group = groups.emplace(groups.end());
      group->window = window;
    }
    if (n < first || n >= end) continue;
    group->layers.push_back(place++);
    group->token_bytes += kv_token_bytes(*geometry, kv_type_of(config, *geometry, wanted));
  }
  return groups;
}

int32_t window_frames(const KvGroup& group, int32_t sequences, int32_t max_tokens) {
  const int64_t each = pages_for(group.window) + 3;
  return static_cast<int32_t>(
      std::min<int64_t>(sequences * each + sequences + pages_for(max_tokens), 1 << 30));
}

}  // namespace faststream
