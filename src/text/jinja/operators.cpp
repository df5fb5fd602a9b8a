#include <algorithm>
#include <cmath>
#include <limits>

#include "text/jinja/characters.h"
#include "text/jinja/failure.h"
#include "text/jinja/library.h"
#include "text/jinja/text_methods.h"

namespace faststream::jinja {
namespace {

constexpr const char* kTooLarge = "a whole number has more than 64 bits";

[[noreturn]] void fail_operands(std::string_view op, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b}) {
    if (value->is_undefined()) throw Failure(value->reason());
  }
  throw Failure("\"" + std::string(op) + "\" is not possible between " +
                std::string(a.type_name()) + " and " + std::string(b.type_name()));
}

std::string_view spelling(BinaryOp op) {
  switch (op) {
    case BinaryOp::add:
      return "+";
    case BinaryOp::subtract:
      return "-";
    case BinaryOp::multiply:
      return "*";
    case BinaryOp::divide:
      return "/";
    case BinaryOp::floor_divide:
      return "//";
    case BinaryOp::modulo:
      return "%";
    case BinaryOp::power:
      return "**";
  }
  return "?";
}

void check_divisor(bool is_zero) {
  if (is_zero) throw Failure("a division by zero");
}

// Python rounds towards minus infinity, and a remainder has the divisor's sign.
int64_t floor_divide(int64_t a, int64_t b) {
  check_divisor(b == 0);
  if (b == -1) {
    if (a == std::numeric_limits<int64_t>::min()) throw Failure(kTooLarge);
    return -a;
  }
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

int64_t floor_modulo(int64_t a, int64_t b) {
  check_divisor(b == 0);
  if (b == -1) return 0;
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

double floor_modulo(double a, double b) {
  check_divisor(b == 0);
  const double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

double floor_divide(double a, double b) {
  check_divisor(b == 0);
  const double quotient = (a - floor_modulo(a, b)) / b;
  const double whole = std::floor(quotient);
  return quotient - whole > 0.5 ? whole + 1 : whole;
}

Value power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    check_divisor(base == 0);
    return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  for (; exponent > 0; exponent >>= 1U) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) {
      throw Failure(kTooLarge);
    }
    if (exponent > 1 && __builtin_mul_overflow(base, base, &base)) throw Failure(kTooLarge);
  }
  return Value(result);
}

Value of_integers(BinaryOp op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool too_large = false;
  switch (op) {
    case BinaryOp::add:
      too_large = __builtin_add_overflow(a, b, &result);
      break;
    case BinaryOp::subtract:
      too_large = __builtin_sub_overflow(a, b, &result);
      break;
    case BinaryOp::multiply:
      too_large = __builtin_mul_overflow(a, b, &result);
      break;
    case BinaryOp::divide:
      check_divisor(b == 0);
      return Value(static_cast<double>(a) / static_cast<double>(b));
    case BinaryOp::floor_divide:
      return Value(floor_divide(a, b));
    case BinaryOp::modulo:
      return Value(floor_modulo(a, b));
    case BinaryOp::power:
      return power(a, b);
  }
  if (too_large) throw Failure(kTooLarge);
  return Value(result);
}

Value of_reals(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::add:
      return Value(a + b);
    case BinaryOp::subtract:
      return Value(a - b);
    case BinaryOp::multiply:
      return Value(a * b);
    case BinaryOp::divide:
      check_divisor(b == 0);
      return Value(a / b);
    case BinaryOp::floor_divide:
      return Value(floor_divide(a, b));
    case BinaryOp::modulo:
      return Value(floor_modulo(a, b));
    case BinaryOp::power:
      return Value(std::pow(a, b));
  }
  return {};
}

bool is_joinable(const Value& value) {
  const List* list = value.list();
  return list != nullptr && (list->type == List::Type::list || list->type == List::Type::tuple);
}

Value repeat(Runtime& runtime, const Value& value, int64_t times) {
  const auto n = static_cast<size_t>(std::max<int64_t>(times, 0));
  if (const Text* text = value.text()) {
    if (text->empty() || n == 0) return runtime.text("");
    runtime.spend_bytes(n > std::numeric_limits<size_t>::max() / text->size()
                            ? std::numeric_limits<size_t>::max()
                            : n * text->size());
    Text repeated;
    for (size_t i = 0; i < n; ++i) repeated.append(*text);
    return Value(std::move(repeated));
  }
  const std::vector<Value>& items = value.list()->items;
  if (items.empty()) return value;
  const size_t most = std::numeric_limits<size_t>::max() / sizeof(Value) / items.size();
  runtime.spend_bytes(n > most ? std::numeric_limits<size_t>::max()
                               : n * items.size() * sizeof(Value));
  std::vector<Value> repeated;
  for (size_t i = 0; i < n; ++i) repeated.insert(repeated.end(), items.begin(), items.end());
  return Value(List(std::move(repeated), value.list()->type));
}

Value join(Runtime& runtime, const Value& a, const Value& b) {
  if (a.is_text()) {
    runtime.spend_bytes(a.text()->size() + b.text()->size());
    Text joined = *a.text();
    if (joined.is_markup() == b.text()->is_markup()) {
      joined.append(*b.text());
      return Value(std::move(joined));
    }
    runtime.spend_bytes(4 * (joined.size() + b.text()->size()));
    if (!joined.is_markup()) joined = escape_html(joined);
    joined.append(b.text()->is_markup() ? *b.text() : escape_html(*b.text()));
    joined.set_markup();
    return Value(std::move(joined));
  }
  std::vector<Value> items = a.list()->items;
  items.insert(items.end(), b.list()->items.begin(), b.list()->items.end());
  return runtime.list(std::move(items), a.list()->type);
}

bool contains(Runtime& runtime, const Value& container, const Value& value) {
  if (const Text* text = container.text()) {
    if (value.is_undefined()) throw Failure(value.reason());
    if (!value.is_text()) {
      throw Failure("\"in\" looks for a str in a str, not for a " + std::string(value.type_name()));
    }
    runtime.spend_search(text->size(), value.text()->size());
    return text->view().find(value.text()->view()) != std::string_view::npos;
  }
  if (const Dict* dict = container.dict()) {
    check_hashable(value);
    runtime.spend_steps(value.is_text() ? value.weight() : dict->weight());
    return dict->find(value) != nullptr;
  }
  const std::vector<Value> items = elements(runtime, container);
  runtime.spend_steps(container.weight());
  return std::any_of(items.begin(), items.end(),
                     [&](const Value& item) { return equal(item, value); });
}

/// As Python's slice.indices() has it.
struct SliceBounds {
  int64_t first;
  int64_t last;  ///< is not in it
  int64_t stride;
};

SliceBounds slice_bounds(int64_t n, const Value& start, const Value& stop, const Value& step) {
  const auto number = [](const Value& value) {
    if (value.is_integer()) return value.integer();
    if (value.is_undefined()) throw Failure(value.reason());
    throw Failure("a slice has a " + std::string(value.type_name()) + " where an int belongs");
  };
  const int64_t stride = step.is_none() ? 1 : number(step);
  if (stride == 0) throw Failure("a slice has a step of 0");
  const int64_t low = stride < 0 ? -1 : 0;
  const int64_t high = stride < 0 ? n - 1 : n;
  const auto bound = [&](const Value& value, int64_t otherwise) {
    if (value.is_none()) return otherwise;
    const int64_t index = number(value);
    return index < 0 ? std::max(index + n, low) : std::min(index, high);
  };
  return {.first = bound(start, stride < 0 ? high : low),
          .last = bound(stop, stride < 0 ? low : high),
          .stride = stride};
}

// The elements that a slice takes.
std::vector<size_t> slice_indices(const SliceBounds& bounds) {
  std::vector<size_t> indices;
  for (int64_t i = bounds.first; bounds.stride < 0 ? i > bounds.last : i < bounds.last;) {
    indices.push_back(static_cast<size_t>(i));
    if (__builtin_add_overflow(i, bounds.stride, &i)) break;
  }
  return indices;
}

Value slice_text(Runtime& runtime, const Text& text, const Value& start, const Value& stop,
                 const Value& step) {
  runtime.spend_steps(text.size() / 16);
  std::vector<size_t> offsets;  // of characters
  for (size_t at = 0; at < text.size(); at += character_size(text.view().substr(at))) {
    offsets.push_back(at);
  }
  const auto n = static_cast<int64_t>(offsets.size());
  offsets.push_back(text.size());
  runtime.spend_bytes(offsets.size() * sizeof(size_t));
  const std::vector<size_t> taken = slice_indices(slice_bounds(n, start, stop, step));
  Text cut;
  for (size_t i = 0; i < taken.size();) {
    size_t end = i + 1;  // neighbours go together
    while (end < taken.size() && taken[end] == taken[end - 1] + 1) ++end;
    const size_t from = offsets[taken[i]];
    cut.append(text, from, offsets[taken[end - 1] + 1] - from);
    i = end;
  }
  return runtime.text(std::move(cut));
}

}  // namespace

Value binary(Runtime& runtime, BinaryOp op, const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) return of_integers(op, a.integer(), b.integer());
  if (a.is_number() && b.is_number()) return of_reals(op, a.real(), b.real());
  if (op == BinaryOp::modulo && a.is_text()) {
    if (b.is_undefined()) throw Failure(b.reason());
    throw Failure("\"%\" of a str, a format, is not supported; join texts with \"~\"");
  }
  if (op == BinaryOp::add) {
    const bool same = is_joinable(a) && is_joinable(b) && a.list()->type == b.list()->type;
    if (same || (a.is_text() && b.is_text())) return join(runtime, a, b);
  }
  if (op == BinaryOp::multiply) {
    if ((a.is_text() || is_joinable(a)) && b.is_integer()) return repeat(runtime, a, b.integer());
    if ((b.is_text() || is_joinable(b)) && a.is_integer()) return repeat(runtime, b, a.integer());
  }
  fail_operands(spelling(op), a, b);
}

bool compare(Runtime& runtime, CompareOp op, const Value& a, const Value& b) {
  const auto order = [&](std::string_view sign) {
    runtime.spend_steps(std::min(a.weight(), b.weight()));
    return compare(a, b, sign);
  };
  switch (op) {
    case CompareOp::equal:
      runtime.spend_steps(std::min(a.weight(), b.weight()));
      return equal(a, b);
    case CompareOp::not_equal:
      return !compare(runtime, CompareOp::equal, a, b);
    case CompareOp::less:
      return order("<").value_or(0) < 0;
    case CompareOp::less_equal:
      return order("<=").value_or(1) <= 0;
    case CompareOp::greater:
      return order(">").value_or(0) > 0;
    case CompareOp::greater_equal:
      return order(">=").value_or(-1) >= 0;
    case CompareOp::in:
      return contains(runtime, b, a);
    case CompareOp::not_in:
      return !contains(runtime, b, a);
  }
  return false;
}

Value slice(Runtime& runtime, const Value& object, const Value& start, const Value& stop,
            const Value& step) {
  if (object.is_undefined()) throw Failure(object.reason());
  if (const Text* text = object.text()) return slice_text(runtime, *text, start, stop, step);
  const List* list = object.list();
  if (list == nullptr || !list->is_sequence()) {
    return Value::undefined("a " + std::string(object.type_name()) + " has no slices");
  }
  const SliceBounds bounds =
      slice_bounds(static_cast<int64_t>(list->items.size()), start, stop, step);
  std::vector<Value> items;
  for (const size_t index : slice_indices(bounds)) items.push_back(list->items[index]);
  if (list->type != List::Type::range) return runtime.list(std::move(items), list->type);
  const size_t n = items.size();
  runtime.spend_bytes(n * sizeof(Value));
  List part(std::move(items), List::Type::range);
  const auto& whole = list->range;  // of 64 bits, as Python's that do not fit are none here
  const auto at = [&](int64_t index) {
    return static_cast<int64_t>(static_cast<uint64_t>(whole.start) +
                                static_cast<uint64_t>(index) * static_cast<uint64_t>(whole.step));
  };
  part.range = {.start = at(bounds.first),
                .stop = at(bounds.last),
                .step = static_cast<int64_t>(static_cast<uint64_t>(whole.step) *
                                             static_cast<uint64_t>(bounds.stride))};
  return Value(std::move(part));
}

}  // namespace faststream::jinja
