#include "text/tokenizer/charsmap.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace faststream {
namespace {

/// Where in `strings` a zero-terminated string of UTF-8 can begin.
std::vector<bool> find_strings(std::string_view strings) {
  std::vector<bool> begins(strings.size());
  for (size_t at = strings.size(); at-- > 0;) {
    const int length = strings[at] == '\0' ? 0 : utf8_character(strings.substr(at));
    const size_t next = at + static_cast<size_t>(std::max(length, 0));
    begins[at] = strings[at] == '\0' || (length > 0 && next < strings.size() && begins[next]);
  }
  return begins;
}

}  // namespace

/// Walks a trie the way a search can, to prove that no search leaves it.
class Charsmap::Walk {
 public:
  explicit Walk(const Charsmap& map)
      : units_(map.units_), is_string_(find_strings(map.strings_)), matches_(units_.size(), -1) {}

  /// Whether every search stays inside and gives values where strings are, at most kLongest on one
  /// path.
  bool is_safe() { return units_.size() > 0 && matches_below(0, 0) >= 0; }

 private:
  // The library's buffer for the matches of one search; what it counts beyond would be read anyway.
  static constexpr int kLongest = 32;
  static constexpr int kDeepest = 256;

  /// The most matches that a search can meet below `node`, or -1 where one is unsafe.
  int matches_below(size_t node, int depth) {
    if (depth > kDeepest) return -1;
    if (matches_[node] >= 0) return matches_[node];
    const size_t base = node ^ offset(units_[node]);
    if ((base | 0xFF) >= units_.size()) return -1;  // any byte of a text may follow
    int most = 0;
    for (size_t byte = 0; byte < 256; ++byte) {
      const size_t child = base ^ byte;
      if (label(units_[child]) != byte) continue;
      int matches = 0;
      if (has_leaf(units_[child])) {
        const size_t leaf = child ^ offset(units_[child]);
        if (leaf >= units_.size() || value(units_[leaf]) >= is_string_.size() ||
            !is_string_[value(units_[leaf])]) {
          return -1;
        }
        matches = 1;
      }
      const int below = matches_below(child, depth + 1);
      if (below < 0) return -1;
      most = std::max(most, matches + below);
    }
    if (most > kLongest) return -1;
    matches_[node] = most;
    return most;
  }

  const TableArray<uint32_t>& units_;
  std::vector<bool> is_string_;
  std::vector<int> matches_;  // of matches_below; -1 where not known yet
};

Charsmap::Charsmap(std::string_view bytes) {
  uint32_t trie_size = 0;
  if (bytes.size() <= sizeof trie_size) return;
  std::memcpy(&trie_size, bytes.data(), sizeof trie_size);
  bytes.remove_prefix(sizeof trie_size);
  if (trie_size > bytes.size()) return;
  units_ = TableArray<uint32_t>(bytes.substr(0, trie_size));
  strings_ = bytes.substr(trie_size);
}

bool Charsmap::is_sound(std::string_view bytes) {
  if (bytes.empty()) return true;
  const Charsmap map(bytes);
  return !map.strings_.empty() && map.strings_.back() == '\0' && Walk(map).is_safe();
}

}  // namespace faststream
