#include "text/charsmap.h"

#include <algorithm>
#include <cstring>

#include "support/utf8.h"

namespace faststream {
namespace {

// The units of darts-clone's double array.
bool has_leaf(uint32_t unit) { return (unit & 0x100U) != 0; }
uint32_t label(uint32_t unit) { return unit & 0x800000FFU; }  // a leaf's is none of a byte
uint32_t value(uint32_t unit) { return unit & 0x7FFFFFFFU; }
size_t offset(uint32_t unit) { return (unit >> 10) << ((unit & (1U << 9)) >> 6); }

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

/// Walks a trie the way a search can, to prove that no search leaves it.
class TrieWalk {
 public:
  TrieWalk(const std::vector<uint32_t>& units, std::string_view strings)
      : units_(units), is_string_(find_strings(strings)), matches_(units.size(), -1) {}

  /// Whether every search stays inside and gives values where strings are, at most kLongest on one
  /// path.
  bool is_safe() { return !units_.empty() && matches_below(0, 0) >= 0; }

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

  const std::vector<uint32_t>& units_;
  std::vector<bool> is_string_;
  std::vector<int> matches_;  // of matches_below; -1 where not known yet
};

}  // namespace

std::optional<Charsmap> Charsmap::parse(std::string_view bytes) {
  Charsmap map;
  if (bytes.empty()) return map;
  uint32_t trie_size = 0;
  if (bytes.size() <= sizeof trie_size) return std::nullopt;
  std::memcpy(&trie_size, bytes.data(), sizeof trie_size);
  bytes.remove_prefix(sizeof trie_size);
  if (trie_size < sizeof(uint32_t) || trie_size >= bytes.size() || bytes.back() != '\0') {
    return std::nullopt;
  }
  map.units_.resize(trie_size / sizeof(uint32_t));
  std::memcpy(map.units_.data(), bytes.data(), map.units_.size() * sizeof(uint32_t));
  map.strings_ = bytes.substr(trie_size);
  if (!TrieWalk(map.units_, map.strings_).is_safe()) return std::nullopt;
  return map;
}

std::optional<Charsmap::Rule> Charsmap::find(std::string_view text) const {
  if (units_.empty()) return std::nullopt;
  std::optional<Rule> longest;
  size_t node = offset(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    node ^= byte;
    if (label(units_[node]) != byte) break;
    const bool is_rule = has_leaf(units_[node]);
    node ^= offset(units_[node]);
    if (is_rule) longest = {i + 1, strings_.c_str() + value(units_[node])};
  }
  return longest;
}

}  // namespace faststream
