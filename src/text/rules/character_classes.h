// Classes of characters, made once each.
#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "text/rules/expression.h"
#include "text/rules/work_budget.h"

namespace faststream::rules {

/// Those of one rule. The budget must outlive it.
class CharacterClasses {
 public:
  explicit CharacterClasses(WorkBudget& budget) : budget_(budget) {}

  /// As characters(). Throws Error once the budget is spent.
  Expr of(std::vector<CodeRange> ranges) {
    constexpr size_t kStepsOfRange = 200;
    budget_.spend(ranges.size());
    const auto [known, is_new] = known_.try_emplace(std::move(ranges));
    if (is_new) {
      budget_.spend(kStepsOfRange * known->first.size());
      known->second = characters(known->first);
    }
    return known->second;
  }
  [[nodiscard]] WorkBudget& budget() { return budget_; }

 private:
  WorkBudget& budget_;
  std::map<std::vector<CodeRange>, Expr> known_;
};

}  // namespace faststream::rules
