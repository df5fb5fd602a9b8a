// Lists of what belongs to numbers, as the states of a graph are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace faststream::rules {

/// Of each number from 0 on a list, all in one array: edges by the state that they begin at, bytes
/// by their class, and the like.
template <class Value>
class ListsByNumber {
 public:
  ListsByNumber() = default;
  /// for_each(task) is to call task(number, value) for each value, the same whenever it is called.
  /// Values of a number stay in their order.
  template <class ForEach>
  ListsByNumber(size_t n_numbers, const ForEach& for_each) : starts_(n_numbers + 2, 0) {
    // Where a number's next value comes is kept at the start of the number behind it, which is
    // right once all have come.
    for_each([this](int32_t number, const Value& /*value*/) {
      ++starts_[static_cast<size_t>(number) + 2];
    });
    std::partial_sum(starts_.begin(), starts_.end(), starts_.begin());
    values_.resize(starts_.back());
    for_each([this](int32_t number, const Value& value) {
      values_[starts_[static_cast<size_t>(number) + 1]++] = value;
    });
  }

  [[nodiscard]] std::span<const Value> of(int32_t number) const {
    const auto n = static_cast<size_t>(number);
    return std::span(values_).subspan(starts_[n], starts_[n + 1] - starts_[n]);
  }
  [[nodiscard]] std::span<const Value> all() const { return values_; }
  /// Of memory.
  [[nodiscard]] size_t bytes() const {
    return values_.size() * sizeof(Value) + starts_.size() * sizeof(uint32_t);
  }

 private:
  std::vector<uint32_t> starts_;  // by number, of its values
  std::vector<Value> values_;
};

}  // namespace faststream::rules
