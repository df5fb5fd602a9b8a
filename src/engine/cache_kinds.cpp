#include "engine/cache_kinds.h"

#include <algorithm>
#include <utility>

#include "engine/source.h"
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

}  // namespace

CacheKinds cache_kinds(const ModelConfig& config, DType dtype) {
  CacheKinds kinds;
  for (KvGroup& group : kv_groups(config, dtype)) {
    kinds.push_back(std::make_unique<KvPages>(std::move(group)));
  }
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
