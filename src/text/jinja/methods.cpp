#include "text/jinja/methods.h"

#include <algorithm>
#include <array>

#include "support/printable.h"
#include "text/jinja/arguments.h"
#include "text/jinja/failure.h"

namespace faststream::jinja {
namespace {

using Method = Value (*)(Runtime&, const Value&, Arguments);

Value view(Runtime& runtime, const Dict& dict, List::Type type) {
  std::vector<Value> items;
  for (const auto& [key, value] : dict.entries()) {
    items.push_back(type == List::Type::keys     ? key
                    : type == List::Type::values ? value
                                                 : runtime.tuple({key, value}));
  }
  return runtime.list(std::move(items), type);
}

template <List::Type type>
Value dict_view(Runtime& runtime, const Value& self, Arguments arguments) {
  const ArgumentReader none("this method", std::move(arguments), {});
  return view(runtime, *self.dict(), type);
}

Value dict_get(Runtime& runtime, const Value& self, Arguments arguments) {
  const ArgumentReader given("get", std::move(arguments), {"key", "default"});
  check_hashable(given.at(0));
  runtime.spend_steps(given.at(0).is_text() ? given.at(0).weight() : self.weight());
  const Value* found = self.dict()->find(given.at(0));
  return found == nullptr ? given.get(1) : *found;
}

Value copy(Runtime& /*runtime*/, const Value& self, Arguments arguments) {
  const ArgumentReader none("copy", std::move(arguments), {});
  return self;
}

Value list_count(Runtime& runtime, const Value& self, Arguments arguments) {
  const ArgumentReader given("count", std::move(arguments), {"value"});
  runtime.spend_steps(self.weight());
  const std::vector<Value>& items = self.list()->items;
  return Value(static_cast<int64_t>(std::count_if(
      items.begin(), items.end(), [&](const Value& item) { return equal(item, given.at(0)); })));
}

Value list_index(Runtime& runtime, const Value& self, Arguments arguments) {
  const ArgumentReader given("index", std::move(arguments), {"value"});
  runtime.spend_steps(self.weight());
  const std::vector<Value>& items = self.list()->items;
  const auto found = std::find_if(items.begin(), items.end(),
                                  [&](const Value& item) { return equal(item, given.at(0)); });
  if (found == items.end()) throw Failure("index does not find its value");
  return Value(static_cast<int64_t>(found - items.begin()));
}

struct Named {
  std::string_view name;
  Method method;
};

Method find(std::span<const Named> methods, std::string_view name) {
  const auto found = std::find_if(methods.begin(), methods.end(),
                                  [&](const Named& method) { return method.name == name; });
  return found == methods.end() ? nullptr : found->method;
}

Method find_method(const Value& value, std::string_view name) {
  static constexpr std::array<Named, 5> kOfDicts = {{{"get", &dict_get},
                                                     {"items", &dict_view<List::Type::items>},
                                                     {"keys", &dict_view<List::Type::keys>},
                                                     {"values", &dict_view<List::Type::values>},
                                                     {"copy", &copy}}};
  static constexpr std::array<Named, 3> kOfLists = {
      {{"count", &list_count}, {"index", &list_index}, {"copy", &copy}}};
  if (value.dict() != nullptr) return find(kOfDicts, name);
  const List* list = value.list();
  if (list == nullptr || !list->is_sequence()) return nullptr;
  return find(std::span(kOfLists).first(list->type == List::Type::list ? 3 : 2), name);
}

// Templates cannot change what they are given.
bool is_mutator(const Value& value, std::string_view name) {
  constexpr std::array<std::string_view, 5> kOfDicts = {"clear", "pop", "popitem", "setdefault",
                                                        "update"};
  constexpr std::array<std::string_view, 8> kOfLists = {"append", "clear",  "extend",  "insert",
                                                        "pop",    "remove", "reverse", "sort"};
  const auto in = [&](auto names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (value.dict() != nullptr) return in(kOfDicts);
  return value.list() != nullptr && value.list()->type == List::Type::list && in(kOfLists);
}

Value unsafe(const Value& value, std::string_view name) {
  return Value::undefined("a template cannot change its data, with the " +
                          std::string(value.type_name()) + "'s " + in_quotes(name));
}

// Of str's methods those that templates have no use for.
std::optional<Value> missing_text_method(std::string_view name) {
  constexpr std::array<std::string_view, 24> kMissing = {
      "casefold",  "center",      "encode",  "expandtabs", "format_map",   "index",
      "isalnum",   "isalpha",     "isascii", "isdecimal",  "isidentifier", "islower",
      "isnumeric", "isprintable", "isspace", "istitle",    "isupper",      "ljust",
      "maketrans", "rindex",      "rjust",   "swapcase",   "translate",    "zfill"};
  if (std::find(kMissing.begin(), kMissing.end(), name) == kMissing.end()) return std::nullopt;
  return Value::undefined("str's method " + in_quotes(name) + " is not supported");
}

}  // namespace

std::optional<Value> find_method(Runtime& runtime, const Value& value, std::string_view name) {
  if (value.is_text()) {
    const TextMethod method = find_text_method(name);
    if (method == nullptr) return missing_text_method(name);
    return Value(runtime.make<Function>("method", [method, value](Runtime& r, Arguments arguments) {
      return method(r, *value.text(), std::move(arguments));
    }));
  }
  if (const Method method = find_method(value, name)) {
    return Value(runtime.make<Function>("method", [method, value](Runtime& r, Arguments arguments) {
      return method(r, value, std::move(arguments));
    }));
  }
  if (is_mutator(value, name)) return unsafe(value, name);
  return std::nullopt;
}

std::optional<Value> call_method(Runtime& runtime, const Value& value, std::string_view name,
                                 Arguments& arguments) {
  if (const Text* text = value.text()) {
    const TextMethod method = find_text_method(name);
    if (method != nullptr) return method(runtime, *text, std::move(arguments));
  } else if (const Method method = find_method(value, name)) {
    return method(runtime, value, std::move(arguments));
  }
  return std::nullopt;
}

}  // namespace faststream::jinja
