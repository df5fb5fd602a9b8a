#include "engine/window_pages.h"

#include <algorithm>
#include <stdexcept>

namespace faststream {

WindowPages::WindowPages(int64_t window, int32_t n_frames, int32_t n_pages)
    : window_(window), n_frames_(std::min(n_frames, n_pages)), pages_(index(n_pages)) {
  free_.reserve(index(n_frames_));
  for (int32_t page = 0; page < n_pages; ++page) {
    pages_[index(page)].place = others_.insert(others_.end(), page);
  }
}

void WindowPages::hold(int32_t page) {
  Page& p = pages_.at(index(page));
  if (p.frame < 0) {
    p.frame = take_frame();
  } else if (p.holders == 0) {
    others_.splice(others_.end(), idle_, p.place);
  }
  ++p.holders;
}

void WindowPages::release(int32_t page) {
  Page& p = pages_.at(index(page));
  if (p.holders == 0) throw std::logic_error("a windowed KV page is released that nobody holds");
  if (--p.holders == 0) idle_.splice(idle_.end(), others_, p.place);
}

void WindowPages::forget(int32_t page) {
  Page& p = pages_.at(index(page));
  if (p.holders > 0) throw std::logic_error("a windowed KV page is freed that somebody holds");
  if (p.frame < 0) return;
  others_.splice(others_.end(), idle_, p.place);
  free_.push_back(p.frame);
  p.frame = -1;
}

int32_t WindowPages::take_frame() {
  if (free_.empty() && n_used_ < n_frames_) return n_used_++;
  if (free_.empty()) {
    if (idle_.empty()) throw std::logic_error("all frames of windowed KV pages are held");
    forget(idle_.front());
  }
  const int32_t frame = free_.back();
  free_.pop_back();
  return frame;
}

}  // namespace faststream
