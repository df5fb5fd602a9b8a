#include "text/rules/expression.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace faststream::rules {
namespace {

Expr make(Node node) { return std::make_shared<const Node>(std::move(node)); }

// The bytes of a code point; returns how many.
size_t encode_code_point(uint32_t code, std::array<uint8_t, 4>& to) {
  const auto tail = [code](int shift) {
    return static_cast<uint8_t>(0x80U | (code >> static_cast<unsigned>(shift) & 0x3FU));
  };
  if (code < 0x80) {
    to[0] = static_cast<uint8_t>(code);
    return 1;
  }
  if (code < 0x800) {
    to[0] = static_cast<uint8_t>(0xC0U | code >> 6U);
    to[1] = tail(0);
    return 2;
  }
  if (code < 0x10000) {
    to[0] = static_cast<uint8_t>(0xE0U | code >> 12U);
    to[1] = tail(6);
    to[2] = tail(0);
    return 3;
  }
  to[0] = static_cast<uint8_t>(0xF0U | code >> 18U);
  to[1] = tail(12);
  to[2] = tail(6);
  to[3] = tail(0);
  return 4;
}

// The range's last code point whose spelling differs from the first's only in the last `n` bytes.
uint32_t block_end(uint32_t code, unsigned n) { return code | ((1U << 6U * n) - 1U); }

// Adds sequences of byte sets for a range of one length of UTF-8, split so that each byte's set is
// independent of the others (Russ Cox, "Regular Expression Matching in the Wild", 2010).
void add_range(uint32_t first, uint32_t last, std::vector<Expr>& choices) {
  for (unsigned n = 1; n < 4; ++n) {
    const uint32_t mask = (1U << 6U * n) - 1U;
    if ((first & ~mask) == (last & ~mask) || last < 0x80) continue;
    if ((first & mask) != 0) {
      add_range(first, block_end(first, n), choices);
      add_range(block_end(first, n) + 1, last, choices);
      return;
    }
    if ((last & mask) != mask) {
      add_range(first, (last & ~mask) - 1, choices);
      add_range(last & ~mask, last, choices);
      return;
    }
  }
  std::array<uint8_t, 4> low = {};
  std::array<uint8_t, 4> high = {};
  const size_t n_bytes = encode_code_point(first, low);
  encode_code_point(last, high);
  std::vector<Expr> parts;
  for (size_t i = 0; i < n_bytes; ++i) parts.push_back(bytes(ByteSet(low.at(i), high.at(i))));
  choices.push_back(sequence(std::move(parts)));
}

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
  for (Expr& part : parts) {
    if (is_nothing(part)) return part;
    if (is_empty_text(part)) continue;
    const bool joins = part->kind == Node::Kind::literal && !kept.empty() &&
                       kept.back()->kind == Node::Kind::literal;
    if (joins) {
      kept.back() = literal(kept.back()->text + part->text);
    } else {
      kept.push_back(std::move(part));
    }
  }
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
  constexpr std::array<uint32_t, 4> kLastOfLength = {0x7F, 0x7FF, 0xFFFF, kLastCodePoint};
  ByteSet ascii;
  std::vector<Expr> choices;
  for (const CodeRange& range : normalized(ranges)) {
    uint32_t first = range.first;
    for (const uint32_t last_of_length : kLastOfLength) {
      const uint32_t last = std::min(range.last, last_of_length);
      if (first > last) continue;
      if (last <= kLastOfLength[0]) {
        for (uint32_t code = first; code <= last; ++code) ascii.add(static_cast<uint8_t>(code));
      } else {
        add_range(first, last, choices);
      }
      first = last + 1;
    }
  }
  choices.insert(choices.begin(), bytes(ascii));
  return choice(std::move(choices));
}

}  // namespace faststream::rules
