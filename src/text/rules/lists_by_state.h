// Lists of what belongs to the states of a graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace faststream::rules {

/// Of each state a list, all in one array: edges by the state that they begin at, states by that
/// which an edge leads to, and the like.
template <class Value>
class ListsByState {
 public:
  ListsByState() = default;
  /// for_each(task) is to call task(state, value) for each value, the same whenever it is called.
  /// Values of a state stay in their order.
  template <class ForEach>
  ListsByState(size_t n_states, const ForEach& for_each) : starts_(n_states + 2, 0) {
    // Where a state's next value comes is kept at the start of the state behind it, which is right
    // once all have come.
    for_each([this](int32_t state, const Value& /*value*/) {
      ++starts_[static_cast<size_t>(state) + 2];
    });
    std::partial_sum(starts_.begin(), starts_.end(), starts_.begin());
    values_.resize(starts_.back());
    for_each([this](int32_t state, const Value& value) {
      values_[starts_[static_cast<size_t>(state) + 1]++] = value;
    });
  }

  [[nodiscard]] std::span<const Value> of(int32_t state) const {
    const auto s = static_cast<size_t>(state);
    return std::span(values_).subspan(starts_[s], starts_[s + 1] - starts_[s]);
  }
  [[nodiscard]] std::span<const Value> all() const { return values_; }
  /// Of memory.
  [[nodiscard]] size_t bytes() const {
    return values_.size() * sizeof(Value) + starts_.size() * sizeof(uint32_t);
  }

 private:
  std::vector<uint32_t> starts_;  // by state, of its values
  std::vector<Value> values_;
};

}  // namespace faststream::rules
