// The edges of a graph the other way round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace faststream::rules {

/// Of each state those from which an edge leads to it.
class Predecessors {
 public:
  /// for_edges(task) is to call task(from, to) for each edge, whenever it is called. What edges are
  /// from may have numbers of another kind.
  template <class ForEdges>
  Predecessors(size_t n_states, const ForEdges& for_edges) : starts_(n_states + 1, 0) {
    for_edges([this](int32_t /*from*/, size_t to) { ++starts_[to]; });
    std::partial_sum(starts_.begin(), starts_.end(), starts_.begin());
    states_.resize(starts_.back());
    for_edges([this](int32_t from, size_t to) { states_[--starts_[to]] = from; });
  }

  [[nodiscard]] std::span<const int32_t> of(size_t state) const {
    return std::span(states_).subspan(starts_[state], starts_[state + 1] - starts_[state]);
  }

 private:
  std::vector<uint32_t> starts_;  // of each state's in states_
  std::vector<int32_t> states_;
};

}  // namespace faststream::rules
