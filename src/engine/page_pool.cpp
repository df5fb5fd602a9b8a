#include "engine/page_pool.h"

#include <stdexcept>

#include "support/error.h"

namespace faststream {

PagePool::PagePool(int32_t n_pages) : references_(static_cast<size_t>(n_pages), 0) {
  free_.reserve(references_.size());
  for (int32_t page = n_pages - 1; page >= 0; --page) free_.push_back(page);
}

int32_t PagePool::references(int32_t page) const {
  return references_.at(static_cast<size_t>(page));
}

int32_t PagePool::take() {
  if (free_.empty()) {
    throw Error("all " + std::to_string(references_.size()) +
                " pages of the KV cache are in use; give a smaller context or fewer sequences");
  }
  const int32_t page = free_.back();
  free_.pop_back();
  references_[static_cast<size_t>(page)] = 1;
  return page;
}

void PagePool::retain(int32_t page) {
  int32_t& count = references_.at(static_cast<size_t>(page));
  if (count == 0) throw std::logic_error("retain of a free page");
  ++count;
}

void PagePool::release(int32_t page) {
  int32_t& count = references_.at(static_cast<size_t>(page));
  if (count == 0) throw std::logic_error("release of a free page");
  if (--count == 0) free_.push_back(page);
}

}  // namespace faststream
