// What keywords say of numbers, strings and arrays.
#include <algorithm>
#include <limits>

#include "support/error.h"
#include "support/printable.h"
#include "text/rules/json_formats.h"
#include "text/rules/json_numbers.h"
#include "text/rules/json_text.h"
#include "text/rules/regex.h"
#include "text/rules/schema_compiler.h"

namespace faststream::rules {
namespace {

const SchemaJson* member_of(const SchemaJson& schema, const char* key) {
  if (!schema.is_object()) return nullptr;
  const auto found = schema.find(key);
  return found == schema.end() ? nullptr : &*found;
}

constexpr int32_t kMostRepeated = 1 << 30;

int32_t as_repetition(int64_t count) {
  return static_cast<int32_t>(std::min<int64_t>(count, kMostRepeated));
}

}  // namespace

// Adds what a schema says of numbers.
void read_bounds(const SchemaJson& schema, NumberBounds& bounds) {
  const auto number = [&](const char* key) -> std::optional<Decimal> {
    const SchemaJson* value = member_of(schema, key);
    if (value == nullptr || !value->is_number()) return std::nullopt;
    return Decimal::parse(value->dump());
  };
  // Draft 4 says with true that a bound is exclusive.
  const auto is_exclusive = [&](const char* key) {
    const SchemaJson* value = member_of(schema, key);
    return value != nullptr && *value == SchemaJson(true);
  };
  if (const auto least = number("minimum")) {
    bounds.at_least({*least, !is_exclusive("exclusiveMinimum")});
  }
  if (const auto most = number("maximum")) {
    bounds.at_most({*most, !is_exclusive("exclusiveMaximum")});
  }
  if (const auto least = number("exclusiveMinimum")) bounds.at_least({*least, false});
  if (const auto most = number("exclusiveMaximum")) bounds.at_most({*most, false});
  if (const auto factor = number("multipleOf")) {
    if (factor->negative || factor->is_zero()) throw Error("\"multipleOf\" that is not above 0");
    if (bounds.multiple_of && bounds.multiple_of->compare(*factor) != 0) {
      throw Error("two different \"multipleOf\" at once, which is not supported");
    }
    bounds.multiple_of = factor;
  }
}

Expr SchemaCompiler::build_numbers(const Schemas& schemas, uint8_t types) {
  NumberBounds bounds;
  bounds.is_integer = (types & kOtherNumber) == 0;
  for (const SchemaJson* schema : schemas) {
    try {
      read_bounds(*schema, bounds);
    } catch (const Error& error) {
      refuse(*schema, error.what());
    }
  }
  try {
    Expr numbers = number_expression(bounds, budget_);
    if (bounds.least || bounds.most || bounds.multiple_of) return numbers;
    return shared(bounds.is_integer ? "integer" : "number", numbers);
  } catch (const Error& error) {
    refuse(*schemas.front(), error.what());
  }
}

bool SchemaCompiler::valid_number(const SchemaJson& value, const SchemaJson& schema) {
  NumberBounds bounds;
  read_bounds(schema, bounds);
  if (!bounds.least && !bounds.most && !bounds.multiple_of) return true;
  return bounds.has(Decimal::parse(value.dump()), budget_);
}

// Strings. ----------------------------------------------------------------------------------------

const Dfa& SchemaCompiler::pattern(const SchemaJson& schema, const char* key,
                                   const std::string& text, bool anywhere) {
  const std::string name = (anywhere ? "~" : "=") + text;
  auto& known = patterns_[name];
  if (known) return *known;
  try {
    known = std::make_unique<const Dfa>(parse_regex(text, budget_, anywhere), budget_);
  } catch (const Error& error) {
    refuse(schema, "a " + in_quotes(key) + ": " + error.what());
  }
  return *known;
}

// What keywords but lengths say of strings; nothing where they say nothing.
std::optional<Dfa> SchemaCompiler::string_language(const Schemas& schemas) {
  std::optional<Dfa> language;
  const auto both = [&](const Dfa& other) {
    language = language ? language->both(other, budget_) : other;
  };
  for (const SchemaJson* s : schemas) {
    const SchemaJson& schema = *s;
    const SchemaJson* text = member_of(schema, "pattern");
    if (text != nullptr) {
      if (!text->is_string()) refuse(schema, "a \"pattern\" that is no text");
      both(pattern(schema, "pattern", text->get<std::string>(), true));
    }
    const SchemaJson* format = member_of(schema, "format");
    if (format != nullptr && format->is_string()) {
      const auto of_format = format_pattern(format->get<std::string>());
      if (!of_format) {
        refuse(schema, "the \"format\" " + format->dump() + ", which is not supported");
      }
      both(pattern(schema, "format", std::string(*of_format), false));
    }
  }
  const auto any = [this] { return Dfa(repeat(any_character(), 0, kUnbounded), budget_); };
  for (const SchemaJson* s : schemas) {
    if (const SchemaJson* text = member_of(*s, kNotPattern)) {
      if (!language) language = any();
      language = language->without(pattern(*s, "pattern", text->get<std::string>(), true), budget_);
    }
    std::vector<Expr> excluded;
    if (const SchemaJson* none = member_of(*s, kNoneOf)) {
      for (const SchemaJson& value : *none) {
        if (value.is_string()) excluded.push_back(literal(value.get<std::string>()));
      }
    }
    if (excluded.empty()) continue;
    if (!language) language = any();
    language = language->without(Dfa(choice(std::move(excluded)), budget_), budget_);
  }
  return language;
}

Expr SchemaCompiler::build_strings(const Schemas& schemas) {
  int64_t least = 0;
  int64_t most = std::numeric_limits<int64_t>::max();
  for (const SchemaJson* schema : schemas) {
    if (!schema->is_object()) continue;
    least = std::max(least, count(*schema, "minLength").value_or(0));
    most = std::min(most, count(*schema, "maxLength").value_or(most));
  }
  if (most < least) return nothing();
  const bool is_bounded = most < kMostRepeated;
  const int32_t n_most = is_bounded ? as_repetition(most) : kUnbounded;
  std::optional<Dfa> language = string_language(schemas);
  if (!language) {
    const std::string name = "string of " + std::to_string(least) + " to " + std::to_string(n_most);
    return shared(name,
                  sequence({literal("\""), repeat(json_character(), as_repetition(least), n_most),
                            literal("\"")}));
  }
  try {
    if (least > 0 || is_bounded) {
      // Where the lengths say nothing new, the product is as large as the language.
      const Expr lengths = repeat(any_character(), as_repetition(least), n_most);
      language = language->both(Dfa(lengths, budget_), budget_);
    }
  } catch (const Error& error) {
    refuse(*schemas.front(), error.what());
  }
  return json_string(*language, budget_);
}

bool SchemaCompiler::valid_string(const SchemaJson& value, const SchemaJson& schema) {
  const auto text = value.get<std::string>();
  const auto length = static_cast<int64_t>(count_characters(text));
  if (length < count(schema, "minLength").value_or(0)) return false;
  if (length > count(schema, "maxLength").value_or(length)) return false;
  const std::optional<Dfa> language = string_language({&schema});
  return !language || language->accepts(text);
}

// Arrays. -----------------------------------------------------------------------------------------

namespace {

// The schemas of the first items, and of the others; null: any.
struct Items {
  const SchemaJson* first = nullptr;
  const SchemaJson* others = nullptr;
  [[nodiscard]] size_t n_first() const { return first == nullptr ? 0 : first->size(); }
  [[nodiscard]] const SchemaJson* at(size_t i) const {
    return i < n_first() ? &(*first)[i] : others;
  }
};

Items items_of(const SchemaJson& schema) {
  Items items{.first = member_of(schema, "prefixItems"), .others = member_of(schema, "items")};
  if (items.others != nullptr && items.others->is_array()) {  // until 2019-09
    items.first = items.others;
    items.others = member_of(schema, "additionalItems");
  }
  if (items.others == nullptr) items.others = member_of(schema, "unevaluatedItems");
  return items;
}

}  // namespace

Expr SchemaCompiler::build_arrays(const Schemas& schemas) {
  constexpr int64_t kMaxContained = 20;
  constexpr int64_t kMaxFirst = 10000;
  int64_t least = 0;
  int64_t most = kMostRepeated;
  size_t n_first = 0;
  const SchemaJson* contained = nullptr;
  int64_t n_contained = 0;
  for (const SchemaJson* s : schemas) {
    const SchemaJson& schema = *s;
    if (!schema.is_object()) continue;
    least = std::max(least, count(schema, "minItems").value_or(0));
    most = std::min(most, count(schema, "maxItems").value_or(most));
    n_first = std::max(n_first, items_of(schema).n_first());
    const SchemaJson* contains = member_of(schema, "contains");
    const int64_t n = count(schema, "minContains").value_or(1);
    if (contains == nullptr) continue;
    if (schema.contains("maxContains")) refuse(schema, "\"maxContains\", which is not supported");
    if (n == 0) continue;
    if (contained != nullptr) refuse(schema, "two \"contains\" at once, which is not supported");
    contained = contains;
    n_contained = n;
  }
  const auto item = [&](size_t i) {
    All all;
    for (const SchemaJson* schema : schemas) {
      if (const SchemaJson* of = items_of(*schema).at(i)) all.schemas.insert(of);
    }
    return all;
  };
  const auto first_of = [&]() -> const SchemaJson& { return *schemas.front(); };
  if (n_contained > 0) {
    if (n_first > 0 || most < kMostRepeated || least > n_contained || n_contained > kMaxContained) {
      refuse(first_of(),
             "\"contains\" beside first items or bounds of items, which is not supported");
    }
    All all = item(0);
    const Expr any = rule_of(all);
    all.schemas.insert(contained);
    const Expr one = rule_of(all);
    std::vector<Expr> parts;
    for (int64_t i = 0; i < n_contained; ++i) {
      parts.push_back(repeat(sequence({any, json_comma()}), 0, kUnbounded));
      parts.push_back(one);
      if (i + 1 < n_contained) parts.push_back(json_comma());
    }
    parts.push_back(repeat(sequence({json_comma(), any}), 0, kUnbounded));
    return json_list('[', sequence(std::move(parts)), ']');
  }
  const auto n = static_cast<int64_t>(n_first);
  if (n > kMaxFirst) refuse(first_of(), "too many first items");
  Net net(static_cast<int32_t>(n + 2));
  const auto end = static_cast<int32_t>(n + 1);
  for (int64_t i = 0; i < std::min(n, most); ++i) {
    const Expr one = rule_of(item(static_cast<size_t>(i)));
    const auto from = static_cast<int32_t>(i);
    net.add(from, from + 1, i == 0 ? one : sequence({json_comma(), one}));
    if (i >= least && i > 0) net.add(from, end, literal(""));
  }
  if (most >= n) {
    const auto last = static_cast<int32_t>(n);
    const int64_t least_left = std::max<int64_t>(least - n, 0);
    const Expr one = most > n ? rule_of(item(n_first)) : nothing();
    const Expr more = sequence({json_comma(), one});
    const auto left = [&](int64_t taken) {
      const int32_t n_most = most >= kMostRepeated ? kUnbounded : as_repetition(most - n - taken);
      return repeat(more, as_repetition(std::max<int64_t>(least_left - taken, 0)), n_most);
    };
    if (n > 0) {
      net.add(last, end, left(0));
    } else if (!is_nothing(one)) {
      net.add(0, end, sequence({one, left(1)}));
    }
  } else if (most > 0) {
    net.add(static_cast<int32_t>(most), end, literal(""));
  }
  const Expr some = json_list('[', std::move(net).expr(), ']');
  const Expr none = sequence({literal("["), json_space(), literal("]")});
  return least == 0 ? choice({none, some}) : some;
}

bool SchemaCompiler::valid_array(const SchemaJson& value, const SchemaJson& schema, int depth) {
  const auto n = static_cast<int64_t>(value.size());
  if (n < count(schema, "minItems").value_or(0)) return false;
  if (n > count(schema, "maxItems").value_or(n)) return false;
  const Items items = items_of(schema);
  for (size_t i = 0; i < value.size(); ++i) {
    const SchemaJson* of = items.at(i);
    if (of != nullptr && !valid(value[i], *of, true, depth + 1)) return false;
  }
  const SchemaJson* contains = member_of(schema, "contains");
  if (contains == nullptr) return true;
  const int64_t found = std::ranges::count_if(
      value, [&](const SchemaJson& one) { return valid(one, *contains, true, depth + 1); });
  return found >= count(schema, "minContains").value_or(1) &&
         found <= count(schema, "maxContains").value_or(found);
}

}  // namespace faststream::rules
