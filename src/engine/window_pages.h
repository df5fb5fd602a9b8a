// Which KV pages have memory in the layers that see only a window of the last tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <utility>
#include <vector>

#include "engine/layer_cache.h"

namespace faststream {

/// Frames, the memory of pages in all layers with the same window. A page has one from when a
/// sequence first holds it until nobody holds it, because they have passed it, and another page
/// needs one: so a cached prefix can be used as long as its last pages kept theirs. Bookkeeping
/// only: the memory is the runner's.
class WindowPages {
 public:
  /// Pages [0, n_pages) share n_frames frames.
  WindowPages(int64_t window, int32_t n_frames, int32_t n_pages);
  WindowPages(const WindowPages&) = delete;
  WindowPages& operator=(const WindowPages&) = delete;
  WindowPages(WindowPages&&) = default;
  WindowPages& operator=(WindowPages&&) = default;
  ~WindowPages() = default;

  /// Positions that a token sees, its own included.
  [[nodiscard]] int64_t window() const { return window_; }
  [[nodiscard]] int32_t n_frames() const { return n_frames_; }
  /// The page's frame; -1: it has none.
  [[nodiscard]] int32_t frame(int32_t page) const { return pages_.at(index(page)).frame; }

  /// Holds a page, once for each caller. One without a frame gets a free one or, if there is none,
  /// that of the page that was released the longest ago. Throws std::logic_error when all are held.
  void hold(int32_t page);
  void release(int32_t page);
  /// The page is free, and what it held forgotten. Nobody holds it.
  void forget(int32_t page);

 private:
  struct Page {
    int32_t frame = -1;
    int32_t holders = 0;
    std::list<int32_t>::iterator place;  // in idle_ or others_
  };

  static size_t index(int32_t page) { return static_cast<size_t>(page); }
  int32_t take_frame();

  int64_t window_;
  int32_t n_frames_;
  int32_t n_used_ = 0;         // frames [0, n_used_) have been taken before
  std::vector<int32_t> free_;  // those of them that no page has
  std::vector<Page> pages_;
  // Places move between the lists, so that only the constructor asks for memory.
  std::list<int32_t> idle_;    // pages with a frame that nobody holds, the first released first
  std::list<int32_t> others_;  // all other pages
};

/// The cache of layers with the same window. A sequence holds the pages that its next tokens see
/// and are written to.
class WindowCache final : public LayerCache {
 public:
  WindowCache(size_t index, WindowPages pages) : LayerCache(index), pages_(std::move(pages)) {}

  [[nodiscard]] const WindowPages& pages() const { return pages_; }

  [[nodiscard]] bool can_go_on(std::span<const int32_t> pages, int32_t n_tokens) const override;
  void join(Sequence& sequence) override { move(sequence, 0); }
  void begin(Sequence& sequence, int32_t n_new) override { move(sequence, n_new); }
  void fork(const Sequence& sequence, Sequence& fork) override;
  void release(Sequence& sequence) override;
  [[nodiscard]] bool can_replace(const Sequence& sequence, size_t i, int32_t page) const override;
  void replaced(Sequence& sequence, size_t i, int32_t old) override;
  void freed(int32_t page) override { pages_.forget(page); }
  [[nodiscard]] std::vector<PageCopy> copies(std::span<const PageCopy> pages) override;
  void pack(std::span<const NewTokens> inputs, Batch& batch) const override;

 private:
  void move(Sequence& sequence, int32_t n_new);

  WindowPages pages_;
};

}  // namespace faststream
