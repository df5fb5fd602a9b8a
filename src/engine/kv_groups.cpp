#include "engine/kv_groups.h"

#include <algorithm>

#include "backend/batch.h"

namespace faststream {
namespace {

// Keys and values are of the same width.
size_t half_token_bytes(const AttentionConfig& attention, DType dtype) {
  return static_cast<size_t>(attention.n_kv_heads * attention.head_dim) * dtype_size(dtype);
}

}  // namespace

size_t kv_token_bytes(const AttentionConfig& attention, DType dtype) {
  return 2 * half_token_bytes(attention, dtype);
}

KvLayer kv_layer(const AttentionConfig& attention, DType dtype, std::byte* memory, int32_t n_pages,
                 int32_t group) {
  const size_t half =
      static_cast<size_t>(n_pages) * kPageTokens * half_token_bytes(attention, dtype);
  return {.k = memory,
          .v = memory + half,
          .dtype = dtype,
          .n_pages = n_pages,
          .n_kv_heads = static_cast<int32_t>(attention.n_kv_heads),
          .head_dim = static_cast<int32_t>(attention.head_dim),
          .group = group};
}

std::vector<KvGroup> kv_groups(const ModelConfig& config, DType dtype) {
  std::vector<KvGroup> groups(1);
  for (int64_t n = 0; n < config.n_layers(); ++n) {
    const AttentionConfig& attention = config.layer(n).attention;
    // A window that no text outgrows is none; pages that sources lie in, too, are kept whole.
    const bool is_cut = attention.window < config.max_context && !config.encoder;
    const int64_t window = is_cut ? attention.window : 0;
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const KvGroup& g) { return g.window == window; });
    if (group == groups.end()) {
      group = groups.emplace(groups.end());
      group->window = window;
    }
    group->layers.push_back(n);
    group->token_bytes += kv_token_bytes(attention, dtype);
  }
  return groups;
}

int32_t window_frames(const KvGroup& group, int32_t sequences, int32_t max_tokens) {
  const int64_t each = pages_for(group.window) + 3;
  return static_cast<int32_t>(
      std::min<int64_t>(sequences * each + sequences + pages_for(max_tokens), 1 << 30));
}

}  // namespace faststream
