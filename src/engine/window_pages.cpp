#include "engine/window_pages.h"

#include <algorithm>
#include <stdexcept>

#include "engine/text_pages.h"

namespace faststream {
namespace {

// The page in which the first position is that the token at `position` sees.
int32_t first_page(int64_t position, int64_t window) {
  return static_cast<int32_t>(std::max<int64_t>(position - window + 1, 0) / kPageTokens);
}

}  // namespace

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

bool WindowCache::can_go_on(std::span<const int32_t> pages, int32_t n_tokens) const {
  const auto end = static_cast<size_t>(pages_for(n_tokens));
  const size_t first = std::min(end, static_cast<size_t>(first_page(n_tokens, pages_.window())));
  return std::ranges::all_of(pages.subspan(first, end - first),
                             [&](int32_t page) { return pages_.frame(page) >= 0; });
}

// Holds the pages that the next n_new tokens see and are written to, and lets go of those before.
void WindowCache::move(Sequence& sequence, int32_t n_new) {
  const auto page = [&](int32_t i) { return sequence.pages[static_cast<size_t>(i)]; };
  CacheHold& held = hold(sequence);
  const int32_t end = pages_for(int64_t{sequence.n_cached} + n_new);
  const int32_t first = first_page(sequence.n_cached, pages_.window());
  for (; held.from < std::min(first, held.to); ++held.from) pages_.release(page(held.from));
  held.from = std::max(held.from, first);
  held.to = std::max(held.to, held.from);
  for (; held.to < end; ++held.to) pages_.hold(page(held.to));
}

void WindowCache::fork(const Sequence& /*sequence*/, Sequence& fork) { move(fork, 0); }

void WindowCache::release(Sequence& sequence) {
  CacheHold& held = hold(sequence);
  for (; held.from < held.to; ++held.from) {
    pages_.release(sequence.pages[static_cast<size_t>(held.from)]);
  }
  held = {};
}

bool WindowCache::can_replace(const Sequence& sequence, size_t i, int32_t page) const {
  const CacheHold& held = hold(sequence);
  const auto index = static_cast<int32_t>(i);
  return index < held.from || index >= held.to || pages_.frame(page) >= 0;
}

void WindowCache::replaced(Sequence& sequence, size_t i, int32_t old) {
  const CacheHold& held = hold(sequence);
  const auto index = static_cast<int32_t>(i);
  if (index < held.from || index >= held.to) return;
  pages_.hold(sequence.pages[i]);
  pages_.release(old);
}

std::vector<PageCopy> WindowCache::copies(std::span<const PageCopy> pages) {
  for (const PageCopy& copy : pages) {
    pages_.hold(copy.from);
    pages_.hold(copy.to);
  }
  std::vector<PageCopy> frames(pages.size());
  std::ranges::transform(pages, frames.begin(), [&](const PageCopy& copy) {
    return PageCopy{.from = pages_.frame(copy.from), .to = pages_.frame(copy.to)};
  });
  for (const PageCopy& copy : pages) {
    pages_.release(copy.from);
    pages_.release(copy.to);
  }
  return frames;
}

void WindowCache::pack(std::span<const NewTokens> inputs, Batch& batch) const {
  int32_t* row = add_page_rows(batch, inputs.size());
  for (const NewTokens& input : inputs) {
    const CacheHold& held = hold(*input.sequence);
    for (int32_t i = held.from; i < held.to; ++i) {
      row[i] = pages_.frame(input.sequence->pages[static_cast<size_t>(i)]);
    }
    row += batch.max_pages;
  }
}

}  // namespace faststream
