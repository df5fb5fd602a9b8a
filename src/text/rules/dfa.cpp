#include "text/rules/dfa.h"

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "support/error.h"
#include "text/rules/automaton.h"
#include "text/rules/machine.h"
#include "text/rules/predecessors.h"
#include "text/rules/token_trie.h"

namespace faststream::rules {
namespace {

constexpr size_t kMostMeanings = 4000000;  // of all states, which a pattern can make many

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

}  // namespace

Dfa::Dfa(const Expr& expr, WorkBudget& budget) {
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
  std::vector<int32_t> known;  // by the machine's state; 0: none yet, or kDead
  std::vector<Machine::State> states = {Machine::kDead};
  const auto number = [&](Machine::State state) {
    if (state == Machine::kDead) return 0;
    const auto s = static_cast<size_t>(state);
    if (known.size() <= s) known.resize(s + 1, 0);
    if (known[s] == 0) {
      known[s] = static_cast<int32_t>(states.size());
      states.push_back(state);
    }
    return known[s];
  };
  start_ = number(machine.start());
  for (size_t s = 0; s < states.size(); ++s) {
    if (s > kMaxDfaStates || machine.states_length() > kMostMeanings) refuse_size();
    accepting_.push_back(machine.is_complete(states[s]));
    for (size_t c = 0; c < n_classes_; ++c) {
      const size_t before = machine.work();
      next_.push_back(s == 0 ? 0 : number(machine.next(states[s], automaton.of_class()[c])));
      budget.spend(1 + machine.work() - before);
    }
  }
}

bool Dfa::accepts(std::string_view text) const {
  int32_t state = start_;
  for (const char byte : text) state = next(state, static_cast<uint8_t>(byte));
  return accepting_[static_cast<size_t>(state)];
}

std::vector<bool> Dfa::live() const {
  const Predecessors before(size(), [this](const auto& task) {
    for (size_t i = 0; i < next_.size(); ++i) task(i / n_classes_, static_cast<size_t>(next_[i]));
  });
  std::vector<bool> live = accepting_;
  std::vector<size_t> found;
  for (size_t s = 0; s < size(); ++s) {
    if (live[s]) found.push_back(s);
  }
  while (!found.empty()) {
    const size_t state = found.back();
    found.pop_back();
    for (const int32_t s : before.of(state)) {
      if (live[static_cast<size_t>(s)]) continue;
      live[static_cast<size_t>(s)] = true;
      found.push_back(static_cast<size_t>(s));
    }
  }
  return live;
}

bool Dfa::is_nothing() const { return !live()[static_cast<size_t>(start_)]; }

Dfa Dfa::product(const Dfa& other, bool negated, WorkBudget& budget) const {
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
  std::unordered_map<size_t, int32_t> known;
  std::vector<std::pair<int32_t, int32_t>> states = {{0, 0}};
  const auto number = [&](std::pair<int32_t, int32_t> pair) {
    if (pair.first == 0 || (pair.second == 0 && !negated)) return 0;
    const size_t key =
        static_cast<size_t>(pair.first) * other.size() + static_cast<size_t>(pair.second);
    const auto [found, is_new] = known.try_emplace(key, static_cast<int32_t>(states.size()));
    if (is_new) states.push_back(pair);
    return found->second;
  };
  result.start_ = number({start_, other.start_});
  for (size_t s = 0; s < states.size(); ++s) {
    if (s > kMaxDfaStates) refuse_size();
    budget.spend(result.n_classes_);
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
  std::vector<ByteSet> of_class(n_classes_);
  for (size_t byte = 0; byte < class_of_.size(); ++byte) {
    of_class[class_of_.at(byte)].add(static_cast<uint8_t>(byte));
  }
  std::map<int32_t, ByteSet> targets;
  for (size_t s = 0; s < size(); ++s) {
    if (!lives[s]) continue;
    if (accepting_[s]) graph.accepting.push_back(place(static_cast<int32_t>(s)));
    targets.clear();
    for (size_t c = 0; c < n_classes_; ++c) {
      const int32_t to = next_[s * n_classes_ + c];
      if (lives[static_cast<size_t>(to)]) targets[to].add(of_class[c]);
    }
    for (const auto& [to, bytes] : targets) {
      graph.edges.push_back({place(static_cast<int32_t>(s)), place(to), bytes});
    }
  }
  return graph;
}

Graph Dfa::json_graph(WorkBudget& budget) const {
  budget.spend(next_.size());
  Graph graph = this->graph();
  std::vector<Graph::Edge> edges;
  std::swap(edges, graph.edges);
  const auto add = [&graph](int32_t from, const ByteSet& bytes) {
    graph.edges.push_back({from, graph.n_states, bytes});
    return graph.n_states++;
  };
  const auto add_escapes = [&](const Escapes& escapes, int32_t to) {
    const int32_t escape = graph.n_states++;
    if (!escapes.letters.is_empty()) graph.edges.push_back({escape, to, escapes.letters});
    if (!escapes.has_digits()) return escape;
    const int32_t zeros = add(add(add(escape, one_byte('u')), one_byte('0')), one_byte('0'));
    for (size_t high = 0; high < escapes.digits.size(); ++high) {
      if (escapes.digits.at(high).is_empty()) continue;
      const int32_t last = add(zeros, one_byte(high == 0 ? '0' : '1'));
      graph.edges.push_back({last, to, escapes.digits.at(high)});
    }
    return escape;
  };
  // Behind the backslash, of edges that lead to the same state with the same bytes; most do.
  std::map<std::pair<int32_t, ByteSet>, int32_t> escape_states;
  std::map<ByteSet, Escapes> known;
  for (const Graph::Edge& edge : edges) {
    const Escapes& escapes = known.try_emplace(edge.bytes, edge.bytes).first->second;
    if (!escapes.first.is_empty()) graph.edges.push_back({edge.from, edge.to, escapes.first, true});
    if (!escapes.later.is_empty()) graph.edges.push_back({edge.from, edge.to, escapes.later});
    if (!escapes.is_any()) continue;
    const auto [state, is_new] = escape_states.try_emplace({edge.to, edge.bytes}, 0);
    if (is_new) state->second = add_escapes(escapes, edge.to);
    graph.edges.push_back({edge.from, state->second, one_byte('\\'), true});
  }
  return graph;
}

}  // namespace faststream::rules
