#include "text/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace faststream {
namespace {

/// For each length n > 0: the longest k < n such that text[0, n) ends with text[0, k). Where a
/// match of n bytes fails to go on, one of k bytes may (Knuth, Morris and Pratt,
/// doi:10.1137/0206024).
std::vector<size_t> prefix_function(std::string_view text) {
  std::vector<size_t> border(text.size() + 1, 0);
  for (size_t n = 1; n < text.size(); ++n) {
    size_t k = border[n];
    while (k > 0 && text[n] != text[k]) k = border[k];
    border[n + 1] = text[n] == text[k] ? k + 1 : 0;
  }
  return border;
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stops) {
  for (std::string& text : stops) {
    std::vector<size_t> border = prefix_function(text);
    stops_.push_back({.text = std::move(text), .border = std::move(border)});
  }
}

void StopMatcher::advance(Stop& stop, char byte) {
  while (stop.n_matched > 0 && stop.text[stop.n_matched] != byte) {
    stop.n_matched = stop.border[stop.n_matched];
  }
  if (stop.text[stop.n_matched] == byte) ++stop.n_matched;
}

std::string StopMatcher::push(std::string_view text) {
  if (matched_) return "";
  for (const char byte : text) {
    held_ += byte;
    const Stop* found = nullptr;
    for (Stop& stop : stops_) {
      advance(stop, byte);
      const bool ends_here = stop.n_matched == stop.text.size();
      if (ends_here && (found == nullptr || stop.text.size() > found->text.size())) found = &stop;
    }
    if (found != nullptr) {
      matched_ = found->text;
      held_.resize(held_.size() - found->text.size());
      return std::exchange(held_, {});
    }
  }
  size_t keep = 0;
  for (const Stop& stop : stops_) keep = std::max(keep, stop.n_matched);
  std::string done = held_.substr(0, held_.size() - keep);
  held_.erase(0, done.size());
  return done;
}

std::string StopMatcher::finish() {
  for (Stop& stop : stops_) stop.n_matched = 0;
  return std::exchange(held_, {});
}

}  // namespace faststream
