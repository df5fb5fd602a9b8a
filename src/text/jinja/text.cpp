#include "text/jinja/text.h"

#include <algorithm>
#include <utility>

namespace faststream::jinja {

Text::Text(std::string bytes, Origin origin) : bytes_(std::move(bytes)) {
  if (origin != kFromTemplate && !bytes_.empty()) runs_.push_back({bytes_.size(), origin});
}

Origin Text::origin_at(size_t at) const {
  const auto run = std::upper_bound(runs_.begin(), runs_.end(), at,
                                    [](size_t place, const Run& r) { return place < r.end; });
  return run == runs_.end() ? kFromTemplate : run->origin;
}

void Text::append(std::string_view bytes, Origin origin) {
  if (bytes.empty()) return;
  if (runs_.empty() && origin != kFromTemplate && !bytes_.empty()) {
    runs_.push_back({bytes_.size(), kFromTemplate});
  }
  bytes_ += bytes;
  if (runs_.empty() && origin == kFromTemplate) return;
  if (runs_.empty() || runs_.back().origin != origin) runs_.push_back({.end = 0, .origin = origin});
  runs_.back().end = bytes_.size();
}

void Text::append(const Text& other, size_t at, size_t size) {
  if (other.runs_.empty()) return append(other.view().substr(at, size), kFromTemplate);
  const size_t end = at + size;
  auto run = std::upper_bound(other.runs_.begin(), other.runs_.end(), at,
                              [](size_t place, const Run& r) { return place < r.end; });
  for (; at < end; ++run) {
    const size_t next = std::min(run->end, end);
    append(other.view().substr(at, next - at), run->origin);
    at = next;
  }
}

Text Text::substr(size_t at, size_t size) const {
  Text cut;
  at = std::min(at, bytes_.size());
  cut.append(*this, at, std::min(size, bytes_.size() - at));
  return cut;
}

Text Text::part(std::string_view part) const {
  if (part.empty()) return {};
  return substr(static_cast<size_t>(part.data() - bytes_.data()), part.size());
}

}  // namespace faststream::jinja
