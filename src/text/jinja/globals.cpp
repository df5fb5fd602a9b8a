// Functions that every template can call.
#include <limits>
#include <unordered_map>

#include "text/jinja/arguments.h"
#include "text/jinja/failure.h"
#include "text/jinja/library.h"
#include "text/jinja/methods.h"

namespace faststream::jinja {
namespace {

// As Jinja's sandbox limits it.
constexpr uint64_t kLongestRange = 100'000;

Value range(Runtime& runtime, Arguments arguments) {
  const bool one = arguments.positional.size() == 1;
  const ArgumentReader given("range", std::move(arguments), {"start", "stop", "step"});
  List list;
  list.type = List::Type::range;
  const int64_t start = one ? 0 : given.integer(0);
  const int64_t stop = given.integer(one ? 0 : 1);
  const int64_t step = given.integer(2, 1);
  if (step == 0) throw Failure("range has a step of 0");
  list.range = {.start = start, .stop = stop, .step = step};
  const bool up = step > 0;
  const uint64_t distance =
      up ? (start < stop ? static_cast<uint64_t>(stop) - static_cast<uint64_t>(start) : 0)
         : (stop < start ? static_cast<uint64_t>(start) - static_cast<uint64_t>(stop) : 0);
  const uint64_t stride = up ? static_cast<uint64_t>(step) : 0 - static_cast<uint64_t>(step);
  const uint64_t n = distance / stride + (distance % stride != 0 ? 1 : 0);
  if (n > kLongestRange) {
    throw Failure("range has more than " + std::to_string(kLongestRange) + " elements");
  }
  runtime.spend_bytes(n * sizeof(Value));
  for (uint64_t i = 0; i < n; ++i) {
    list.items.emplace_back(start + static_cast<int64_t>(i) * step);
  }
  list.weight = n + 1;
  return Value(std::move(list));
}

// dict(mapping or pairs, name=value, ...), and what namespace() takes.
Dict make_dict(Runtime& runtime, const char* function, const Arguments& arguments) {
  if (arguments.positional.size() > 1) {
    throw Failure(std::string(function) + " takes one dict and named values");
  }
  Dict dict;
  for (const Value& source : arguments.positional) {
    if (const Dict* other = source.dict()) {
      dict = *other;
      continue;
    }
    for (const Value& pair : elements(runtime, source)) {
      const std::vector<Value> parts = elements(runtime, pair);
      if (parts.size() != 2) throw Failure(std::string(function) + " needs pairs");
      runtime.spend_steps(parts[0].weight() * (parts[0].is_text() ? 1 : dict.size() + 1));
      dict.set(parts[0], parts[1]);
    }
  }
  for (const auto& [name, value] : arguments.named) dict.set(Value(name), value);
  runtime.spend_bytes(dict.size() * sizeof(Dict::Entry));
  return dict;
}

Value make_namespace(Runtime& runtime, const Arguments& arguments) {
  auto* space = runtime.make<Namespace>();
  const Dict members = make_dict(runtime, "namespace", arguments);
  for (const auto& [name, value] : members.entries()) {
    if (!name.is_text()) throw Failure("a namespace's attribute is not named by a text");
    space->set(name.text()->view(), value);
  }
  return Value(space);
}

Value raise_exception(Runtime& runtime, Arguments arguments) {
  const ArgumentReader given("raise_exception", std::move(arguments), {"message"});
  throw Refusal(to_text(runtime, given.at(0)).bytes());
}

Value strftime_now(Runtime& runtime, Arguments arguments) {
  const ArgumentReader given("strftime_now", std::move(arguments), {"format"});
  runtime.spend_bytes(given.text(0).size() * 32);
  return runtime.text(format_time(runtime.now(), given.text(0).view()));
}

}  // namespace

std::optional<Value> find_global(Runtime& runtime, std::string_view name) {
  static const std::unordered_map<std::string_view, Function::Body> known_globals = {
      {"dict", [](Runtime& r, const Arguments& a) { return Value(make_dict(r, "dict", a)); }},
      {"namespace", &make_namespace},
      {"raise_exception", &raise_exception},
      {"range", &range},
      {"strftime_now", &strftime_now}};
  const auto found = known_globals.find(name);
  if (found == known_globals.end()) return std::nullopt;
  return Value(runtime.make<Function>("function", found->second));
}

}  // namespace faststream::jinja
