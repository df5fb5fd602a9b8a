// JSON's numbers between bounds.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/rules/expression.h"
#include "text/rules/work_budget.h"

namespace faststream::rules {

/// A decimal number without exponent: its sign, its digits before the point without leading zeros,
/// and after it without trailing ones.
struct Decimal {
  bool negative = false;
  std::string whole = "0";
  std::string fraction = {};

  /// Of a number as JSON writes it. Throws Error where it has hundreds of digits.
  static Decimal parse(std::string_view text);
  [[nodiscard]] bool is_zero() const { return whole == "0" && fraction.empty(); }
  /// Below 0, 0, or above.
  [[nodiscard]] int compare(const Decimal& other) const;
};

struct NumberBounds {
  struct Bound {
    Decimal value;
    bool inclusive = true;
  };
  std::optional<Bound> least;
  std::optional<Bound> most;
  std::vector<Decimal> multiple_of;      ///< of all of these
  std::vector<Decimal> not_multiple_of;  ///< of none of these
  std::vector<Decimal> excluded;         ///< numbers
  bool is_integer = false;
  bool is_fraction = false;  ///< no whole numbers

  /// Makes a bound narrower.
  void at_least(const Bound& bound);
  void at_most(const Bound& bound);
  [[nodiscard]] bool has(const Decimal& number, WorkBudget& budget) const;
  /// Whether all numbers, or all whole ones, are within.
  [[nodiscard]] bool are_none() const;
};

/// The numbers within bounds: integers without point, others with a point where they need one;
/// exponents where nothing is bounded. Throws Error where one of multiple_of is too large, or
/// together with others.
Expr number_expression(const NumberBounds& bounds, WorkBudget& budget);

}  // namespace faststream::rules
