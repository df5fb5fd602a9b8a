#include "text/rules/json_escapes.h"

#include <array>
#include <cstdint>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace faststream::rules {
namespace {

// The escape of a byte that JSON strings do not have as it is, after the backslash; 'u' for all
// that have no letter.
char escape_letter(uint8_t byte) {
  switch (byte) {
    case '"':
      return '"';
    case '\\':
      return '\\';
    case '\b':
      return 'b';
    case '\f':
      return 'f';
    case '\n':
      return 'n';
    case '\r':
      return 'r';
    case '\t':
      return 't';
    default:
      return byte < 0x20 ? 'u' : 0;
  }
}

ByteSet one_byte(char c) { return {static_cast<uint8_t>(c), static_cast<uint8_t>(c)}; }

// Bytes of a string's text as JSON has them.
struct Escapes {
  ByteSet first;                  // as they are, of those that a character begins with
  ByteSet later;                  // the others, as they are
  ByteSet letters;                // of short escapes
  std::array<ByteSet, 2> digits;  // the last ones of \u000. and \u001.

  explicit Escapes(const ByteSet& bytes) : first(bytes) {
    constexpr std::string_view kLower = "0123456789abcdef";
    constexpr std::string_view kUpper = "0123456789ABCDEF";
    for (uint8_t byte = 0; byte < 0x80; ++byte) {
      const char letter = escape_letter(byte);
      if (letter == 0 || !bytes.has(byte)) continue;
      first.remove(byte);
      if (letter != 'u') {
        letters.add(static_cast<uint8_t>(letter));
        continue;
      }
      for (const std::string_view all : {kLower, kUpper}) {
        digits.at(byte / 16).add(static_cast<uint8_t>(all.at(byte % 16)));
      }
    }
    for (uint8_t byte = 0x80; byte < 0xC0; ++byte) {
      if (!bytes.has(byte)) continue;
      first.remove(byte);
      later.add(byte);
    }
  }
  [[nodiscard]] bool has_digits() const { return !digits[0].is_empty() || !digits[1].is_empty(); }
  [[nodiscard]] bool is_any() const { return !letters.is_empty() || has_digits(); }
};

class Escaper {
 public:
  explicit Escaper(const Graph& text) {
    graph_.n_states = text.n_states;
    graph_.accepting = text.accepting;
    graph_.edges.reserve(text.edges.size() + text.edges.size() / 2);
    for (const Graph::Edge& edge : text.edges) add(edge);
  }
  [[nodiscard]] Graph take() { return std::move(graph_); }

 private:
  struct Known {
    Escapes escapes;
    int32_t kind = 0;  // alike for sets with the same escapes
  };

  void add(const Graph::Edge& edge) {
    const Known& known = known_of(edge.bytes);
    const Escapes& escapes = known.escapes;
    if (!escapes.first.is_empty()) {
      graph_.edges.push_back({edge.from, edge.to, escapes.first, true});
    }
    if (!escapes.later.is_empty()) graph_.edges.push_back({edge.from, edge.to, escapes.later});
    if (!escapes.is_any()) return;
    const uint64_t key = static_cast<uint64_t>(edge.to) << 32U | static_cast<uint32_t>(known.kind);
    const auto [state, is_new] = states_.try_emplace(key, 0);
    if (is_new) state->second = add_escapes(escapes, edge.to);
    graph_.edges.push_back({edge.from, state->second, one_byte('\\'), true});
  }

  const Known& known_of(const ByteSet& bytes) {
    const auto found = known_.find(bytes);
    if (found != known_.end()) return found->second;
    const Escapes escapes(bytes);
    const auto next = static_cast<int32_t>(kinds_.size());
    const auto kind = kinds_.try_emplace({escapes.letters, escapes.digits}, next).first;
    return known_.emplace(bytes, Known{escapes, kind->second}).first->second;
  }

  int32_t add_edge(int32_t from, const ByteSet& bytes) {
    graph_.edges.push_back({from, graph_.n_states, bytes});
    return graph_.n_states++;
  }

  // The state behind the backslash.
  int32_t add_escapes(const Escapes& escapes, int32_t to) {
    const int32_t escape = graph_.n_states++;
    if (!escapes.letters.is_empty()) graph_.edges.push_back({escape, to, escapes.letters});
    if (!escapes.has_digits()) return escape;
    int32_t zeros = add_edge(escape, one_byte('u'));
    for (int i = 0; i < 2; ++i) zeros = add_edge(zeros, one_byte('0'));
    for (size_t high = 0; high < escapes.digits.size(); ++high) {
      if (escapes.digits.at(high).is_empty()) continue;
      const int32_t last = add_edge(zeros, one_byte(high == 0 ? '0' : '1'));
      graph_.edges.push_back({last, to, escapes.digits.at(high)});
    }
    return escape;
  }

  Graph graph_;
  std::unordered_map<ByteSet, Known> known_;
  std::map<std::pair<ByteSet, std::array<ByteSet, 2>>, int32_t> kinds_;
  std::unordered_map<uint64_t, int32_t> states_;  // behind a backslash, by state and kind
};

}  // namespace

Graph json_escaped(const Graph& text) { return Escaper(text).take(); }

}  // namespace faststream::rules
