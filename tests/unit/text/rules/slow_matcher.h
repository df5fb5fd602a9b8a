// Whether a text fits a grammar, by trying everything.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "text/rules/expression.h"

namespace faststream::rules {

/// For grammars of which each part fits some text, and that are not left-recursive.
class SlowMatcher {
 public:
  SlowMatcher(const Grammar& grammar, std::string_view text) : grammar_(grammar), text_(text) {
    is_whole_ = ends(*grammar.rules.front().expr, 0).contains(text.size());
  }
  [[nodiscard]] bool is_whole() const { return is_whole_; }
  /// Whether some text that fits begins with this one.
  [[nodiscard]] bool is_beginning() const { return is_whole_ || wanted_more_; }

 private:
  using Ends = std::set<size_t>;

  Ends ends(const Node& node, size_t at) {
    const auto known = known_.find({&node, at});
    if (known != known_.end()) return known->second;
    return known_[{&node, at}] = find_ends(node, at);
  }

  Ends find_ends(const Node& node, size_t at) {
    switch (node.kind) {
      case Node::Kind::bytes:
        if (at == text_.size()) wanted_more_ = true;
        if (at == text_.size() || !node.bytes.has(static_cast<uint8_t>(text_[at]))) return {};
        return {at + 1};
      case Node::Kind::literal: {
        const std::string_view rest = text_.substr(at);
        if (rest.size() < node.text.size() && node.text.starts_with(rest)) wanted_more_ = true;
        if (!rest.starts_with(node.text)) return {};
        return {at + node.text.size()};
      }
      case Node::Kind::sequence: {
        Ends now = {at};
        for (const Expr& part : node.parts) now = after(*part, now);
        return now;
      }
      case Node::Kind::choice: {
        Ends all;
        for (const Expr& part : node.parts) all.merge(ends(*part, at));
        return all;
      }
      case Node::Kind::repeat: {
        Ends now = {at};
        Ends all;
        for (int n = 0; !now.empty() && (node.most < 0 || n <= node.most); ++n) {
          const bool counts = n >= node.least;
          const size_t before = all.size();
          if (counts) all.insert(now.begin(), now.end());
          if (counts && all.size() == before) break;
          if (n != node.most) now = after(*node.parts.front(), now);
        }
        return all;
      }
      case Node::Kind::call:
        return ends(*grammar_.rules[static_cast<size_t>(node.rule)].expr, at);
      default:
        return {};
    }
  }

  Ends after(const Node& node, const Ends& from) {
    Ends all;
    for (const size_t at : from) all.merge(ends(node, at));
    return all;
  }

  const Grammar& grammar_;
  std::string_view text_;
  std::map<std::pair<const Node*, size_t>, Ends> known_;
  bool is_whole_ = false;
  bool wanted_more_ = false;
};

}  // namespace faststream::rules
