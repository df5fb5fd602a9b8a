// Where states lead to, by classes of bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "text/rules/byte_set.h"

namespace faststream::rules {

/// A row for each state, with room from the first class that the state goes on with to the last
/// one: most states go on with one alone.
class MoveTable {
 public:
  /// What is not known yet.
  static constexpr int32_t kUnknown = -1;

  /// nowhere: what other classes lead to.
  explicit MoveTable(int32_t nowhere) : nowhere_(nowhere) {}

  void reserve(size_t n_rows) {
    rows_.reserve(n_rows);
    moves_.reserve(n_rows);
  }
  /// Of the next state, which goes on with these classes.
  void add_row(const ByteSet& classes) {
    Row row{.start = static_cast<uint32_t>(moves_.size())};
    if (classes.is_empty()) {
      moves_.push_back(nowhere_);
    } else {
      row.first = classes.first();
      row.last = static_cast<uint8_t>(classes.last() - row.first);
      moves_.resize(moves_.size() + row.last + 1, nowhere_);
      classes.for_each([&](uint8_t c) { moves_[row.start + c - row.first] = kUnknown; });
    }
    rows_.push_back(row);
  }
  [[nodiscard]] int32_t at(int32_t state, uint8_t byte_class) const {
    const Row& row = rows_[static_cast<size_t>(state)];
    const auto i = static_cast<uint8_t>(byte_class - row.first);
    return i <= row.last ? moves_[row.start + i] : nowhere_;
  }
  /// byte_class: one that the state goes on with.
  void set(int32_t state, uint8_t byte_class, int32_t to) {
    const Row& row = rows_[static_cast<size_t>(state)];
    moves_[row.start + static_cast<uint8_t>(byte_class - row.first)] = to;
  }
  /// Calls task(class) for all that the state may go on with, in their order, until it returns
  /// false.
  template <class Task>
  void for_each_class(int32_t state, const Task& task) const {
    const Row row = rows_[static_cast<size_t>(state)];  // the task may add rows
    for (size_t i = 0; i <= row.last; ++i) {
      if (moves_[row.start + i] == nowhere_) continue;
      if (!task(static_cast<uint8_t>(row.first + i))) return;
    }
  }
  /// Of memory.
  [[nodiscard]] size_t bytes() const {
    return rows_.size() * sizeof(Row) + moves_.size() * sizeof(int32_t);
  }

 private:
  struct Row {
    uint32_t start = 0;  // in moves_
    uint8_t first = 0;   // class
    uint8_t last = 0;    // counted from the first
  };

  int32_t nowhere_;
  std::vector<Row> rows_;
  std::vector<int32_t> moves_;
};

}  // namespace faststream::rules
