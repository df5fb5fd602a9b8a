// Pages of layers that see all positions of a text.
#pragma once

#include "engine/layer_cache.h"

namespace faststream {

/// A sequence's own pages (Sequence::pages), which it may share with others. Every model has them,
/// though there be no layer that keeps anything in them: they number the parts of texts.
class TextPages final : public LayerCache {
 public:
  /// `pool` must outlive it.
  TextPages(size_t index, PagePool& pool) : LayerCache(index), pool_(pool) {}

  [[nodiscard]] CacheCost missing(const Sequence& sequence, int64_t n_tokens) const override {
    return {.pages = sequence.missing_pages(n_tokens)};
  }
  void begin(Sequence& sequence, int32_t n_new) override;
  void fork(const Sequence& sequence, Sequence& fork) override;
  void release(Sequence& sequence) override;
  void replaced(Sequence& sequence, size_t i, int32_t old) override;
  [[nodiscard]] std::vector<PageCopy> copies(std::span<const PageCopy> pages) override {
    return {pages.begin(), pages.end()};
  }
  void pack(std::span<const NewTokens> inputs, Batch& batch) const override;

 private:
  PagePool& pool_;
};

/// Rows of a batch's page table: those of the next group of layers, in which every entry is 0.
/// Returns where they begin; a row has batch.max_pages entries.
int32_t* add_page_rows(Batch& batch, size_t n_sequences);

}  // namespace faststream
