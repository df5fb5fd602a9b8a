#include "text/rules/automaton.h"

#include <algorithm>
#include <array>
#include <set>
#include <unordered_map>
#include <utility>

#include "support/error.h"
#include "support/printable.h"
#include "text/rules/counted_graph.h"

namespace faststream::rules {

namespace {

// Larger repetitions are loops with counters.
constexpr int64_t kMaxCopied = 256;  // states
// Calls of smaller rules are copies of them: fewer stacks, and fewer tokens that leave a rule.
constexpr int64_t kMaxInlined = 16;  // states
constexpr int64_t kManyStates = int64_t{1} << 40U;

[[noreturn]] void refuse_size(size_t most, const char* what) {
  throw Error("the rule of output needs more than " + std::to_string(most) + what +
              "; make it smaller");
}

}  // namespace

// Makes the states of a grammar's rules.
class AutomatonBuilder {
 public:
  AutomatonBuilder(Automaton& to, const Grammar& grammar) : to_(to), grammar_(grammar) {
    byte_sets_.fill(-1);
  }

  void build() {
    find_nullable();
    for (const Grammar::Rule& rule : grammar_.rules) {
      to_.rules_.push_back({.start = add_state(), .final = add_state(), .name = rule.name});
    }
    inlined_.assign(grammar_.rules.size(), Inlined::unknown);
    for (size_t r = 0; r < grammar_.rules.size(); ++r) {
      add(grammar_.rules[r].expr, to_.rules_[r].start, to_.rules_[r].final);
    }
    for (size_t i = 0; i < outlined_.size(); ++i) {  // which may outline more
      const auto [rule, expr] = outlined_[i];
      const Automaton::Rule ends = to_.rules_[static_cast<size_t>(rule)];
      add(expr, ends.start, ends.final);
    }
    trim();
    to_.bytes_ = by_state(bytes_);
    to_.calls_ = by_state(calls_);
    to_.moves_ = by_state(moves_);
  }

 private:
  enum class Inlined : uint8_t { unknown, deciding, no, yes };

  int32_t add_state() {
    if (to_.states_.size() >= kMaxAutomatonStates) {
      refuse_size(kMaxAutomatonStates, " states");
    }
    to_.states_.emplace_back().loop = loop_;
    return static_cast<int32_t>(to_.states_.size() - 1);
  }
  Automaton::State& state(int32_t s) { return to_.states_[static_cast<size_t>(s)]; }
  void add_edge(int32_t from, int32_t set, int32_t to) {
    if (bytes_.size() >= kMaxAutomatonEdges) refuse_size(kMaxAutomatonEdges, " edges");
    bytes_.emplace_back(from, Automaton::ByteEdge{set, to});
  }
  void add_edge(int32_t from, const ByteSet& bytes, int32_t to) {
    add_edge(from, number_of(bytes), to);
  }
  void move(int32_t from, int32_t to) { add_move(from, {.to = to}); }
  void add_move(int32_t from, const Automaton::Move& move) { moves_.emplace_back(from, move); }
  void call(int32_t from, int32_t rule, int32_t to) {
    calls_.emplace_back(from, Automaton::CallEdge{rule, to});
  }

  int32_t number_of(const ByteSet& set) {
    const auto [found, is_new] = sets_.try_emplace(set, static_cast<int32_t>(to_.sets_.size()));
    if (is_new) to_.sets_.push_back(set);
    return found->second;
  }
  // Of the byte alone.
  int32_t number_of(uint8_t byte) {
    int32_t& known = byte_sets_.at(byte);
    if (known < 0) known = number_of(ByteSet(byte, byte));
    return known;
  }

  void add(const Expr& expr, int32_t from, int32_t to) {
    switch (expr->kind) {
      case Node::Kind::nothing:
        return;
      case Node::Kind::bytes:
        return add_edge(from, expr->bytes, to);
      case Node::Kind::literal:
        return add_literal(expr->text, from, to);
      case Node::Kind::sequence:
        for (size_t i = 0; i < expr->parts.size(); ++i) {
          const int32_t next = i + 1 == expr->parts.size() ? to : add_state();
          add(expr->parts[i], from, next);
          from = next;
        }
        return;
      case Node::Kind::choice:
        for (const Expr& part : expr->parts) {
          // States of its own, so that what loops in one part does not lead to another.
          const int32_t start = add_state();
          move(from, start);
          add(part, start, to);
        }
        return;
      case Node::Kind::repeat:
        return add_repeat(expr, from, to);
      case Node::Kind::rest: {
        const int32_t loop = add_state();
        state(loop).takes_rest = true;
        move(from, loop);
        add(expr->parts.front(), loop, loop);
        return move(loop, to);
      }
      case Node::Kind::call:
        if (is_inlined(expr->rule)) {
          const int32_t start = add_state();
          move(from, start);
          return add(grammar_.rules[static_cast<size_t>(expr->rule)].expr, start, to);
        }
        return call(from, expr->rule, to);
      case Node::Kind::graph:
        return expr->most == 0 ? add_graph(*expr->graph, from, to)
                               : add_counted_graph(expr, from, to);
      case Node::Kind::net:
        return add_net(*expr, from, to);
      case Node::Kind::begin:
      case Node::Kind::end:
        throw Error("an anchor stands inside of a regular expression; only its ends may have one");
    }
  }

  void add_literal(const std::string& text, int32_t from, int32_t to) {
    if (text.empty()) return move(from, to);
    for (size_t i = 0; i < text.size(); ++i) {
      const int32_t next = i + 1 == text.size() ? to : add_state();
      add_edge(from, number_of(static_cast<uint8_t>(text[i])), next);
      from = next;
    }
  }

  void add_graph(const Graph& graph, int32_t from, int32_t to) {
    std::vector<int32_t> states;
    for (int32_t i = 0; i < graph.n_states; ++i) states.push_back(add_state());
    move(from, states.front());
    for (const Graph::Edge& edge : graph.edges) {
      add_edge(states[static_cast<size_t>(edge.from)], edge.bytes,
               states[static_cast<size_t>(edge.to)]);
    }
    for (const int32_t i : graph.accepting) move(states[static_cast<size_t>(i)], to);
  }

  // Every state twice: behind a character that it has begun, where that leaves room for those that
  // must follow, and where the next one begins.
  void add_counted_graph(const Expr& expr, int32_t from, int32_t to) {
    if (loop_ >= 0) return outline(expr, from, to);
    const Graph& graph = *expr->graph;
    const std::vector<int32_t> left = *characters_left(graph, expr->least);
    loop_ = static_cast<int32_t>(to_.loops_.size());
    to_.loops_.push_back(
        {.least = expr->least, .most = expr->most, .most_left = *std::ranges::max_element(left)});
    const int32_t loop = loop_;
    struct Parts {
      int32_t arrived = 0;
      int32_t inside = 0;
      int32_t begin = 0;
    };
    std::vector<Parts> states;
    for (const int32_t n_left : left) {
      const Parts parts{add_state(), add_state(), add_state()};
      using Kind = Automaton::Move::Kind;
      add_move(parts.arrived, {parts.inside, Kind::within, loop, n_left});
      add_move(parts.inside, {parts.begin, Kind::again, loop});
      states.push_back(parts);
    }
    loop_ = -1;
    for (const Graph::Edge& edge : graph.edges) {
      const Parts& start = states[static_cast<size_t>(edge.from)];
      add_edge(edge.begins ? start.begin : start.inside, edge.bytes,
               states[static_cast<size_t>(edge.to)].arrived);
    }
    for (const int32_t i : graph.accepting) {
      const int32_t inside = states[static_cast<size_t>(i)].inside;
      add_move(inside, {to, Automaton::Move::Kind::leave, loop});
      if (i == 0 && expr->least == 0) move(from, to);
    }
    move(from, states.front().begin);
  }

  void add_net(const Node& net, int32_t from, int32_t to) {
    std::vector<int32_t> states;
    for (int32_t i = 0; i < net.n_states; ++i) states.push_back(add_state());
    move(from, states.front());
    for (size_t i = 0; i < net.parts.size(); ++i) {
      const int32_t start = add_state();
      move(states[static_cast<size_t>(net.ends[i].first)], start);
      add(net.parts[i], start, states[static_cast<size_t>(net.ends[i].second)]);
    }
    move(states.back(), to);
  }

  void add_repeat(const Expr& expr, int32_t from, int32_t to) {
    const Expr& part = expr->parts.front();
    const int32_t copies = expr->most == kUnbounded ? expr->least : expr->most;
    if (copies > 1 && size_of(part) * copies > kMaxCopied) {
      return add_counted(expr, from, to);
    }
    for (int32_t i = 0; i < expr->least; ++i) {
      const int32_t next = add_state();
      add(part, from, next);
      from = next;
    }
    if (expr->most == kUnbounded) {
      const int32_t loop = add_state();
      move(from, loop);
      add(part, loop, loop);
      return move(loop, to);
    }
    for (int32_t i = expr->least; i < expr->most; ++i) {
      move(from, to);
      const int32_t next = add_state();
      add(part, from, next);
      from = next;
    }
    move(from, to);
  }

  // Calls a rule of its own, since loops with counters do not nest.
  void outline(const Expr& expr, int32_t from, int32_t to) {
    const auto rule = static_cast<int32_t>(to_.rules_.size());
    call(from, rule, to);
    const int32_t outer = std::exchange(loop_, -1);
    to_.rules_.push_back({.start = add_state(), .final = add_state(), .name = "a repetition"});
    loop_ = outer;
    outlined_.emplace_back(rule, expr);
  }

  void add_counted(const Expr& expr, int32_t from, int32_t to) {
    const Expr& part = expr->parts.front();
    if (loop_ >= 0) return outline(expr, from, to);
    int32_t least = expr->least;
    if (is_nullable(part)) {
      if (expr->most != kUnbounded) {
        throw Error("what may be empty is repeated up to " + std::to_string(expr->most) +
                    " times; repeat something that is not");
      }
      least = 0;
    }
    loop_ = static_cast<int32_t>(to_.loops_.size());
    to_.loops_.push_back({.least = least, .most = expr->most});
    const int32_t loop = loop_;
    const int32_t body = add_state();
    const int32_t end = add_state();
    add(part, body, end);
    loop_ = -1;
    move(from, body);
    add_move(end, {body, Automaton::Move::Kind::again, loop});
    add_move(end, {to, Automaton::Move::Kind::leave, loop});
    if (least == 0) move(from, to);
  }

  // States that an expression takes, about.
  int64_t size_of(const Expr& expr) {
    switch (expr->kind) {
      case Node::Kind::literal:
        return static_cast<int64_t>(expr->text.size());
      case Node::Kind::sequence:
      case Node::Kind::net:
      case Node::Kind::choice: {
        const auto found = sizes_.find(expr.get());
        if (found != sizes_.end()) return found->second;
        int64_t sum = 0;
        for (const Expr& part : expr->parts) {
          sum = std::min(sum + size_of(part) + 1, kManyStates);
        }
        return sizes_[expr.get()] = sum;
      }
      case Node::Kind::repeat: {
        const int64_t size = size_of(expr->parts.front());
        const int64_t copies = std::max({expr->least, expr->most, 1});
        return size * copies > kMaxCopied ? size + 2 : size * copies;
      }
      case Node::Kind::call:
        return is_inlined(expr->rule)
                   ? size_of(grammar_.rules[static_cast<size_t>(expr->rule)].expr) + 1
                   : 1;
      case Node::Kind::graph:
        return expr->graph->n_states;
      default:
        return 1;
    }
  }

  bool is_inlined(int32_t rule) {
    Inlined& inlined = inlined_[static_cast<size_t>(rule)];
    if (inlined == Inlined::deciding) return false;  // it calls itself
    if (inlined == Inlined::unknown) {
      inlined = Inlined::deciding;
      const Expr& expr = grammar_.rules[static_cast<size_t>(rule)].expr;
      const bool is_small = !calls_any(expr) && size_of(expr) <= kMaxInlined;
      inlined_[static_cast<size_t>(rule)] = is_small ? Inlined::yes : Inlined::no;
    }
    return inlined_[static_cast<size_t>(rule)] == Inlined::yes;
  }

  // Whether it calls a rule that is not small itself.
  bool calls_any(const Expr& expr) {
    if (expr->kind == Node::Kind::call) return !is_inlined(expr->rule);
    return std::ranges::any_of(expr->parts, [this](const Expr& part) { return calls_any(part); });
  }

  bool is_nullable(const Expr& expr) {
    switch (expr->kind) {
      case Node::Kind::literal:
        return expr->text.empty();
      case Node::Kind::sequence:
        return std::ranges::all_of(expr->parts, [this](const Expr& p) { return is_nullable(p); });
      case Node::Kind::choice:
        return std::ranges::any_of(expr->parts, [this](const Expr& p) { return is_nullable(p); });
      case Node::Kind::net:  // where all parts on a way are; what cannot be repeated is refused
        return std::ranges::any_of(expr->parts, [this](const Expr& p) { return is_nullable(p); });
      case Node::Kind::rest:
        return true;
      case Node::Kind::repeat:
        return expr->least == 0 || is_nullable(expr->parts.front());
      case Node::Kind::call:
        return nullable_[static_cast<size_t>(expr->rule)];
      case Node::Kind::graph:
        return (expr->most == 0 || expr->least == 0) &&
               std::ranges::find(expr->graph->accepting, 0) != expr->graph->accepting.end();
      default:
        return false;
    }
  }

  void find_nullable() {
    nullable_.assign(grammar_.rules.size(), false);
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t r = 0; r < grammar_.rules.size(); ++r) {
        if (nullable_[r] || !is_nullable(grammar_.rules[r].expr)) continue;
        nullable_[r] = true;
        changed = true;
      }
    }
  }

  // Those from which a final state can be reached, as flags.
  [[nodiscard]] std::vector<uint8_t> leading_states() const {
    const size_t n_states = to_.states_.size();
    const auto start_of = [this](const Automaton::CallEdge& edge) {
      return to_.rules_[static_cast<size_t>(edge.rule)].start;
    };
    const ListsByNumber<int32_t> before(n_states, [&](const auto& task) {
      for (const auto& [from, edge] : bytes_) task(edge.to, from);
      for (const auto& [from, edge] : moves_) task(edge.to, from);
    });
    const ListsByNumber<uint32_t> calls_before(n_states, [&](const auto& task) {
      for (uint32_t i = 0; i < calls_.size(); ++i) {
        task(start_of(calls_[i].second), i);
        task(calls_[i].second.to, i);
      }
    });
    std::vector<uint8_t> n_open(calls_.size(), 2);  // of a call's ends that do not lead yet
    std::vector<uint8_t> leads(n_states, 0);
    std::vector<int32_t> found;
    const auto note = [&](int32_t state) {
      if (std::exchange(leads[static_cast<size_t>(state)], 1) == 0) found.push_back(state);
    };
    for (const Automaton::Rule& rule : to_.rules_) note(rule.final);
    while (!found.empty()) {
      const int32_t to = found.back();
      found.pop_back();
      for (const int32_t from : before.of(to)) note(from);
      for (const uint32_t call : calls_before.of(to)) {
        if (--n_open[call] == 0) note(calls_[call].first);
      }
    }
    return leads;
  }

  // Takes away what leads to no end: edges to states from which no final state can be reached, and
  // calls of rules that have no end.
  void trim() {
    const std::vector<uint8_t> leads = leading_states();
    if (leads[static_cast<size_t>(to_.rules_.front().start)] == 0) {
      throw Error("the rule of output is unsatisfiable: no text fits it");
    }
    if (std::ranges::find(leads, 0) == leads.end()) return;
    const auto is_dead = [&](int32_t state) { return leads[static_cast<size_t>(state)] == 0; };
    std::erase_if(bytes_, [&](const auto& each) { return is_dead(each.second.to); });
    std::erase_if(moves_, [&](const auto& each) { return is_dead(each.second.to); });
    std::erase_if(calls_, [&](const auto& each) {
      const Automaton::CallEdge& call = each.second;
      return is_dead(call.to) || is_dead(to_.rules_[static_cast<size_t>(call.rule)].start);
    });
  }

  template <class Edge>
  using Edges = std::vector<std::pair<int32_t, Edge>>;  // with the states that they begin at
  template <class Edge>
  [[nodiscard]] ListsByNumber<Edge> by_state(const Edges<Edge>& edges) const {
    return {to_.states_.size(), [&](const auto& task) {
              for (const auto& [from, edge] : edges) task(from, edge);
            }};
  }

  Automaton& to_;
  const Grammar& grammar_;
  Edges<Automaton::ByteEdge> bytes_;
  Edges<Automaton::CallEdge> calls_;
  Edges<Automaton::Move> moves_;
  int32_t loop_ = -1;                          // that is being made
  std::unordered_map<ByteSet, int32_t> sets_;  // numbers
  std::array<int32_t, 256> byte_sets_ = {};    // of a byte alone; -1: none yet
  std::vector<Inlined> inlined_;
  std::vector<bool> nullable_;
  std::unordered_map<const Node*, int64_t> sizes_;
  std::vector<std::pair<int32_t, Expr>> outlined_;  // rules to be made of repetitions
};

Automaton::Automaton(const Grammar& grammar) {
  AutomatonBuilder(*this, grammar).build();
  refuse_left_recursion();
  classify();
}

size_t Automaton::bytes() const {
  return states_.size() * sizeof(State) + bytes_.bytes() + calls_.bytes() + moves_.bytes() +
         (sets_.size() + class_sets_.size()) * sizeof(ByteSet);
}

// Of each rule the rules that it can call before its first byte: none is to reach itself.
void Automaton::refuse_left_recursion() const {
  std::vector<bool> nullable(rules_.size(), false);
  std::vector<std::set<int32_t>> first(rules_.size());
  std::vector<int32_t> seen(states_.size(), -1);
  int32_t pass = 0;
  std::vector<int32_t> todo;
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t r = 0; r < rules_.size(); ++r, ++pass) {
      todo.assign(1, rules_[r].start);
      const auto visit = [&](int32_t s) {
        if (std::exchange(seen[static_cast<size_t>(s)], pass) != pass) todo.push_back(s);
      };
      while (!todo.empty()) {
        const int32_t state = todo.back();
        if (state == rules_[r].final && !nullable[r]) nullable[r] = changed = true;
        todo.pop_back();
        for (const Move& edge : moves_from(state)) visit(edge.to);
        for (const CallEdge& edge : calls_from(state)) {
          first[r].insert(edge.rule);
          if (nullable[static_cast<size_t>(edge.rule)]) visit(edge.to);
        }
      }
    }
  }
  enum class Mark : uint8_t { none, open, done };
  std::vector<Mark> marks(rules_.size(), Mark::none);
  std::vector<std::pair<int32_t, bool>> stack;  // a rule, and whether those after it are done
  for (size_t root = 0; root < rules_.size(); ++root) {
    stack.emplace_back(static_cast<int32_t>(root), false);
    while (!stack.empty()) {
      const auto [rule, done] = stack.back();
      stack.pop_back();
      Mark& mark = marks[static_cast<size_t>(rule)];
      if (done) {
        mark = Mark::done;
        continue;
      }
      if (mark != Mark::none) continue;
      mark = Mark::open;
      stack.emplace_back(rule, true);
      for (const int32_t next : first[static_cast<size_t>(rule)]) {
        if (marks[static_cast<size_t>(next)] == Mark::open) {
          throw Error("the rule " + in_quotes(rules_[static_cast<size_t>(next)].name) +
                      " is left-recursive (it can begin with itself, indirectly); write it as a "
                      "repetition");
        }
        stack.emplace_back(next, false);
      }
    }
  }
}

void Automaton::classify() {
  std::vector<uint8_t> is_used(sets_.size(), 0);
  for (const ByteEdge& edge : bytes_.all()) is_used[static_cast<size_t>(edge.set)] = 1;
  class_of_.fill(0);
  size_t n_classes = 1;
  for (size_t s = 0; s < sets_.size() && n_classes < class_of_.size(); ++s) {
    if (is_used[s] == 0) continue;
    const ByteSet& set = sets_[s];
    std::array<std::array<int16_t, 2>, 256> split;  // by class, and whether the set has the byte
    split.fill({-1, -1});
    n_classes = 0;
    for (size_t byte = 0; byte < class_of_.size(); ++byte) {
      const size_t is_in = set.has(static_cast<uint8_t>(byte)) ? 1 : 0;
      int16_t& part = split.at(class_of_.at(byte)).at(is_in);
      if (part < 0) part = static_cast<int16_t>(n_classes++);
      class_of_.at(byte) = static_cast<uint8_t>(part);
    }
  }
  n_classes_ = static_cast<int32_t>(n_classes);
  bytes_of_classes_ = {n_classes, [this](const auto& task) {
                         for (size_t byte = 0; byte < class_of_.size(); ++byte) {
                           task(class_of_.at(byte), static_cast<uint8_t>(byte));
                         }
                       }};
  for (const ByteSet& set : sets_) {
    ByteSet& classes = class_sets_.emplace_back();
    for (int32_t c = 0; c < n_classes_; ++c) {
      if (set.has(bytes_of_class(c).front())) classes.add(static_cast<uint8_t>(c));
    }
  }
}

}  // namespace faststream::rules
