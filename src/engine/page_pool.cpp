#include "engine/page_pool.h"

#include <stdexcept>
#include <utility>

#include "support/error.h"

namespace faststream {

PagePool::PagePool(int32_t n_pages, int32_t n_modest, std::function<void(int32_t page)> freed)
    : pages_(static_cast<size_t>(n_pages)),
      freed_(std::move(freed)),
      n_modest_(std::min(n_modest, n_pages)) {
  returned_.reserve(pages_.size());  // so that release() does not throw
}

int32_t PagePool::references(int32_t page) const {
  return pages_.at(static_cast<size_t>(page)).references;
}

int32_t PagePool::holders(int32_t page) const {
  const Page& p = pages_.at(static_cast<size_t>(page));
  return p.references - (p.cached ? 1 : 0);
}

PagePool::Page& PagePool::held(int32_t page) {
  Page& held = pages_.at(static_cast<size_t>(page));
  if (held.references == 0) throw std::logic_error("a KV page is used that nobody holds");
  return held;
}

int32_t PagePool::take() {
  if (n_free() == 0) {
    throw Error("all " + std::to_string(pages_.size()) +
                " pages of the KV cache are in use; give a smaller context or fewer sequences");
  }
  int32_t page = n_used_;
  if (returned_.empty()) {
    ++n_used_;
  } else {
    page = returned_.back();
    returned_.pop_back();
  }
  pages_[static_cast<size_t>(page)].references = 1;
  return page;
}

void PagePool::retain(int32_t page) {
  Page& p = held(page);
  if (p.cached && p.references == 1) --n_idle_;
  ++p.references;
}

void PagePool::release(int32_t page) {
  Page& p = held(page);
  if (p.cached && p.references == 1) {
    throw std::logic_error("the prefix cache's hold on a KV page is released by somebody else");
  }
  --p.references;
  if (p.references == 0) give_back(page);
  if (p.cached && p.references == 1) ++n_idle_;
}

void PagePool::give_back(int32_t page) {
  if (freed_) freed_(page);
  returned_.push_back(page);
}

void PagePool::retain_cached(int32_t page) {
  Page& p = held(page);
  if (p.cached) throw std::logic_error("a KV page is cached twice");
  p.cached = true;
  ++p.references;
}

void PagePool::release_cached(int32_t page) {
  Page& p = held(page);
  if (!p.cached) throw std::logic_error("a KV page is not cached");
  if (p.references == 1) --n_idle_;
  p.cached = false;
  --p.references;
  if (p.references == 0) give_back(page);
}

}  // namespace faststream
