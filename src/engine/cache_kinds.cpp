#include "engine/cache_kinds.h"

#include <algorithm>
#include <utility>

#include "engine/source.h"
#include "engine/state_cache.h"
#include "engine/text_pages.h"
#include "engine/window_pages.h"

namespace faststream {
namespace {

/// Pages of keys and values of a group of layers.
class KvPages final : public CacheKind {
 public:
  explicit KvPages(KvGroup group) : group_(std::move(group)) {}

  [[nodiscard]] size_t bytes(const CacheBounds& bounds) const override {
    return static_cast<size_t>(pages_of_group(group_, bounds)) * kPageTokens * group_.token_bytes;
  }
  [[nodiscard]] std::unique_ptr<LayerCache> open(const CacheBounds& bounds, PagePool& pages,
                                                 size_t index) const override {
    if (group_.window == 0) return std::make_unique<TextPages>(index, pages);
    return std::make_unique<WindowCache>(
        index, WindowPages(group_.window, pages_of_group(group_, bounds), bounds.n_pages));
  }

 private:
  KvGroup group_;
};

/// Sources, in pages of the layers that see all positions.
class SourcePages final : public CacheKind {
 public:
  explicit SourcePages(int64_t max_tokens) : max_tokens_(max_tokens) {}

  [[nodiscard]] size_t bytes(const CacheBounds& /*bounds*/) const override { return 0; }
  [[nodiscard]] std::unique_ptr<LayerCache> open(const CacheBounds& /*bounds*/, PagePool& pages,
                                                 size_t index) const override {
    return std::make_unique<EncoderOutputs>(index, pages, max_tokens_);
  }

 private:
  int64_t max_tokens_;
};

/// States of all recurrent layers together.
class States final : public CacheKind {
 public:
  /// page_bytes: of keys and values, of all layers.
  States(size_t state_bytes, size_t page_bytes)
      : state_bytes_(state_bytes), page_bytes_(page_bytes) {}

  [[nodiscard]] size_t bytes(const CacheBounds& bounds) const override {
    return static_cast<size_t>(n_states(bounds)) * state_bytes_;
  }
  [[nodiscard]] std::unique_ptr<LayerCache> open(const CacheBounds& bounds, PagePool& /*pages*/,
                                                 size_t index) const override {
    return std::make_unique<StateCache>(index, sequences_of(bounds), n_states(bounds));
  }

  // Three for each sequence, that of an empty text, and some that known texts go on from: a quarter
  // of what their keys and values take, and one for so many pages.
  [[nodiscard]] int32_t n_states(const CacheBounds& bounds) const {
    if (bounds.states > 0) return bounds.states;
    constexpr int32_t kPages = 256;
    const auto pages = static_cast<size_t>(bounds.n_pages);
    const size_t kept = std::max(pages / kPages, pages * page_bytes_ / (4 * state_bytes_));
    return 1 + 3 * sequences_of(bounds) + static_cast<int32_t>(std::min(kept, pages));
  }

 private:
  static int32_t sequences_of(const CacheBounds& bounds) {
    return bounds.sequences > 0 ? bounds.sequences : bounds.n_pages;
  }

  size_t state_bytes_;
  size_t page_bytes_;
};

// Of the recurrent layers, if there are any.
std::unique_ptr<States> states_of(const ModelConfig& config, const std::vector<KvGroup>& groups) {
  size_t state_bytes = 0;
  for (const int64_t n : state_layers(config)) state_bytes += layer_state_bytes(config, n);
  if (state_bytes == 0) return nullptr;
  size_t token_bytes = 0;
  for (const KvGroup& group : groups) token_bytes += group.token_bytes;
  return std::make_unique<States>(state_bytes, token_bytes * kPageTokens);
}

}  // namespace

size_t layer_state_bytes(const ModelConfig& config, int64_t layer) {
  constexpr int64_t kFloats = 64;  // states begin at multiples of so many
  const RecurrentShape shape = *recurrent_shape(config.layer(layer), config.hidden);
  return static_cast<size_t>((shape.state_size() + kFloats - 1) / kFloats * kFloats) *
         sizeof(float);
}

int32_t n_states(const ModelConfig& config, KvType kv, const CacheBounds& bounds) {
  const std::unique_ptr<States> states = states_of(config, kv_groups(config, kv));
  return states ? states->n_states(bounds) : 0;
}

CacheKinds cache_kinds(const ModelConfig& config, KvType kv) {
  CacheKinds kinds;
  std::vector<KvGroup> groups = kv_groups(config, kv);
  std::unique_ptr<States> states = states_of(config, groups);
  for (KvGroup& group : groups) kinds.push_back(std::make_unique<KvPages>(std::move(group)));
  if (states) kinds.push_back(std::move(states));
  if (config.encoder) kinds.push_back(std::make_unique<SourcePages>(config.encoder->max_context));
  return kinds;
}

int32_t pages_of_group(const KvGroup& group, const CacheBounds& bounds) {
  if (group.window == 0 || bounds.sequences == 0) return bounds.n_pages;
  return std::min(window_frames(group, bounds.sequences, bounds.step_tokens), bounds.n_pages);
}

size_t bytes_of(const CacheKinds& kinds, const CacheBounds& bounds) {
  size_t bytes = 0;
  for (const auto& kind : kinds) bytes += kind->bytes(bounds);
  return bytes;
}

}  // namespace faststream
