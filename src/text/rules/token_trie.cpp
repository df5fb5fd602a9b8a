#include "text/rules/token_trie.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "support/utf8.h"

namespace faststream::rules {
namespace {

constexpr size_t kMaxTokenBytes = 60000;  // of a depth; longer tokens are never allowed

bool is_json_text(std::string_view text) {
  const bool is_plain = std::ranges::all_of(text, [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte >= 0x20 && byte != '"' && byte != '\\' && byte != 0x7F;
  });
  // Not among U+2000 to U+203F either, where some line ends are, which are no characters for a dot
  // of a regular expression.
  return is_plain && text.find("\xE2\x80") == std::string_view::npos && is_valid_utf8(text);
}

}  // namespace

TokenTrie::TokenTrie(int32_t vocab, const std::function<std::string(int32_t)>& bytes_of)
    : vocab_(vocab), same_(static_cast<size_t>(vocab), -1) {
  text_tokens_.resize(words());
  starts_.push_back(0);
  std::vector<int32_t> sorted;
  for (int32_t token = 0; token < vocab; ++token) {
    bytes_ += bytes_of(token);
    starts_.push_back(bytes_.size());
    const size_t size = bytes(token).size();
    if (size == 0 || size > kMaxTokenBytes) continue;
    sorted.push_back(token);
    depth_ = std::max(depth_, size);
  }
  std::ranges::stable_sort(sorted, [this](int32_t a, int32_t b) { return bytes(a) < bytes(b); });

  std::string_view before[kParts];
  std::vector<size_t> path[kParts];  // nodes that lead to the last token
  int32_t last = -1;
  for (const int32_t token : sorted) {
    const std::string_view text = bytes(token);
    if (last >= 0 && bytes(last) == text) {
      same_[static_cast<size_t>(last)] = token;
      last = token;
      continue;
    }
    last = token;
    const Part part = text.size() > kShortToken ? kLong : is_json_text(text) ? kText : kOthers;
    size_t n_common = 0;
    const size_t n_most = std::min(text.size(), before[part].size());
    while (n_common < n_most && text[n_common] == before[part][n_common]) ++n_common;
    std::vector<Entry>& nodes = parts_[part];
    for (; path[part].size() > n_common; path[part].pop_back()) {
      nodes[path[part].back()].end = static_cast<uint32_t>(nodes.size());
    }
    for (size_t i = n_common; i < text.size(); ++i) {
      path[part].push_back(nodes.size());
      nodes.push_back({.depth = static_cast<uint16_t>(i), .byte = static_cast<uint8_t>(text[i])});
    }
    nodes.back().token = token;
    before[part] = text;
  }
  for (int part = 0; part < kParts; ++part) {
    for (; !path[part].empty(); path[part].pop_back()) {
      parts_[part][path[part].back()].end = static_cast<uint32_t>(parts_[part].size());
    }
  }
  for (int part = 0; part < kParts; ++part) {
    std::array<uint32_t, 257>& starts = starts_of_parts_[part];
    for (size_t i = 0; i < parts_[part].size(); i = parts_[part][i].end) {
      starts.at(parts_[part][i].byte + size_t{1}) = parts_[part][i].end;
    }
    for (size_t byte = 1; byte < starts.size(); ++byte) {
      starts.at(byte) = std::max(starts.at(byte), starts.at(byte - 1));
    }
  }
  for (const Entry& entry : parts_[kText]) {
    if (entry.token >= 0) add(entry.token, text_tokens_);
  }
  const auto is_byte = [](const Entry& entry) { return entry.depth == 0 && entry.token >= 0; };
  has_all_bytes_ = std::ranges::count_if(parts_[kText], is_byte) +
                       std::ranges::count_if(parts_[kOthers], is_byte) ==
                   256;
}

TokenTrie::Beginning TokenTrie::begin(std::string_view text) const {
  Beginning found;
  size_t length = 0;
  for (const std::vector<Entry>& nodes : parts_) {
    size_t depth = 0;
    size_t first = 0;  // of the nodes below those that the text has led to
    size_t last = nodes.size();
    while (first < last && depth < text.size()) {
      const Entry& node = nodes[first];
      if (node.byte != static_cast<uint8_t>(text[depth])) {
        first = node.end;
        continue;
      }
      ++depth;
      if (node.token >= 0 && depth > length) {
        found.token = node.token;
        length = depth;
      }
      last = node.end;
      ++first;
    }
    if (depth < text.size()) continue;
    for (; first < last; first = nodes[first].end) found.beyond.add(nodes[first].byte);
  }
  // Of tokens with the same bytes the last: those that stand for bytes as such come first.
  for_each_alike(found.token, [&](int32_t token) { found.token = token; });
  return found;
}

}  // namespace faststream::rules
