#include "text/rules/json_numbers.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "support/error.h"
#include "text/rules/dfa.h"

namespace faststream::rules {
namespace {

constexpr int kMaxDigits = 400;
constexpr int64_t kMaxModulus = 10000;

Expr digit(char first, char last) {
  if (first > last) return nothing();
  return bytes(ByteSet(static_cast<uint8_t>(first), static_cast<uint8_t>(last)));
}
Expr digits(size_t n) {
  const auto count = static_cast<int32_t>(n);
  return repeat(digit('0', '9'), count, count);
}
Expr any_digits() { return repeat(digit('0', '9'), 0, kUnbounded); }

// Digits of the same number as `low`, and at least that; with any first digit.
Expr same_length_from(std::string_view low) {
  if (low.empty()) return literal("");
  std::vector<Expr> parts;
  for (size_t i = 0; i < low.size(); ++i) {
    parts.push_back(sequence({literal(low.substr(0, i)), digit(static_cast<char>(low[i] + 1), '9'),
                              digits(low.size() - i - 1)}));
  }
  parts.push_back(literal(low));
  return choice(std::move(parts));
}
Expr same_length_to(std::string_view high, char first = '0') {
  std::vector<Expr> parts;
  for (size_t i = 0; i < high.size(); ++i) {
    parts.push_back(sequence({literal(high.substr(0, i)),
                              digit(i == 0 ? first : '0', static_cast<char>(high[i] - 1)),
                              digits(high.size() - i - 1)}));
  }
  parts.push_back(literal(high));
  return choice(std::move(parts));
}
Expr same_length_between(std::string_view low, std::string_view high) {
  size_t n = 0;
  while (n < low.size() && low[n] == high[n]) ++n;
  if (n == low.size()) return literal(low);
  if (low[n] > high[n]) return nothing();
  const std::string_view common = low.substr(0, n);
  const auto one = [](char c) { return literal(std::string_view(&c, 1)); };
  return sequence(
      {literal(common),
       choice({sequence({one(low[n]), same_length_from(low.substr(n + 1))}),
               sequence({digit(static_cast<char>(low[n] + 1), static_cast<char>(high[n] - 1)),
                         digits(low.size() - n - 1)}),
               sequence({one(high[n]), same_length_to(high.substr(n + 1))})})});
}

bool below(const std::string& a, const std::string& b) {
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}

// Whole numbers that are not negative, between bounds that are; none: unbounded.
Expr whole_between(const std::string& low, const std::optional<std::string>& high) {
  if (high && below(*high, low)) return nothing();
  if (!high) {
    const Expr longer = sequence({digit('1', '9'), digits(low.size()), any_digits()});
    return choice({same_length_from(low), longer});
  }
  if (low.size() == high->size()) return same_length_between(low, *high);
  std::vector<Expr> parts = {same_length_from(low)};
  if (high->size() > low.size() + 1) {
    const auto least = static_cast<int32_t>(low.size());
    const auto most = static_cast<int32_t>(high->size() - 2);
    parts.push_back(sequence({digit('1', '9'), repeat(digit('0', '9'), least, most)}));
  }
  parts.push_back(same_length_to(*high, '1'));
  return choice(std::move(parts));
}

std::string add_one(std::string number) {
  size_t i = number.size();
  while (i > 0 && number[i - 1] == '9') number[--i] = '0';
  if (i == 0) return "1" + number;
  ++number[i - 1];
  return number;
}
std::string subtract_one(std::string number) {  // which is not 0
  size_t i = number.size();
  while (i > 0 && number[i - 1] == '0') number[--i] = '9';
  if (i > 0) --number[i - 1];
  if (number.size() > 1 && number.front() == '0') number.erase(0, 1);
  return number;
}

// A fraction's digits with the point, at least or at most `bound`; trailing zeros are allowed.
Expr fraction_from(const std::string& bound, bool inclusive) {
  const Expr point = literal(".");
  const Expr some = sequence({digit('0', '9'), any_digits()});
  std::vector<Expr> parts;
  for (size_t i = 0; i < bound.size(); ++i) {
    parts.push_back(sequence({point, literal(std::string_view(bound).substr(0, i)),
                              digit(static_cast<char>(bound[i] + 1), '9'), any_digits()}));
  }
  const Expr zeros = repeat(literal("0"), 0, kUnbounded);
  const Expr above = sequence({zeros, digit('1', '9'), any_digits()});
  if (bound.empty()) {
    return inclusive ? choice({literal(""), sequence({point, some})}) : sequence({point, above});
  }
  parts.push_back(sequence({point, literal(bound), inclusive ? any_digits() : above}));
  return choice(std::move(parts));
}
Expr fraction_to(const std::string& bound, bool inclusive) {
  const Expr point = literal(".");
  const Expr zeros = repeat(literal("0"), 0, kUnbounded);
  std::vector<Expr> parts;
  if (bound.empty()) {
    if (!inclusive) return nothing();
    return choice({literal(""), sequence({point, literal("0"), zeros})});
  }
  parts.push_back(literal(""));
  for (size_t i = 0; i < bound.size(); ++i) {
    const std::string_view before = std::string_view(bound).substr(0, i);
    parts.push_back(sequence(
        {point, literal(before), digit('0', static_cast<char>(bound[i] - 1)), any_digits()}));
    if (i > 0) parts.push_back(sequence({point, literal(before)}));  // ends: smaller
  }
  if (inclusive) parts.push_back(sequence({point, literal(bound), zeros}));
  return choice(std::move(parts));
}

struct Magnitude {
  Decimal value;
  bool inclusive = true;
};

// Numbers without sign between bounds.
Expr magnitude_between(const Magnitude& low, const std::optional<Magnitude>& high, bool integer,
                       WorkBudget& budget) {
  std::string first = low.value.whole;
  if (integer) {
    if (!low.value.fraction.empty() || !low.inclusive) first = add_one(first);
    if (!high) return whole_between(first, std::nullopt);
    std::string last = high->value.whole;
    if (high->value.fraction.empty() && !high->inclusive) {
      if (last == "0") return nothing();
      last = subtract_one(last);
    }
    return whole_between(first, last);
  }
  const Expr any_fraction = fraction_from("", true);
  if (high && high->value.whole == first) {
    const Dfa from(fraction_from(low.value.fraction, low.inclusive), budget);
    const Dfa within =
        from.both(Dfa(fraction_to(high->value.fraction, high->inclusive), budget), budget);
    if (within.is_nothing()) return nothing();
    return sequence({literal(first), graph(std::make_shared<const Graph>(within.graph()))});
  }
  std::vector<Expr> parts = {
      sequence({literal(first), fraction_from(low.value.fraction, low.inclusive)})};
  if (!high) {
    parts.push_back(sequence({whole_between(add_one(first), std::nullopt), any_fraction}));
    return choice(std::move(parts));
  }
  if (below(high->value.whole, first)) return nothing();
  parts.push_back(
      sequence({whole_between(add_one(first), subtract_one(high->value.whole)), any_fraction}));
  parts.push_back(
      sequence({literal(high->value.whole), fraction_to(high->value.fraction, high->inclusive)}));
  return choice(std::move(parts));
}

// Decimal digits, with a point or without, whose number times 10^scale divided by `modulus` leaves
// nothing.
Expr multiples(int64_t modulus, int scale, bool integer) {
  auto multiples_graph = std::make_shared<Graph>();
  // States: the remainder before the point, and after it with each number of digits.
  const auto state = [modulus](int after, int64_t remainder) {
    return static_cast<int32_t>(1 + (after + 1) * modulus + remainder);
  };
  const int n_after = integer ? 0 : scale;
  multiples_graph->n_states = static_cast<int32_t>(3 + (n_after + 2) * modulus);
  const int32_t zeros = multiples_graph->n_states - 1;  // after all digits that count
  const int32_t zero = multiples_graph->n_states - 2;   // a whole part of 0
  const auto add = [&](int32_t from, int32_t to, char first, char last) {
    multiples_graph->edges.push_back(
        {from, to, ByteSet(static_cast<uint8_t>(first), static_cast<uint8_t>(last))});
  };
  const auto divides = [modulus](int64_t remainder, int missing) {
    for (; missing > 0; --missing) remainder = remainder * 10 % modulus;
    return remainder == 0;
  };
  add(0, zero, '0', '0');
  for (char c = '1'; c <= '9'; ++c) add(0, state(-1, (c - '0') % modulus), c, c);
  multiples_graph->accepting.push_back(zero);
  for (int64_t r = 0; r < modulus; ++r) {
    for (char c = '0'; c <= '9'; ++c) {
      add(state(-1, r), state(-1, (r * 10 + (c - '0')) % modulus), c, c);
    }
    if (divides(r, scale)) multiples_graph->accepting.push_back(state(-1, r));
    if (!integer) add(state(-1, r), state(0, r), '.', '.');
  }
  if (!integer) {
    add(zero, state(0, 0), '.', '.');
    for (int after = 0; after <= n_after; ++after) {
      for (int64_t r = 0; r < modulus; ++r) {
        if (after > 0 && divides(r, scale - after)) {
          multiples_graph->accepting.push_back(state(after, r));
        }
        if (after == n_after) {
          if (r == 0) add(state(after, r), zeros, '0', '0');
          continue;
        }
        for (char c = '0'; c <= '9'; ++c) {
          add(state(after, r), state(after + 1, (r * 10 + (c - '0')) % modulus), c, c);
        }
      }
    }
    add(zeros, zeros, '0', '0');
    multiples_graph->accepting.push_back(zeros);
  }
  return graph(std::move(multiples_graph));
}

Expr positive(Expr expr) {  // with its sign taken as it comes
  return sequence({optional(literal("-")), std::move(expr)});
}

Expr multiples_of(const Decimal& factor, bool integer, WorkBudget& budget) {
  const std::string all = factor.whole + factor.fraction;
  const int64_t modulus = all.size() > 9 ? kMaxModulus + 1 : std::atoll(all.c_str());
  const auto scale = static_cast<int>(factor.fraction.size());
  if (modulus <= 0 || modulus > kMaxModulus || modulus * (scale + 2) > 4 * kMaxModulus) {
    throw Error("\"multipleOf\" has more digits than are supported");
  }
  budget.spend(static_cast<size_t>(10 * modulus * (scale + 2)));
  return positive(multiples(modulus, scale, integer));
}

Expr whole_number() {
  return positive(choice({literal("0"), sequence({digit('1', '9'), any_digits()})}));
}

// All spellings of a number without exponent.
Expr spellings(const Decimal& number) {
  const Expr zeros = repeat(literal("0"), 0, kUnbounded);
  const Expr sign = number.is_zero() ? optional(literal("-")) : literal(number.negative ? "-" : "");
  const Expr fraction = number.fraction.empty()
                            ? optional(sequence({literal("."), zeros}))
                            : sequence({literal("."), literal(number.fraction), zeros});
  return sequence({sign, literal(number.whole), fraction});
}

// Numbers without exponent between bounds.
Expr interval(const NumberBounds& bounds, WorkBudget& budget) {
  if (!bounds.least && !bounds.most) {
    return bounds.is_integer ? whole_number() : sequence({whole_number(), fraction_from("", true)});
  }
  std::vector<Expr> parts;
  const auto magnitude = [](const NumberBounds::Bound& bound) {
    Magnitude m{bound.value, bound.inclusive};
    m.value.negative = false;
    return m;
  };
  const bool least_is_negative = !bounds.least || bounds.least->value.negative;
  const bool most_is_negative = bounds.most && bounds.most->value.negative;
  if (!most_is_negative) {
    const Magnitude low = least_is_negative ? Magnitude{} : magnitude(*bounds.least);
    std::optional<Magnitude> high;
    if (bounds.most) high = magnitude(*bounds.most);
    parts.push_back(magnitude_between(low, high, bounds.is_integer, budget));
  }
  if (least_is_negative) {
    const Magnitude low = most_is_negative ? magnitude(*bounds.most) : Magnitude{{}, false};
    std::optional<Magnitude> high;
    if (bounds.least) high = magnitude(*bounds.least);
    const Expr numbers = magnitude_between(low, high, bounds.is_integer, budget);
    parts.push_back(sequence({literal("-"), numbers}));
  }
  return choice(std::move(parts));
}

}  // namespace

Decimal Decimal::parse(std::string_view text) {
  Decimal decimal;
  if (text.starts_with('-')) {
    decimal.negative = true;
    text.remove_prefix(1);
  }
  const size_t exponent_at = text.find_first_of("eE");
  int exponent = 0;
  if (exponent_at != std::string_view::npos) {
    exponent = std::atoi(std::string(text.substr(exponent_at + 1)).c_str());
    text = text.substr(0, exponent_at);
  }
  const size_t point = text.find('.');
  std::string all(text.substr(0, point));
  std::string after(point == std::string_view::npos ? "" : text.substr(point + 1));
  if (std::abs(exponent) > kMaxDigits) {
    throw Error("the number " + std::string(text) + "e" + std::to_string(exponent) +
                " is too large or too small for a bound");
  }
  for (; exponent > 0; --exponent) {
    all += after.empty() ? '0' : after.front();
    if (!after.empty()) after.erase(0, 1);
  }
  for (; exponent < 0; ++exponent) {
    after.insert(after.begin(), all.empty() ? '0' : all.back());
    if (!all.empty()) all.pop_back();
  }
  all.erase(0, all.find_first_not_of('0'));
  while (!after.empty() && after.back() == '0') after.pop_back();
  decimal.whole = all.empty() ? "0" : all;
  decimal.fraction = after;
  if (decimal.is_zero()) decimal.negative = false;
  return decimal;
}

int Decimal::compare(const Decimal& other) const {
  if (negative != other.negative) return negative ? -1 : 1;
  const int sign = negative ? -1 : 1;
  if (whole != other.whole) return below(whole, other.whole) ? -sign : sign;
  if (fraction == other.fraction) return 0;
  return fraction < other.fraction ? -sign : sign;
}

void NumberBounds::at_least(const Bound& bound) {
  const int order = least ? bound.value.compare(least->value) : 1;
  if (order > 0 || (order == 0 && !bound.inclusive)) least = bound;
}
void NumberBounds::at_most(const Bound& bound) {
  const int order = most ? bound.value.compare(most->value) : -1;
  if (order < 0 || (order == 0 && !bound.inclusive)) most = bound;
}

bool NumberBounds::has(const Decimal& number, WorkBudget& budget) const {
  if (is_integer && !number.fraction.empty()) return false;
  if (least) {
    const int order = number.compare(least->value);
    if (order < 0 || (order == 0 && !least->inclusive)) return false;
  }
  if (most) {
    const int order = number.compare(most->value);
    if (order > 0 || (order == 0 && !most->inclusive)) return false;
  }
  if (multiple_of.empty() && not_multiple_of.empty() && excluded.empty() && !is_fraction) {
    return true;
  }
  NumberBounds others = *this;
  others.least.reset();
  others.most.reset();
  others.is_integer = false;
  std::string text = number.negative ? "-" : "";
  text += number.whole;
  if (!number.fraction.empty()) text += "." + number.fraction;
  return Dfa(number_expression(others, budget), budget).accepts(text);
}

bool NumberBounds::are_none() const {
  return !least && !most && multiple_of.empty() && not_multiple_of.empty() && excluded.empty() &&
         !is_fraction;
}

Expr number_expression(const NumberBounds& bounds, WorkBudget& budget) {
  if (bounds.are_none() && !bounds.is_integer) {
    const Expr some = sequence({digit('0', '9'), any_digits()});
    ByteSet e;
    e.add('e');
    e.add('E');
    const Expr sign = optional(choice({literal("+"), literal("-")}));
    return sequence({whole_number(), optional(sequence({literal("."), some})),
                     optional(sequence({bytes(e), sign, some}))});
  }
  std::vector<Expr> all;  // what numbers are at once
  std::vector<Expr> none;
  for (const Decimal& factor : bounds.multiple_of) {
    all.push_back(multiples_of(factor, bounds.is_integer, budget));
  }
  if (all.empty() || bounds.least || bounds.most) all.push_back(interval(bounds, budget));
  for (const Decimal& factor : bounds.not_multiple_of) {
    none.push_back(multiples_of(factor, bounds.is_integer, budget));
  }
  for (const Decimal& number : bounds.excluded) none.push_back(spellings(number));
  if (bounds.is_fraction) {
    const Expr zeros = repeat(literal("0"), 0, kUnbounded);
    none.push_back(sequence({whole_number(), optional(sequence({literal("."), zeros}))}));
  }
  if (all.size() == 1 && none.empty()) return all.front();
  Dfa numbers(all.front(), budget);
  for (size_t i = 1; i < all.size(); ++i) numbers = numbers.both(Dfa(all[i], budget), budget);
  for (const Expr& excluded : none) numbers = numbers.without(Dfa(excluded, budget), budget);
  if (numbers.is_nothing()) return nothing();
  return graph(std::make_shared<const Graph>(numbers.graph()));
}

}  // namespace faststream::rules
