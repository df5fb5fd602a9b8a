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

  [[nodiscard]] int32_t n_pages() const { return static_cast<int32_t>(references_.size()); }
  [[nodiscard]] int32_t n_free() const { return static_cast<int32_t>(free_.size()); }
  [[nodiscard]] int32_t references(int32_t page) const;

  /// A free page, held once. Throws Error when there is none.
  int32_t take();
  /// Holds a page once more.
  void retain(int32_t page);
  /// Lets go of a page; the last one to do so frees it.
  void release(int32_t page);

 private:
  std::vector<int32_t> references_;
  std::vector<int32_t> free_;  // the next one to take is last
};

}  // namespace faststream
