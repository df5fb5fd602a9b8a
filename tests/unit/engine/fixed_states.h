// States of fixed size in tests of caches without a device.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/layer_cache.h"
#include "engine/state_cache.h"
#include "models/config.h"

namespace faststream {

/// A description whose caches are of interest, and not what it computes.
inline ModelConfig tiny_decoder(int64_t n_layers) {
  return plain_decoder({.n_layers = n_layers,
                        .hidden = 8,
                        .n_heads = 1,
                        .n_kv_heads = 1,
                        .head_dim = 8,
                        .ffn_hidden = 8,
                        .vocab = 100,
                        .max_context = 1000});
}

/// States for so many sequences, and a few that are kept of texts.
class FixedStatesKind final : public CacheKind {
 public:
  explicit FixedStatesKind(int32_t sequences) : sequences_(sequences) {}

  static constexpr int32_t n_states(int32_t sequences) { return 3 * sequences + 2; }
  [[nodiscard]] size_t bytes(const CacheBounds&) const override {
    constexpr size_t kStateBytes = 1000;
    return static_cast<size_t>(n_states(sequences_)) * kStateBytes;
  }
  [[nodiscard]] std::unique_ptr<LayerCache> open(const CacheBounds&, PagePool&,
                                                 size_t index) const override {
    return std::make_unique<StateCache>(index, sequences_, n_states(sequences_));
  }

 private:
  int32_t sequences_;
};

}  // namespace faststream
