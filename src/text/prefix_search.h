// Which of many strings a text begins with.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace faststream {

/// Strings, each with an id, in order; a search narrows the range of those that share the text's
/// first bytes, byte by byte. The strings' owner must outlive it.
class PrefixSearch {
 public:
  struct Entry {
    std::string_view text;  ///< not empty, different from all others
    int32_t id;
  };

  explicit PrefixSearch(std::vector<Entry> entries) : entries_(std::move(entries)) {
    std::sort(entries_.begin(), entries_.end(),
              [](const Entry& a, const Entry& b) { return a.text < b.text; });
  }

  /// Calls found(length, id) for each string that `text` begins with, the shortest first.
  template <typename Found>
  void search(std::string_view text, Found&& found) const {
    auto first = entries_.begin();
    auto last = entries_.end();
    for (size_t depth = 0; first != last && depth < text.size(); ++depth) {
      const auto byte = static_cast<unsigned char>(text[depth]);
      const auto at_depth = [depth](const Entry& entry) {  // a string that ends here comes first
        return entry.text.size() == depth ? -1 : static_cast<unsigned char>(entry.text[depth]);
      };
      first = std::partition_point(first, last, [&](const Entry& e) { return at_depth(e) < byte; });
      last = std::partition_point(first, last, [&](const Entry& e) { return at_depth(e) == byte; });
      if (first != last && first->text.size() == depth + 1) found(depth + 1, first->id);
    }
  }

  /// The length of the longest string that `text` begins with, or 0.
  [[nodiscard]] size_t longest(std::string_view text) const {
    size_t longest = 0;
    search(text, [&](size_t length, int32_t) { longest = length; });
    return longest;
  }

 private:
  std::vector<Entry> entries_;
};

}  // namespace faststream
