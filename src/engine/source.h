// What a sequence of an encoder-decoder looks at.
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

/// Sources, all different.
using Sources = std::unordered_set<std::shared_ptr<Source>, SourceTokens, SourceTokens>;

}  // namespace faststream
