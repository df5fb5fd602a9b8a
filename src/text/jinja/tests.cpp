// Tests: what stands after "is".
#include <algorithm>
#include <array>
#include <unordered_map>

#include "support/printable.h"
#include "text/jinja/arguments.h"
#include "text/jinja/failure.h"
#include "text/jinja/library.h"

namespace faststream::jinja {
namespace {

void no_arguments(Arguments arguments) {
  const ArgumentReader none("this test", std::move(arguments), {});
}

// What holds for a value by itself.
template <bool (*holds)(const Value&)>
bool plain(Runtime& /*runtime*/, const Value& input, Arguments arguments) {
  no_arguments(std::move(arguments));
  return holds(input);
}

template <CompareOp op>
bool compared(Runtime& runtime, const Value& input, Arguments arguments) {
  const ArgumentReader given("this test", std::move(arguments), {"other"});
  return compare(runtime, op, input, given.at(0));
}

bool remainder_is(Runtime& runtime, const Value& input, const Value& divisor, int64_t rest) {
  return equal(binary(runtime, BinaryOp::modulo, input, divisor), Value(rest));
}

bool odd(Runtime& runtime, const Value& input, Arguments arguments) {
  no_arguments(std::move(arguments));
  return remainder_is(runtime, input, Value(int64_t{2}), 1);
}
bool even(Runtime& runtime, const Value& input, Arguments arguments) {
  no_arguments(std::move(arguments));
  return remainder_is(runtime, input, Value(int64_t{2}), 0);
}
bool divisible_by(Runtime& runtime, const Value& input, Arguments arguments) {
  const ArgumentReader given("divisibleby", std::move(arguments), {"num"});
  return remainder_is(runtime, input, given.at(0), 0);
}

bool is_defined(const Value& value) { return !value.is_undefined(); }
bool is_undefined(const Value& value) { return value.is_undefined(); }
bool is_none(const Value& value) { return value.is_none(); }
bool is_boolean(const Value& value) { return value.is_bool(); }
bool is_true(const Value& value) { return value.is_bool() && truth(value); }
bool is_false(const Value& value) { return value.is_bool() && !truth(value); }
bool is_integer(const Value& value) { return value.is_integer() && !value.is_bool(); }
bool is_real(const Value& value) { return value.is_real(); }
bool is_number(const Value& value) { return value.is_number(); }
bool is_text(const Value& value) { return value.is_text(); }
bool is_mapping(const Value& value) { return value.dict() != nullptr; }
// Python's Undefined has the methods of a sequence.
bool is_iterable(const Value& value) {
  return value.is_text() || value.list() != nullptr || value.dict() != nullptr ||
         value.is_undefined();
}
bool is_sequence(const Value& value) {
  const List* list = value.list();
  return value.is_text() || value.dict() != nullptr || value.is_undefined() ||
         (list != nullptr && list->is_sequence());
}
bool is_same(Runtime& runtime, const Value& input, Arguments arguments) {
  runtime.spend_steps(input.weight());
  const ArgumentReader given("sameas", std::move(arguments), {"other"});
  return input.same_as(given.at(0));
}
}  // namespace

Failure no_test(std::string_view name) {
  constexpr std::array<std::string_view, 6> kOfJinja = {"callable", "escaped", "filter",
                                                        "lower",    "test",    "upper"};
  if (std::find(kOfJinja.begin(), kOfJinja.end(), name) != kOfJinja.end()) {
    return Failure("the test " + in_quotes(name) + " is not supported");
  }
  return Failure("there is no test named " + in_quotes(name));
}

Test find_test(std::string_view name) {
  static const std::unordered_map<std::string_view, Test> known_tests = {
      {"!=", &compared<CompareOp::not_equal>},
      {"<", &compared<CompareOp::less>},
      {"<=", &compared<CompareOp::less_equal>},
      {"==", &compared<CompareOp::equal>},
      {">", &compared<CompareOp::greater>},
      {">=", &compared<CompareOp::greater_equal>},
      {"boolean", &plain<&is_boolean>},
      {"defined", &plain<&is_defined>},
      {"divisibleby", &divisible_by},
      {"eq", &compared<CompareOp::equal>},
      {"equalto", &compared<CompareOp::equal>},
      {"even", &even},
      {"false", &plain<&is_false>},
      {"float", &plain<&is_real>},
      {"ge", &compared<CompareOp::greater_equal>},
      {"greaterthan", &compared<CompareOp::greater>},
      {"gt", &compared<CompareOp::greater>},
      {"in", &compared<CompareOp::in>},
      {"integer", &plain<&is_integer>},
      {"iterable", &plain<&is_iterable>},
      {"le", &compared<CompareOp::less_equal>},
      {"lessthan", &compared<CompareOp::less>},
      {"lt", &compared<CompareOp::less>},
      {"mapping", &plain<&is_mapping>},
      {"ne", &compared<CompareOp::not_equal>},
      {"none", &plain<&is_none>},
      {"number", &plain<&is_number>},
      {"odd", &odd},
      {"sameas", &is_same},
      {"sequence", &plain<&is_sequence>},
      {"string", &plain<&is_text>},
      {"true", &plain<&is_true>},
      {"undefined", &plain<&is_undefined>}};
  const auto found = known_tests.find(name);
  return found == known_tests.end() ? nullptr : found->second;
}

}  // namespace faststream::jinja
