// KV pages: who holds which.
#pragma once

#include <cstdint>
#include <vector>

namespace faststream {

/// Page numbers with reference counts. A page that two sequences share (a common prefix) is held
/// twice. Bookkeeping only: the memory is the runner's.
class PagePool {
 public:
  explicit PagePool(int32_t n_pages);

  [[nodiscard]] int32_t n_pages() const { return static_cast<int32_t>(pages_.size()); }
  [[nodiscard]] int32_t n_free() const { return static_cast<int32_t>(free_.size()); }
  /// Pages that only the prefix cache holds.
  [[nodiscard]] int32_t n_idle() const { return n_idle_; }
  [[nodiscard]] int32_t references(int32_t page) const;

  /// A free page, held once. Throws Error when there is none.
  int32_t take();
  /// Holds a page once more.
  void retain(int32_t page);
  /// Lets go of a page; the last one to do so frees it.
  void release(int32_t page);

  /// The prefix cache's own retain() and release(): at most one hold a page.
  void retain_cached(int32_t page);
  void release_cached(int32_t page);

 private:
  struct Page {
    int32_t references = 0;
    bool cached = false;
  };

  Page& held(int32_t page);

  std::vector<Page> pages_;
  std::vector<int32_t> free_;  // the next one to take is last
  int32_t n_idle_ = 0;
};

}  // namespace faststream
