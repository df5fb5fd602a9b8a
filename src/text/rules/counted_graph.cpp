#include "text/rules/counted_graph.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <utility>

#include "text/rules/lists_by_number.h"

namespace faststream::rules {
namespace {

constexpr int32_t kInfinite = std::numeric_limits<int32_t>::max() / 2;

int32_t add(int32_t n, const Graph::Edge& edge) {
  return n >= kInfinite ? kInfinite : n + (edge.begins ? 1 : 0);
}

using Edges = ListsByNumber<const Graph::Edge*>;

// By the state at one of their ends.
Edges edges_by(int32_t Graph::Edge::*end, const Graph& graph) {
  return {static_cast<size_t>(graph.n_states), [&](const auto& task) {
            for (const Graph::Edge& edge : graph.edges) task(edge.*end, &edge);
          }};
}

// The fewest characters between each state and some of `ends`, along edges by their `far` end.
std::vector<int32_t> fewest(const Edges& edges, int32_t Graph::Edge::*far,
                            const std::vector<int32_t>& ends, int32_t n_states) {
  std::vector<int32_t> least(static_cast<size_t>(n_states), kInfinite);
  std::deque<int32_t> todo(ends.begin(), ends.end());  // in the order of their numbers
  for (const int32_t end : ends) least[static_cast<size_t>(end)] = 0;
  while (!todo.empty()) {
    const int32_t state = todo.front();
    todo.pop_front();
    for (const Graph::Edge* edge : edges.of(state)) {
      const int32_t n = add(least[static_cast<size_t>(state)], *edge);
      int32_t& known = least[static_cast<size_t>(edge->*far)];
      if (n >= known) continue;
      known = n;
      if (edge->begins) {
        todo.push_back(edge->*far);
      } else {
        todo.push_front(edge->*far);
      }
    }
  }
  return least;
}

// The most characters that may follow each state: no end where one leads back.
std::vector<int32_t> longest(const Graph& graph, const Edges& from, const Edges& to) {
  const auto n_states = static_cast<size_t>(graph.n_states);
  std::vector<int32_t> most(n_states, kInfinite);
  std::vector<size_t> n_open(n_states);
  std::vector<int32_t> done;
  const auto finish = [&](int32_t state) {
    int32_t n = 0;
    for (const Graph::Edge* edge : from.of(state)) {
      n = std::max(n, add(most[static_cast<size_t>(edge->to)], *edge));
    }
    most[static_cast<size_t>(state)] = n;
    done.push_back(state);
  };
  for (int32_t s = 0; s < graph.n_states; ++s) {
    n_open[static_cast<size_t>(s)] = from.of(s).size();
    if (from.of(s).empty()) finish(s);
  }
  for (size_t i = 0; i < done.size(); ++i) {
    for (const Graph::Edge* edge : to.of(done[i])) {
      if (--n_open[static_cast<size_t>(edge->from)] == 0) finish(edge->from);
    }
  }
  return most;
}

}  // namespace

std::optional<std::vector<int32_t>> characters_left(const Graph& graph, int32_t least) {
  const Edges from = edges_by(&Graph::Edge::from, graph);
  const Edges to = edges_by(&Graph::Edge::to, graph);
  std::vector<int32_t> left = fewest(to, &Graph::Edge::from, graph.accepting, graph.n_states);
  const std::vector<int32_t> most = longest(graph, from, to);
  const std::vector<int32_t> before = fewest(from, &Graph::Edge::to, {0}, graph.n_states);
  std::vector<bool> accepts(left.size(), false);
  for (const int32_t s : graph.accepting) accepts[static_cast<size_t>(s)] = true;
  bool may_end_early = false;
  bool has_gaps = false;
  for (int32_t s = 0; s < graph.n_states; ++s) {
    const auto i = static_cast<size_t>(s);
    if (left[i] >= kInfinite || before[i] >= kInfinite) {  // not used
      left[i] = 0;
      continue;
    }
    if (most[i] < kInfinite && before[i] + most[i] < least) return std::nullopt;
    may_end_early = may_end_early || before[i] + left[i] < least;
    std::vector<std::pair<int32_t, int32_t>> ranges;  // of numbers of characters, by what is next
    if (accepts[i]) ranges.emplace_back(0, 0);
    for (const Graph::Edge* edge : from.of(s)) {
      const auto t = static_cast<size_t>(edge->to);
      ranges.emplace_back(add(left[t], *edge), add(most[t], *edge));
    }
    std::ranges::sort(ranges);
    int32_t reached = ranges.front().second;
    for (const auto& [first, last] : ranges) {
      has_gaps = has_gaps || first > reached + 1;
      reached = std::max(reached, last);
    }
  }
  if (may_end_early && has_gaps) return std::nullopt;
  return left;
}

}  // namespace faststream::rules
