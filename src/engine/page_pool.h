// KV pages: who holds which.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace faststream {

/// Page numbers with reference counts. A page that two sequences share (a common prefix) is held
/// twice. Bookkeeping only: the memory is the runner's.
///
/// Pages that were in use before are taken first, then new ones, the lowest first: where memory is
/// taken on use, the pool's pages occupy no more than the most that were held at a time.
class PagePool {
 public:
  /// n_modest: of the pages, how many may be put to use without need (see n_ready()).
  /// freed: told of each page that becomes free; may be empty, and must not throw.
  explicit PagePool(int32_t n_pages, int32_t n_modest = std::numeric_limits<int32_t>::max(),
                    std::function<void(int32_t page)> freed = {});

  [[nodiscard]] int32_t n_pages() const { return static_cast<int32_t>(pages_.size()); }
  [[nodiscard]] int32_t n_free() const { return n_pages() - n_used_ + n_ready_again(); }
  /// Free pages whose use costs no memory, or only a modest amount: idle ones are better reused
  /// than others taken.
  [[nodiscard]] int32_t n_ready() const {
    return std::max(n_modest_ - n_used_, 0) + n_ready_again();
  }
  /// Pages that have been taken at some time: they occupy memory where it is taken on use.
  [[nodiscard]] int32_t n_used() const { return n_used_; }
  /// Pages that only the prefix cache holds.
  [[nodiscard]] int32_t n_idle() const { return n_idle_; }
  [[nodiscard]] int32_t references(int32_t page) const;
  /// The same without the prefix cache's.
  [[nodiscard]] int32_t holders(int32_t page) const;

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
  void give_back(int32_t page);
  [[nodiscard]] int32_t n_ready_again() const { return static_cast<int32_t>(returned_.size()); }

  std::vector<Page> pages_;
  std::function<void(int32_t)> freed_;
  int32_t n_modest_;
  int32_t n_used_ = 0;             // pages [0, n_used_) have been taken before
  std::vector<int32_t> returned_;  // those of them that are free; the next one to take is last
  int32_t n_idle_ = 0;
};

}  // namespace faststream
