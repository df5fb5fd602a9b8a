#include "text/rules/expression.h"

#include <algorithm>
#include <array>
#include <map>

#include "support/utf8.h"

namespace faststream::rules {
namespace {

Expr make(Node node) { return std::make_shared<const Node>(std::move(node)); }

// Characters in UTF-8 as a deterministic automaton, as small as can be: what may follow the same
// bytes is one state.
class CharacterGraph {
 public:
  /// ranges: normalized().
  explicit CharacterGraph(std::span<const CodeRange> ranges) {
    graph_.n_states = 2;
    graph_.accepting = {kEnd};
    uint32_t first = 0;
    for (unsigned n_more = 0; n_more < kLengths.size(); ++n_more) {  // bytes after the first
      const auto [last, prefix] = kLengths.at(n_more);
      Codes codes;
      for (const CodeRange& range : ranges) add(range.first, range.last, first, last, codes);
      add_edges(0, prefix, n_more, codes);
      first = last + 1;
    }
  }
  [[nodiscard]] Graph take() { return std::move(graph_); }

 private:
  using Codes = std::vector<std::pair<uint32_t, uint32_t>>;
  static constexpr int32_t kEnd = 1;
  // By bytes: the last code, and the bits that the first byte has beside its part of the code.
  static constexpr std::array<std::pair<uint32_t, uint8_t>, 4> kLengths = {
      {{0x7F, 0}, {0x7FF, 0xC0}, {0xFFFF, 0xE0}, {kLastCodePoint, 0xF0}}};

  // Adds what codes have in common with those from `low` to `high`.
  static void add(uint32_t first, uint32_t last, uint32_t low, uint32_t high, Codes& to) {
    first = std::max(first, low);
    last = std::min(last, high);
    if (first <= last) to.emplace_back(first, last);
  }

  // A byte of the codes' first bits, and of `n_more` times six others what follows.
  void add_edges(int32_t from, uint8_t prefix, unsigned n_more, const Codes& codes) {
    const unsigned bits = 6 * n_more;
    std::map<uint32_t, Codes> below;  // by the first bits
    for (const auto& [first, last] : codes) {
      for (uint32_t digit = first >> bits; digit <= last >> bits; ++digit) {
        const uint32_t start = digit << bits;
        add(first, last, start, start + (1U << bits) - 1, below[digit]);
      }
    }
    std::map<int32_t, ByteSet> edges;
    for (auto& [digit, rest] : below) {
      for (auto& [first, last] : rest) {
        first -= digit << bits;
        last -= digit << bits;
      }
      edges[state_before(n_more, rest)].add(static_cast<uint8_t>(prefix | digit));
    }
    for (const auto& [to, bytes] : edges) graph_.edges.push_back({from, to, bytes});
  }

  int32_t state_before(unsigned n_more, const Codes& rest) {
    if (n_more == 0) return kEnd;
    const auto [known, is_new] = states_.try_emplace({n_more, rest}, graph_.n_states);
    if (!is_new) return known->second;
    const int32_t state = graph_.n_states++;
    add_edges(state, 0x80, n_more - 1, rest);
    return state;
  }

  Graph graph_;
  std::map<std::pair<unsigned, Codes>, int32_t> states_;
};

}  // namespace

Expr nothing() { return make({.kind = Node::Kind::nothing}); }
Expr literal(std::string_view text) {
  return make({.kind = Node::Kind::literal, .text = std::string(text)});
}
Expr bytes(const ByteSet& set) {
  if (set.is_empty()) return nothing();
  return make({.kind = Node::Kind::bytes, .bytes = set});
}
Expr call(int32_t rule) { return make({.kind = Node::Kind::call, .rule = rule}); }
Expr graph(std::shared_ptr<const Graph> graph) {
  return make({.kind = Node::Kind::graph, .graph = std::move(graph)});
}

Expr counted_graph(std::shared_ptr<const Graph> graph, int32_t least, int32_t most) {
  return std::make_shared<Node>(
      Node{.kind = Node::Kind::graph, .least = least, .most = most, .graph = std::move(graph)});
}
Expr mark(Node::Kind kind) { return make({.kind = kind}); }

void Net::add(int32_t from, int32_t to, Expr part) {
  if (is_nothing(part)) return;
  parts_.push_back(std::move(part));
  ends_.emplace_back(from, to);
}

Expr Net::expr() && {
  std::vector<bool> leads(static_cast<size_t>(n_states_), false);
  leads[static_cast<size_t>(n_states_ - 1)] = true;
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = ends_.size(); i-- > 0;) {
      if (!leads[static_cast<size_t>(ends_[i].second)]) continue;
      const auto from = static_cast<size_t>(ends_[i].first);
      changed = changed || !leads[from];
      leads[from] = true;
    }
  }
  if (!leads.front()) return nothing();
  return make({.kind = Node::Kind::net,
               .parts = std::move(parts_),
               .n_states = n_states_,
               .ends = std::move(ends_)});
}

bool is_nothing(const Expr& expr) { return expr->kind == Node::Kind::nothing; }
bool is_empty_text(const Expr& expr) {
  return expr->kind == Node::Kind::literal && expr->text.empty();
}

Expr sequence(std::vector<Expr> parts) {
  std::vector<Expr> kept;
  std::string text;  // of literals in a row
  const auto keep_text = [&] {
    if (!text.empty()) kept.push_back(literal(std::exchange(text, {})));
  };
  for (Expr& part : parts) {
    if (is_nothing(part)) return part;
    if (part->kind == Node::Kind::literal) {
      text += part->text;
      continue;
    }
    keep_text();
    kept.push_back(std::move(part));
  }
  keep_text();
  if (kept.empty()) return literal("");
  if (kept.size() == 1) return kept.front();
  return make({.kind = Node::Kind::sequence, .parts = std::move(kept)});
}

Expr choice(std::vector<Expr> parts) {
  std::erase_if(parts, is_nothing);
  if (parts.empty()) return nothing();
  if (parts.size() == 1) return parts.front();
  return make({.kind = Node::Kind::choice, .parts = std::move(parts)});
}

Expr repeat(Expr part, int32_t least, int32_t most) {
  if (is_nothing(part) && least > 0) return part;
  if (most == 0 || is_empty_text(part) || is_nothing(part)) return literal("");
  if (least == 1 && most == 1) return part;
  return make(
      {.kind = Node::Kind::repeat, .parts = {std::move(part)}, .least = least, .most = most});
}

Expr optional(Expr part) { return choice({literal(""), std::move(part)}); }
Expr rest(Expr character) {
  return make({.kind = Node::Kind::rest, .parts = {std::move(character)}});
}

std::vector<CodeRange> normalized(std::span<const CodeRange> ranges) {
  constexpr uint32_t kBeforeSurrogates = 0xD7FF;
  constexpr uint32_t kAfterSurrogates = 0xE000;
  std::vector<CodeRange> whole;
  for (const CodeRange& range : ranges) {
    const CodeRange low{range.first, std::min(range.last, kBeforeSurrogates)};
    const CodeRange high{std::max(range.first, kAfterSurrogates),
                         std::min(range.last, kLastCodePoint)};
    if (low.first <= low.last) whole.push_back(low);
    if (high.first <= high.last) whole.push_back(high);
  }
  std::ranges::sort(whole, {}, &CodeRange::first);
  std::vector<CodeRange> joined;
  for (const CodeRange& range : whole) {
    if (!joined.empty() && range.first <= joined.back().last + 1) {
      joined.back().last = std::max(joined.back().last, range.last);
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

std::vector<CodeRange> complement(std::vector<CodeRange> ranges) {
  std::vector<CodeRange> others;
  uint32_t next = 0;
  for (const CodeRange& range : normalized(ranges)) {
    if (range.first > next) others.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCodePoint) others.push_back({next, kLastCodePoint});
  return normalized(others);
}

Expr characters(std::vector<CodeRange> ranges) {
  ranges = normalized(ranges);
  if (ranges.empty()) return nothing();
  if (ranges.size() == 1 && ranges.front().first == ranges.front().last) {
    std::string text;
    append_utf8(text, ranges.front().first);
    return literal(text);
  }
  if (ranges.back().last > 0x7F) {
    return graph(std::make_shared<const Graph>(CharacterGraph(ranges).take()));
  }
  ByteSet ascii;
  for (const CodeRange& range : ranges) {
    ascii.add(ByteSet(static_cast<uint8_t>(range.first), static_cast<uint8_t>(range.last)));
  }
  return bytes(ascii);
}

}  // namespace faststream::rules
