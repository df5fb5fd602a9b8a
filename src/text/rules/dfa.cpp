#include "text/rules/dfa.h"

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "support/error.h"
#include "text/rules/automaton.h"
#include "text/rules/json_escapes.h"
#include "text/rules/lists_by_number.h"
#include "text/rules/machine.h"
#include "text/rules/token_trie.h"

namespace faststream::rules {
namespace {

constexpr size_t kMostMeanings = 4000000;  // of all states, which a pattern can make many

}  // namespace

void refuse_dfa_size() {
  throw Error("a pattern, or a combination of patterns and lengths, needs more than " +
              std::to_string(kMaxDfaStates) + " states; make it smaller");
}

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
    if (s > kMaxDfaStates || machine.states_length() > kMostMeanings) refuse_dfa_size();
    accepting_.push_back(machine.is_complete(states[s]));
    for (int32_t c = 0; c < automaton.n_classes(); ++c) {
      const size_t before = machine.work();
      const uint8_t byte = automaton.bytes_of_class(c).front();
      next_.push_back(s == 0 ? 0 : number(machine.next(states[s], byte)));
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
  const ListsByNumber<int32_t> before(size(), [this](const auto& task) {
    for (size_t i = 0; i < next_.size(); ++i) {
      const bool is_again = i % n_classes_ != 0 && next_[i] == next_[i - 1];  // as most are
      if (is_again || next_[i] == 0) continue;
      task(next_[i], static_cast<int32_t>(i / n_classes_));
    }
  });
  std::vector<bool> live = accepting_;
  std::vector<int32_t> found;
  for (size_t s = 0; s < size(); ++s) {
    if (live[s]) found.push_back(static_cast<int32_t>(s));
  }
  while (!found.empty()) {
    const int32_t state = found.back();
    found.pop_back();
    for (const int32_t s : before.of(state)) {
      if (live[static_cast<size_t>(s)]) continue;
      live[static_cast<size_t>(s)] = true;
      found.push_back(s);
    }
  }
  return live;
}

// Every state is reached from the start, but for state 0.
bool Dfa::is_nothing() const { return std::ranges::find(accepting_, true) == accepting_.end(); }

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
    if (s > kMaxDfaStates) refuse_dfa_size();
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
  return json_escaped(graph());
}

}  // namespace faststream::rules
