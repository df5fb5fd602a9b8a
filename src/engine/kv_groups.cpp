#include "engine/kv_groups.h"

#include <algorithm>

#include "backend/batch.h"

namespace faststream {

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
    group->token_bytes += 2 * static_cast<size_t>(attention.kv_dim()) * dtype_size(dtype);
  }
  return groups;
}

int32_t window_frames(const KvGroup& group, int32_t sequences, int32_t max_tokens) {
  const int64_t each = pages_for(group.window) + 3;
  return static_cast<int32_t>(
      std::min<int64_t>(sequences * each + sequences + pages_for(max_tokens), 1 << 30));
}

}  // namespace faststream
