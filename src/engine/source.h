// What sequences of an encoder-decoder look at.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "backend/batch.h"
#include "engine/layer_cache.h"
#include "engine/page_pool.h"
#include "support/hash.h"

namespace faststream {

/// A source's place in the KV cache: the keys and values of cross attention, made once. Sequences
/// hold it together; its pages are given back when the last one lets go.
class Source {
 public:
  /// Takes its pages from `pool`, which must outlive it and have them.
  Source(std::span<const int32_t> tokens, PagePool& pool)
      : pool_(&pool), tokens_(tokens.begin(), tokens.end()) {
    const int32_t n_pages = pages_for(static_cast<int64_t>(tokens.size()));
    pages_.reserve(static_cast<size_t>(n_pages));
    while (static_cast<int32_t>(pages_.size()) < n_pages) pages_.push_back(pool.take());
  }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  ~Source() {
    for (const int32_t page : pages_) pool_->release(page);
  }

  [[nodiscard]] const std::vector<int32_t>& tokens() const { return tokens_; }
  [[nodiscard]] const std::vector<int32_t>& pages() const { return pages_; }
  [[nodiscard]] int32_t n_tokens() const { return static_cast<int32_t>(tokens_.size()); }

  /// Whether its keys and values are in the pages; Runner::read_sources() makes it so, which may
  /// run beside whoever asks.
  std::atomic<bool> is_read = false;

 private:
  PagePool* pool_;
  std::vector<int32_t> tokens_;
  std::vector<int32_t> pages_;
};

/// What sources are looked up by: their tokens.
struct SourceTokens {
  using is_transparent = void;

  static std::span<const int32_t> of(const std::shared_ptr<Source>& source) {
    return source->tokens();
  }
  static std::span<const int32_t> of(std::span<const int32_t> tokens) { return tokens; }

  /// Their hash.
  size_t operator()(const auto& source) const {
    const auto bytes = std::as_bytes(of(source));
    return stable_hash({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  /// Whether they are the same.
  bool operator()(const auto& a, const auto& b) const { return std::ranges::equal(of(a), of(b)); }
};

/// The sources that sequences look at, all different. They lie in pages of the texts' own pool: of
/// their memory, as cross attention reads it, too.
class EncoderOutputs final : public LayerCache {
 public:
  /// `pool` must outlive it. max_tokens: that the encoder reads.
  EncoderOutputs(size_t index, PagePool& pool, int64_t max_tokens)
      : LayerCache(index), pool_(pool), max_tokens_(max_tokens) {}

  /// Nothing where another one looks at it.
  [[nodiscard]] CacheCost missing_for_source(std::span<const int32_t> tokens) const override;
  /// Throws Error when the source is empty, too, or longer than the encoder can read.
  void look_at(Sequence& sequence, std::span<const int32_t> source) override;
  void fork(const Sequence& sequence, Sequence& fork) override { fork.source = sequence.source; }
  void release(Sequence& sequence) override;
  /// Throws Error when the encoder has not read one.
  void pack(std::span<const NewTokens> inputs, Batch& batch) const override;

 private:
  PagePool& pool_;
  int64_t max_tokens_;
  std::unordered_set<std::shared_ptr<Source>, SourceTokens, SourceTokens> sources_;
};

}  // namespace faststream
