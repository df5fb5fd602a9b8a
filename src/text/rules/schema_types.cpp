// What keywords say of numbers and strings.
#include <algorithm>
#include <limits>

#include "support/error.h"
#include "support/printable.h"
#include "text/rules/counted_graph.h"
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
    const bool is_known = std::ranges::any_of(
        bounds.multiple_of, [&](const Decimal& other) { return other.compare(*factor) == 0; });
    if (!is_known) bounds.multiple_of.push_back(*factor);
  }
  if (const auto factor = number(kNotMultiple)) bounds.not_multiple_of.push_back(*factor);
  if (const SchemaJson* none = member_of(schema, kNoneOf)) {
    for (const SchemaJson& value : *none) {
      if (value.is_number()) bounds.excluded.push_back(Decimal::parse(value.dump()));
    }
  }
}

Expr SchemaCompiler::build_numbers(const Schemas& schemas, uint8_t types) {
  NumberBounds bounds;
  bounds.is_integer = (types & kOtherNumber) == 0;
  bounds.is_fraction = (types & kInteger) == 0;
  for (const SchemaJson* schema : schemas) {
    try {
      read_bounds(*schema, bounds);
    } catch (const Error& error) {
      refuse(*schema, error.what());
    }
  }
  try {
    Expr numbers = number_expression(bounds, budget_);
    if (!bounds.are_none()) return numbers;
    return shared(bounds.is_integer ? "integer" : "number", numbers);
  } catch (const Error& error) {
    refuse(*schemas.front(), error.what());
  }
}

bool SchemaCompiler::valid_number(const SchemaJson& value, const SchemaJson& schema) {
  NumberBounds bounds;
  read_bounds(schema, bounds);
  if (bounds.are_none()) return true;
  return bounds.has(Decimal::parse(value.dump()), budget_);
}

// Strings. ----------------------------------------------------------------------------------------

const Dfa& SchemaCompiler::pattern(const SchemaJson& schema, const char* key,
                                   const std::string& text, bool anywhere) {
  const std::string name = (anywhere ? "~" : "=") + text;
  auto& known = patterns_[name];
  if (known) return *known;
  try {
    known = std::make_unique<const Dfa>(parse_regex(text, classes_, anywhere), budget_);
  } catch (const Error& error) {
    refuse(schema, "a " + in_quotes(key) + ": " + error.what());
  }
  return *known;
}

const Dfa& SchemaCompiler::format_language(const SchemaJson& schema, const SchemaJson& format) {
  const auto& name = format.get_ref<const std::string&>();
  const Dfa* language = format_dfa(name);
  if (language == nullptr) {
    refuse(schema, "the \"format\" " + in_quotes(name) + ", which is not supported");
  }
  return *language;
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
    if (const SchemaJson* format = member_of(schema, "format"))
      both(format_language(schema, *format));
  }
  const auto any = [this] { return Dfa(repeat(any_character(), 0, kUnbounded), budget_); };
  for (const SchemaJson* s : schemas) {
    if (const SchemaJson* text = member_of(*s, kNotPattern)) {
      if (!language) language = any();
      language = language->without(pattern(*s, "pattern", text->get<std::string>(), true), budget_);
    }
    if (const SchemaJson* format = member_of(*s, kNotFormat)) {
      if (!language) language = any();
      language = language->without(format_language(*s, *format), budget_);
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

// Nothing where numbers of characters do not tell whether a text can be completed.
std::optional<Expr> SchemaCompiler::build_counted_string(const Dfa& language, int32_t least,
                                                         int32_t most) {
  auto counted = std::make_shared<const Graph>(language.json_graph(budget_));
  const auto left = characters_left(*counted, least);
  if (!left) {
    constexpr size_t kSmall = 20000;
    if (least == 0 || language.size() * static_cast<size_t>(least) > kSmall) return std::nullopt;
    const Dfa longer(repeat(any_character(), least, kUnbounded), budget_);
    if (most == kUnbounded) return json_string(language.both(longer, budget_), budget_);
    return build_counted_string(language.both(longer, budget_), 0, most);
  }
  if (counted->accepting.empty() || (most != kUnbounded && left->front() > most)) return nothing();
  return sequence({literal("\""), counted_graph(counted, least, most), literal("\"")});
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
  if (least == 0 && !is_bounded) return json_string(*language, budget_);
  // Counted, unless their product is small.
  constexpr int64_t kSmall = 5000;
  const auto size = static_cast<int64_t>(language->size());
  if (size * (is_bounded ? most : least) > kSmall) {
    if (auto counted = build_counted_string(*language, as_repetition(least), n_most)) {
      return *counted;
    }
  }
  try {
    const Expr lengths = repeat(any_character(), as_repetition(least), n_most);
    return json_string(language->both(Dfa(lengths, budget_), budget_), budget_);
  } catch (const Error& error) {
    refuse(*schemas.front(), error.what());
  }
}

bool SchemaCompiler::valid_string(const SchemaJson& value, const SchemaJson& schema) {
  const auto text = value.get<std::string>();
  const auto length = static_cast<int64_t>(count_characters(text));
  if (length < count(schema, "minLength").value_or(0)) return false;
  if (length > count(schema, "maxLength").value_or(length)) return false;
  const std::optional<Dfa> language = string_language({&schema});
  return !language || language->accepts(text);
}

}  // namespace faststream::rules
