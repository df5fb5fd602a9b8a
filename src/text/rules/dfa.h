// Regular languages as deterministic automata over bytes, and what can be made of several.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/rules/expression.h"
#include "text/rules/work_budget.h"

namespace faststream::rules {

/// States that a deterministic automaton may have.
constexpr size_t kMaxDfaStates = 50000;
/// Throws Error: it would have more.
[[noreturn]] void refuse_dfa_size();

/// Complete: state 0 is the one that nothing is accepted from.
class Dfa {
 public:
  /// Of an expression without anchors and calls. Throws Error where it needs too many states, or
  /// the budget is spent.
  Dfa(const Expr& expr, WorkBudget& budget);

  [[nodiscard]] bool accepts(std::string_view text) const;
  [[nodiscard]] bool is_nothing() const;
  [[nodiscard]] size_t size() const { return accepting_.size(); }  ///< states

  /// What both accept, or the first alone. Throws Error likewise.
  [[nodiscard]] Dfa both(const Dfa& other, WorkBudget& budget) const {
    return product(other, false, budget);
  }
  [[nodiscard]] Dfa without(const Dfa& other, WorkBudget& budget) const {
    return product(other, true, budget);
  }

  [[nodiscard]] Graph graph() const;
  /// json_escaped() of it.
  [[nodiscard]] Graph json_graph(WorkBudget& budget) const;

 private:
  Dfa() = default;
  [[nodiscard]] Dfa product(const Dfa& other, bool negated, WorkBudget& budget) const;
  [[nodiscard]] int32_t next(int32_t state, uint8_t byte) const {
    return next_[static_cast<size_t>(state) * n_classes_ + class_of_[byte]];
  }
  /// States from which something is accepted.
  [[nodiscard]] std::vector<bool> live() const;

  std::array<uint8_t, 256> class_of_ = {};
  size_t n_classes_ = 1;
  std::vector<int32_t> next_;    // [states, n_classes]
  std::vector<bool> accepting_;  // [states]
  int32_t start_ = 0;
};

}  // namespace faststream::rules
