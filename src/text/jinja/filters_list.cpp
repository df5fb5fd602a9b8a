// Filters of lists and dictionaries.
#include <algorithm>
#include <array>
#include <charconv>

#include "support/printable.h"
#include "text/jinja/arguments.h"
#include "text/jinja/attribute_path.h"
#include "text/jinja/failure.h"
#include "text/jinja/filters.h"
#include "text/jinja/text_case.h"
#include "text/jinja/text_methods.h"

namespace faststream::jinja {
namespace {

const Text& text_of(const Value& value, const char* what) {
  if (value.is_undefined()) throw Failure(value.reason());
  if (!value.is_text()) throw Failure(std::string(what) + " is not a str");
  return *value.text();
}

bool less(const Value& a, const Value& b) { return compare(a, b, "<").value_or(0) < 0; }

// Items by their keys, equal ones in their order.
std::vector<Value> sorted(Runtime& runtime, const std::vector<Value>& items,
                          const std::vector<Value>& keys, bool reverse) {
  std::vector<size_t> order(items.size());
  size_t weight = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
    weight += keys[i].weight() + (keys[i].is_text() ? keys[i].text()->size() / 16 : 0);
  }
  constexpr size_t kComparisons = 20;  // of each key: the logarithm of a million
  runtime.spend_steps(weight * kComparisons);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return reverse ? less(keys[b], keys[a]) : less(keys[a], keys[b]);
  });
  std::vector<Value> result;
  for (const size_t i : order) result.push_back(items[i]);
  return result;
}

std::vector<Value> keys_of(Runtime& runtime, const std::vector<Value>& items, const Value& path,
                           bool case_sensitive) {
  std::vector<Value> keys;
  for (const Value& item : items) keys.push_back(sort_key(runtime, item, path, case_sensitive));
  return keys;
}

Value sort(Runtime& runtime, const Value& input, Arguments arguments) {
  const ArgumentReader given("sort", std::move(arguments),
                             {"reverse", "case_sensitive", "attribute"});
  const std::vector<Value> items = elements(runtime, input);
  const bool case_sensitive = given.flag(1, false);
  const Value path = given.get(2);
  std::vector<Value> keys;
  const bool several = path.is_text() && path.text()->view().find(',') != std::string_view::npos;
  if (!several) {
    keys = keys_of(runtime, items, path, case_sensitive);
  } else {
    for (const Value& item : items) {
      std::vector<Value> parts;
      for (std::string_view rest = path.text()->view(); !rest.empty();) {
        const size_t end = std::min(rest.find(','), rest.size());
        parts.push_back(sort_key(runtime, item, Value(rest.substr(0, end)), case_sensitive));
        rest.remove_prefix(std::min(end + 1, rest.size()));
      }
      keys.push_back(runtime.list(std::move(parts)));
    }
  }
  return runtime.list(sorted(runtime, items, keys, given.flag(0, false)));
}

Value dictsort(Runtime& runtime, const Value& input, Arguments arguments) {
  const ArgumentReader given("dictsort", std::move(arguments), {"case_sensitive", "by", "reverse"});
  if (input.is_undefined()) throw Failure(input.reason());
  if (input.dict() == nullptr) {
    throw Failure("dictsort needs a dict, not a " + std::string(input.type_name()));
  }
  const std::string by = given.has(1) ? given.text(1).bytes() : "key";
  if (by != "key" && by != "value") throw Failure("dictsort sorts by \"key\" or \"value\"");
  std::vector<Value> items;
  std::vector<Value> keys;
  for (const auto& [key, value] : input.dict()->entries()) {
    items.push_back(runtime.tuple({key, value}));
    keys.push_back(sort_key(runtime, by == "key" ? key : value, Value(), given.flag(0, false)));
  }
  return runtime.list(sorted(runtime, items, keys, given.flag(2, false)));
}

Value unique(Runtime& runtime, const Value& input, Arguments arguments) {
  const ArgumentReader given("unique", std::move(arguments), {"case_sensitive", "attribute"});
  Dict seen;
  std::vector<Value> items;
  for (const Value& item : elements(runtime, input)) {
    const Value key = sort_key(runtime, item, given.get(1), given.flag(0, false));
    check_hashable(key);
    runtime.spend_steps(key.weight() * (key.is_text() ? 1 : seen.size() + 1));
    if (seen.find(key) != nullptr) continue;
    seen.set(key, Value(true));
    items.push_back(item);
  }
  return runtime.generator(std::move(items));
}

Value extreme(Runtime& runtime, const Value& input, Arguments arguments, bool largest) {
  const ArgumentReader given(largest ? "max" : "min", std::move(arguments),
                             {"case_sensitive", "attribute"});
  const std::vector<Value> items = elements(runtime, input);
  if (items.empty()) return Value::undefined("there is no smallest or largest of no elements");
  const std::vector<Value> keys = keys_of(runtime, items, given.get(1), given.flag(0, false));
  runtime.spend_steps(input.weight());
  size_t best = 0;
  for (size_t i = 1; i < items.size(); ++i) {
    if (largest ? less(keys[best], keys[i]) : less(keys[i], keys[best])) best = i;
  }
  return items[best];
}

Value first(Runtime& runtime, const Value& input, Arguments arguments) {
  const ArgumentReader none("first", std::move(arguments), {});
  std::vector<Value> items = elements(runtime, input);
  return items.empty() ? Value::undefined("there is no first of no elements") : items.front();
}

Value last(Runtime& runtime, const Value& input, Arguments arguments) {
  const ArgumentReader none("last", std::move(arguments), {});
  if (input.list() != nullptr && input.list()->type == List::Type::generator) {
    throw Failure("a generator has no last element; make a list of it first");
  }
  std::vector<Value> items = elements(runtime, input);
  return items.empty() ? Value::undefined("there is no last of no elements") : items.back();
}

Value length_filter(Runtime& runtime, const Value& input, Arguments arguments) {
  const ArgumentReader none("length", std::move(arguments), {});
  if (const Text* text = input.text()) runtime.spend_steps(text->size() / 16);
  return Value(length(input));
}

Value list_filter(Runtime& runtime, const Value& input, Arguments arguments) {
  const ArgumentReader none("list", std::move(arguments), {});
  return runtime.list(elements(runtime, input));
}

Value items_filter(Runtime& runtime, const Value& input, Arguments arguments) {
  const ArgumentReader none("items", std::move(arguments), {});
  std::vector<Value> items;
  if (const Dict* dict = input.dict()) {
    for (const auto& [key, value] : dict->entries()) items.push_back(runtime.tuple({key, value}));
  } else if (!input.is_undefined()) {
    throw Failure("items needs a dict, not a " + std::string(input.type_name()));
  }
  return runtime.generator(std::move(items));
}

Value join(Runtime& runtime, const Value& input, Arguments arguments) {
  const ArgumentReader given("join", std::move(arguments), {"d", "attribute"});
  const Text separator = given.has(0) ? to_text(runtime, given.at(0)) : Text();
  Text joined;
  bool is_first = true;
  for (const Value& item : elements(runtime, input)) {
    const Text text = to_text(runtime, at_path(runtime, item, given.get(1)));
    runtime.spend_bytes(separator.size() + text.size());
    if (!is_first) joined.append(separator);
    joined.append(text);
    is_first = false;
  }
  return runtime.text(std::move(joined));
}

Value reverse(Runtime& runtime, const Value& input, Arguments arguments) {
  const ArgumentReader none("reverse", std::move(arguments), {});
  if (input.is_text()) {
    return slice(runtime, input, Value(), Value(), Value(int64_t{-1}));
  }
  std::vector<Value> items = elements(runtime, input);
  std::reverse(items.begin(), items.end());
  return runtime.generator(std::move(items));
}

Value sum(Runtime& runtime, const Value& input, Arguments arguments) {
  const ArgumentReader given("sum", std::move(arguments), {"attribute", "start"});
  Value total = given.get(1, Value(int64_t{0}));
  for (const Value& item : elements(runtime, input)) {
    total = binary(runtime, BinaryOp::add, total, at_path(runtime, item, given.get(0)));
  }
  return total;
}

Value default_filter(Runtime& runtime, const Value& input, Arguments arguments) {
  const ArgumentReader given("default", std::move(arguments), {"default_value", "boolean"});
  if (!input.is_undefined() && (!given.flag(1, false) || truth(input))) return input;
  return given.has(0) ? given.at(0) : runtime.text("");
}

Value map(Runtime& runtime, const Value& input, Arguments arguments) {
  std::vector<Value> mapped;
  if (arguments.positional.empty()) {
    const ArgumentReader given("map", std::move(arguments), {"attribute", "default"});
    for (const Value& item : elements(runtime, input)) {
      mapped.push_back(at_path(runtime, item, given.at(0), given.get(1)));
    }
    return runtime.generator(std::move(mapped));
  }
  const std::string name = text_of(arguments.positional.front(), "a filter's name").bytes();
  const Filter filter = find_filter(name);
  if (filter == nullptr) throw no_filter(name);
  arguments.positional.erase(arguments.positional.begin());
  const Runtime::Depth depth(runtime);  // "map" is such a filter too
  for (const Value& item : elements(runtime, input)) {
    runtime.spend_steps(1);
    mapped.push_back(filter(runtime, item, arguments));
  }
  return runtime.generator(std::move(mapped));
}

template <bool wanted, bool by_attribute>
Value select(Runtime& runtime, const Value& input, Arguments arguments) {
  if (!truth(input)) return runtime.generator({});
  const auto take_first = [&] {
    Value taken = std::move(arguments.positional.front());
    arguments.positional.erase(arguments.positional.begin());
    return taken;
  };
  Value path;
  if (by_attribute) {
    if (arguments.positional.empty()) throw Failure("selectattr and rejectattr need an attribute");
    path = take_first();
  }
  Test test = nullptr;
  if (!arguments.positional.empty()) {
    const Value name = take_first();
    test = find_test(text_of(name, "a test's name").view());
    if (test == nullptr) throw no_test(name.text()->view());
  }
  std::vector<Value> items;
  for (const Value& item : elements(runtime, input)) {
    runtime.spend_steps(1);
    const Value value = at_path(runtime, item, path);
    const bool holds = test == nullptr ? truth(value) : test(runtime, value, arguments);
    if (holds == wanted) items.push_back(item);
  }
  return runtime.generator(std::move(items));
}

}  // namespace

Value at_path(Runtime& runtime, Value item, const Value& path, const Value& otherwise) {
  const auto step = [&](const Value& key) {
    item = get_item(runtime, item, key);
    if (item.is_undefined() && !otherwise.is_none()) item = otherwise;
  };
  if (path.is_none()) return item;
  if (!path.is_text()) {
    step(path);
    return item;
  }
  std::string_view rest = path.text()->view();
  for (bool more = true; more;) {
    const size_t end = std::min(rest.find('.'), rest.size());
    more = end < rest.size();
    const std::string_view part = rest.substr(0, end);
    int64_t index = 0;
    const auto number = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool is_index = !part.empty() && part.front() != '-' && number.ec == std::errc() &&
                          number.ptr == part.data() + part.size();
    step(is_index ? Value(index) : Value(part));
    rest.remove_prefix(more ? end + 1 : end);
  }
  return item;
}

Value sort_key(Runtime& runtime, const Value& item, const Value& path, bool case_sensitive) {
  Value key = at_path(runtime, item, path);
  if (case_sensitive || !key.is_text()) return key;
  runtime.spend_steps(key.text()->size() / 8);
  return runtime.text(lower(*key.text()));
}

Filter find_list_filter(std::string_view name) {
  static const std::unordered_map<std::string_view, Filter> known_filters = {
      {"count", &length_filter},
      {"d", &default_filter},
      {"default", &default_filter},
      {"dictsort", &dictsort},
      {"first", &first},
      {"items", &items_filter},
      {"join", &join},
      {"last", &last},
      {"length", &length_filter},
      {"list", &list_filter},
      {"map", &map},
      {"max",
       [](Runtime& r, const Value& v, Arguments a) { return extreme(r, v, std::move(a), true); }},
      {"min",
       [](Runtime& r, const Value& v, Arguments a) { return extreme(r, v, std::move(a), false); }},
      {"reject", &select<false, false>},
      {"rejectattr", &select<false, true>},
      {"reverse", &reverse},
      {"select", &select<true, false>},
      {"selectattr", &select<true, true>},
      {"sort", &sort},
      {"sum", &sum},
      {"unique", &unique}};
  const auto found = known_filters.find(name);
  return found == known_filters.end() ? nullptr : found->second;
}

Failure no_filter(std::string_view name) {
  constexpr std::array<std::string_view, 17> kOfJinja = {
      "attr",      "batch",  "center",    "filesizeformat", "forceescape", "format",
      "groupby",   "pprint", "random",    "slice",          "striptags",   "truncate",
      "urlencode", "urlize", "wordcount", "wordwrap",       "xmlattr"};
  if (std::find(kOfJinja.begin(), kOfJinja.end(), name) != kOfJinja.end()) {
    return Failure("the filter " + in_quotes(name) + " is not supported");
  }
  return Failure("there is no filter named " + in_quotes(name));
}

Filter find_filter(std::string_view name) {
  const Filter filter = find_text_filter(name);
  return filter != nullptr ? filter : find_list_filter(name);
}

}  // namespace faststream::jinja
