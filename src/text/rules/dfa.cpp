#include "text/rules/dfa.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "support/error.h"
#include "text/rules/automaton.h"
#include "text/rules/machine.h"
#include "text/rules/token_trie.h"

namespace faststream::rules {
namespace {

constexpr size_t kMostMeanings = 1000000;  // of all states, which a pattern can make many

[[noreturn]] void refuse_size() {
  throw Error("a pattern, or a combination of patterns and lengths, needs more than " +
              std::to_string(kMaxDfaStates) + " states; make it smaller");
}

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

ByteSet hex_digits(uint8_t digit) {
  constexpr std::string_view kLower = "0123456789abcdef";
  constexpr std::string_view kUpper = "0123456789ABCDEF";
  ByteSet set;
  set.add(static_cast<uint8_t>(kLower.at(digit)));
  set.add(static_cast<uint8_t>(kUpper.at(digit)));
  return set;
}

ByteSet one_byte(char c) { return {static_cast<uint8_t>(c), static_cast<uint8_t>(c)}; }

}  // namespace

Dfa::Dfa(const Expr& expr) {
  if (expr->kind == Node::Kind::nothing) {
    next_ = {0};
    accepting_ = {false};
    return;
  }
  const Automaton automaton({{{"pattern", expr}}});
  const TokenTrie no_tokens(0, [](int32_t) { return std::string(); });
  Machine machine(automaton, no_tokens);
  class_of_ = automaton.class_of();
  n_classes_ = static_cast<size_t>(automaton.n_classes());
  // The machine's states are numbered in the order in which they are found; so are these.
  std::map<Machine::State, int32_t> known = {{Machine::kDead, 0}};
  std::vector<Machine::State> states = {Machine::kDead};
  const auto number = [&](Machine::State state) {
    const auto [found, is_new] = known.try_emplace(state, static_cast<int32_t>(states.size()));
    if (is_new) states.push_back(state);
    return found->second;
  };
  start_ = number(machine.start());
  for (size_t s = 0; s < states.size(); ++s) {
    if (s > kMaxDfaStates || machine.states_length() > kMostMeanings) refuse_size();
    accepting_.push_back(machine.is_complete(states[s]));
    for (size_t c = 0; c < n_classes_; ++c) {
      next_.push_back(s == 0 ? 0 : number(machine.next(states[s], automaton.of_class()[c])));
    }
  }
}

bool Dfa::accepts(std::string_view text) const {
  int32_t state = start_;
  for (const char byte : text) state = next(state, static_cast<uint8_t>(byte));
  return accepting_[static_cast<size_t>(state)];
}

std::vector<bool> Dfa::live() const {
  std::vector<std::vector<int32_t>> before(size());
  for (size_t i = 0; i < next_.size(); ++i) {
    before[static_cast<size_t>(next_[i])].push_back(static_cast<int32_t>(i / n_classes_));
  }
  std::vector<bool> live = accepting_;
  std::vector<size_t> found;
  for (size_t s = 0; s < size(); ++s) {
    if (live[s]) found.push_back(s);
  }
  while (!found.empty()) {
    const size_t state = found.back();
    found.pop_back();
    for (const int32_t s : before[state]) {
      if (live[static_cast<size_t>(s)]) continue;
      live[static_cast<size_t>(s)] = true;
      found.push_back(static_cast<size_t>(s));
    }
  }
  return live;
}

bool Dfa::is_nothing() const { return !live()[static_cast<size_t>(start_)]; }

Dfa Dfa::product(const Dfa& other, bool negated) const {
  Dfa result;
  std::map<std::pair<uint8_t, uint8_t>, uint8_t> classes;
  std::vector<uint8_t> of_class;
  for (size_t byte = 0; byte < class_of_.size(); ++byte) {
    const auto [found, is_new] = classes.try_emplace({class_of_.at(byte), other.class_of_.at(byte)},
                                                     static_cast<uint8_t>(classes.size()));
    if (is_new) of_class.push_back(static_cast<uint8_t>(byte));
    result.class_of_.at(byte) = found->second;
  }
  result.n_classes_ = of_class.size();
  std::map<std::pair<int32_t, int32_t>, int32_t> known;
  std::vector<std::pair<int32_t, int32_t>> states = {{0, 0}};
  const auto number = [&](std::pair<int32_t, int32_t> pair) {
    if (pair.first == 0 || (pair.second == 0 && !negated)) return 0;
    const auto [found, is_new] = known.try_emplace(pair, static_cast<int32_t>(states.size()));
    if (is_new) states.push_back(pair);
    return found->second;
  };
  result.start_ = number({start_, other.start_});
  for (size_t s = 0; s < states.size(); ++s) {
    if (s > kMaxDfaStates) refuse_size();
    const auto [a, b] = states[s];
    result.accepting_.push_back(accepting_[static_cast<size_t>(a)] &&
                                other.accepting_[static_cast<size_t>(b)] != negated);
    for (const uint8_t byte : of_class) {
      result.next_.push_back(s == 0 ? 0 : number({next(a, byte), other.next(b, byte)}));
    }
  }
  return result;
}

Graph Dfa::graph() const {
  const std::vector<bool> lives = live();
  Graph graph;
  // The start comes first, and changes places with state 0, which is not needed.
  const auto place = [this](int32_t state) { return state == start_ ? 0 : state; };
  graph.n_states = static_cast<int32_t>(size());
  for (size_t s = 0; s < size(); ++s) {
    if (!lives[s]) continue;
    if (accepting_[s]) graph.accepting.push_back(place(static_cast<int32_t>(s)));
    std::map<int32_t, ByteSet> targets;
    for (size_t byte = 0; byte < class_of_.size(); ++byte) {
      const int32_t to = next(static_cast<int32_t>(s), static_cast<uint8_t>(byte));
      if (lives[static_cast<size_t>(to)]) targets[to].add(static_cast<uint8_t>(byte));
    }
    for (const auto& [to, bytes] : targets) {
      graph.edges.push_back({place(static_cast<int32_t>(s)), place(to), bytes});
    }
  }
  return graph;
}

Graph Dfa::json_graph() const {
  Graph graph = this->graph();
  std::vector<Graph::Edge> edges;
  std::swap(edges, graph.edges);
  const auto add = [&graph](int32_t from, const ByteSet& bytes) {
    graph.edges.push_back({from, graph.n_states, bytes});
    return graph.n_states++;
  };
  for (const Graph::Edge& edge : edges) {
    ByteSet plain = edge.bytes;
    ByteSet letters;                // of short escapes
    std::array<ByteSet, 2> digits;  // the last ones of \u000. and \u001.
    for (uint8_t byte = 0; byte < 0x80; ++byte) {
      const char letter = escape_letter(byte);
      if (letter == 0 || !edge.bytes.has(byte)) continue;
      plain.remove(byte);
      if (letter != 'u') {
        letters.add(static_cast<uint8_t>(letter));
      } else {
        for (uint8_t digit = 0; digit < 16; ++digit) {
          const ByteSet same = hex_digits(digit);
          if (byte % 16 != digit) continue;
          for (int b = 0; b < 0x80; ++b) {
            if (same.has(static_cast<uint8_t>(b)))
              digits.at(byte / 16).add(static_cast<uint8_t>(b));
          }
        }
      }
    }
    if (!plain.is_empty()) graph.edges.push_back({edge.from, edge.to, plain});
    const bool has_digits = !digits[0].is_empty() || !digits[1].is_empty();
    if (letters.is_empty() && !has_digits) continue;
    const int32_t escape = add(edge.from, one_byte('\\'));
    if (!letters.is_empty()) graph.edges.push_back({escape, edge.to, letters});
    if (!has_digits) continue;
    const int32_t zeros = add(add(add(escape, one_byte('u')), one_byte('0')), one_byte('0'));
    for (size_t high = 0; high < digits.size(); ++high) {
      if (digits.at(high).is_empty()) continue;
      const int32_t last = add(zeros, one_byte(high == 0 ? '0' : '1'));
      graph.edges.push_back({last, edge.to, digits.at(high)});
    }
  }
  return graph;
}

}  // namespace faststream::rules
