#include "text/rules/schema_compiler.h"

#include <algorithm>
#include <array>

#include "support/error.h"
#include "support/printable.h"
#include "text/rules/json_text.h"

namespace faststream::rules {
namespace {

constexpr int kMaxRuleDepth = 300;    // of rules that are being made
constexpr size_t kMaxExclusive = 64;  // alternatives of oneOf, each beside each

const SchemaJson* find(const SchemaJson& schema, const char* key) {
  const auto found = schema.find(key);
  return found == schema.end() ? nullptr : &*found;
}

}  // namespace

void SchemaCompiler::refuse(const SchemaJson& schema, const std::string& what) const {
  throw Error("the JSON schema's " + document_.place(schema) + " has " + what);
}

Grammar SchemaCompiler::compile() {
  grammar_.rules.push_back({"#", nothing()});
  const Expr whole = rule_of({.schemas = {&document_.root()}, .made = {}});
  if (is_nothing(whole)) {
    throw Error("the JSON schema is unsatisfiable: no value is valid under it");
  }
  grammar_.rules.front().expr = whole;
  return std::move(grammar_);
}

void SchemaCompiler::count_combination(const All& all) {
  constexpr size_t kSteps = 800;
  constexpr size_t kStepsOfOne = 20;
  budget_.spend(kSteps + kStepsOfOne * (all.schemas.size() + all.made.size()));
}

Expr SchemaCompiler::shared(const std::string& name, const Expr& expr) {
  const auto found = shared_.find(name);
  if (found != shared_.end()) return found->second;
  const auto rule = static_cast<int32_t>(grammar_.rules.size());
  grammar_.rules.push_back({name, expr});
  return shared_[name] = call(rule);
}

Expr SchemaCompiler::rule_of(const All& all) {
  const auto [found, is_new] = rules_.try_emplace(all, static_cast<int32_t>(grammar_.rules.size()));
  const int32_t rule = found->second;
  const auto r = static_cast<size_t>(rule);
  // A rule in the making has no expression: it calls itself.
  if (!is_new)
    return grammar_.rules[r].expr && is_nothing(grammar_.rules[r].expr) ? nothing() : call(rule);
  const std::string name = all.schemas.empty() ? "#" : document_.place(**all.schemas.begin());
  grammar_.rules.push_back({name, nullptr});
  if (++depth_ > kMaxRuleDepth) {
    throw Error("the JSON schema's " + name + " is nested too deep; make it flatter");
  }
  Expr expr = build(all);
  --depth_;
  grammar_.rules[r].expr = expr;
  return is_nothing(expr) ? expr : call(rule);
}

Expr SchemaCompiler::build(const All& all) {
  count_combination(all);
  const Schemas schemas = flatten(all);
  if (std::ranges::any_of(schemas, [](const SchemaJson* s) { return *s == SchemaJson(false); })) {
    return nothing();
  }
  if (const auto choice = find_choice(schemas, all)) {
    return has_no_value(schemas) ? nothing() : build_choice(*choice, all);
  }
  const uint8_t allowed = types(schemas);
  if (const auto values = values_of(schemas)) {
    std::vector<Expr> parts;
    for (const SchemaJson& value : *values) parts.push_back(json_value(value));
    return choice(std::move(parts));
  }
  std::vector<Expr> parts;
  const auto is_excluded = [&](const SchemaJson& value) {
    return std::ranges::any_of(schemas, [&](const SchemaJson* s) {
      const SchemaJson* none = s->is_object() ? find(*s, kNoneOf) : nullptr;
      return none != nullptr && std::ranges::find(*none, value) != none->end();
    });
  };
  if ((allowed & kNull) != 0 && !is_excluded(nullptr)) parts.push_back(literal("null"));
  for (const bool value : {false, true}) {
    if ((allowed & kBoolean) != 0 && !is_excluded(value)) {
      parts.push_back(literal(value ? "true" : "false"));
    }
  }
  if ((allowed & (kInteger | kOtherNumber)) != 0) parts.push_back(build_numbers(schemas, allowed));
  if ((allowed & kString) != 0) parts.push_back(build_strings(schemas));
  if ((allowed & kArray) != 0) parts.push_back(build_arrays(schemas, all));
  if ((allowed & kObject) != 0) parts.push_back(build_objects(schemas, all));
  return choice(std::move(parts));
}

// Whether a member that is required has no value left, so that choices that are still to be made
// need not be: conditions often ask for one of many values.
bool SchemaCompiler::has_no_value(const Schemas& schemas) {
  std::set<std::string> required;
  for (const SchemaJson* s : schemas) {
    const SchemaJson* names = s->is_object() ? find(*s, "required") : nullptr;
    if (names == nullptr || !names->is_array()) continue;
    for (const SchemaJson& name : *names) required.insert(name.get<std::string>());
  }
  if ((types(schemas) & ~kObject) != 0) return false;
  return std::ranges::any_of(required, [&](const std::string& name) {
    All all;
    for (const SchemaJson* s : schemas) {
      const SchemaJson* members = s->is_object() ? find(*s, "properties") : nullptr;
      if (members != nullptr && members->contains(name)) all.schemas.insert(&members->at(name));
    }
    if (all.schemas.size() < 2) return false;
    const Schemas flat = flatten(all);
    if (std::ranges::any_of(flat, [](const SchemaJson* s) { return *s == SchemaJson(false); })) {
      return true;
    }
    const auto values = values_of(flat);
    return values && values->empty();
  });
}

// All schemas that hold where these do.
SchemaCompiler::Schemas SchemaCompiler::flatten(const All& all) {
  Schemas flat;
  std::set<const SchemaJson*> seen;
  // In the document's order where it says one: members are written in the order of the schema.
  Schemas todo(all.schemas.begin(), all.schemas.end());
  std::ranges::sort(todo, [this](const SchemaJson* a, const SchemaJson* b) {
    const auto at_a = document_.position(*a);
    const auto at_b = document_.position(*b);
    return at_a != at_b ? at_a < at_b : a < b;
  });
  std::ranges::reverse(todo);
  while (!todo.empty()) {
    const SchemaJson& schema = *todo.back();
    todo.pop_back();
    if (!seen.insert(&schema).second) continue;
    if (!schema.is_object() && !schema.is_boolean()) {
      refuse(schema, "a schema that is no object, true or false");
    }
    if (schema.is_boolean()) {
      flat.push_back(&schema);
      continue;
    }
    const SchemaJson* ref = find(schema, "$ref");
    const bool is_alone = ref != nullptr && document_.ref_is_alone();
    if (!is_alone) {
      check_keywords(schema);
      flat.push_back(&schema);
      if (const SchemaJson* parts = find(schema, "allOf")) {
        if (!parts->is_array()) refuse(schema, "an \"allOf\" that is no list");
        for (size_t i = parts->size(); i-- > 0;) todo.push_back(&(*parts)[i]);
      }
      if (const SchemaJson* excluded = find(schema, "not")) {
        todo.push_back(&negation(schema, *excluded));
      }
    }
    for (const char* key : kReferences) {
      const SchemaJson* reference = find(schema, key);
      if (reference == nullptr || (is_alone && reference != ref)) continue;
      todo.push_back(&document_.resolve(reference->get<std::string>()));
    }
  }
  return flat;
}

const SchemaJson& SchemaCompiler::negation(const SchemaJson& owner, const SchemaJson& schema) {
  try {
    return document_.negation(schema);
  } catch (const Error& error) {
    refuse(owner, error.what());
  }
}

void SchemaCompiler::check_keywords(const SchemaJson& schema) const {
  for (const auto& [key, value] : schema.items()) {
    if (is_refused_keyword(key)) refuse(schema, in_quotes(key) + ", which is not supported");
  }
}

// Of a value it is not known what alternatives evaluate.
void SchemaCompiler::check_unevaluated(const SchemaJson& schema) const {
  for (const char* key : {"unevaluatedProperties", "unevaluatedItems"}) {
    if (!schema.contains(key)) continue;
    for (const char* other : {"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if",
                              "dependentSchemas", "dependencies", "contains"}) {
      if (!schema.contains(other)) continue;
      refuse(schema, in_quotes(key) + " beside " + in_quotes(other) +
                         ", which is not supported for values of \"enum\" and \"const\"");
    }
  }
}

// The schemas that hold in place of one, after itself.
SchemaCompiler::Schemas SchemaCompiler::in_place(const SchemaJson& owner, const All& all) {
  Schemas found;
  std::set<const SchemaJson*> seen;
  Schemas todo = {&owner};
  while (!todo.empty()) {
    const SchemaJson& schema = *todo.back();
    todo.pop_back();
    if (!schema.is_object() || !seen.insert(&schema).second) continue;
    const bool is_alone = document_.ref_is_alone() && schema.contains("$ref");
    for (const char* key : kReferences) {
      const SchemaJson* ref = find(schema, key);
      if (ref != nullptr) todo.push_back(&document_.resolve(ref->get<std::string>()));
    }
    if (is_alone) continue;
    found.push_back(&schema);
    if (const SchemaJson* parts = find(schema, "allOf")) {
      for (const SchemaJson& part : *parts) todo.push_back(&part);
    }
    const auto add_made = [&](const SchemaJson* way) {
      if (all.schemas.contains(way)) todo.push_back(way);
    };
    for (const char* key : {"anyOf", "oneOf"}) {
      const SchemaJson* ways = find(schema, key);
      for (size_t i = 0; ways != nullptr && i < ways->size(); ++i) add_made(&(*ways)[i]);
    }
    for (auto made = made_.lower_bound({&schema, ""});
         made != made_.end() && made->first.first == &schema; ++made) {
      std::ranges::for_each(made->second, add_made);
    }
  }
  return found;
}

std::vector<SchemaCompiler::Unevaluated> SchemaCompiler::unevaluated(const Schemas& schemas,
                                                                     const All& all,
                                                                     const char* key) {
  std::vector<Unevaluated> found;
  for (const SchemaJson* schema : schemas) {
    const SchemaJson* value = schema->is_object() ? find(*schema, key) : nullptr;
    if (value != nullptr) found.push_back({schema, value, in_place(*schema, all)});
  }
  return found;
}

// The first choice that was not made.
std::optional<SchemaCompiler::Choice> SchemaCompiler::find_choice(const Schemas& schemas,
                                                                  const All& all) {
  const bool evaluates = std::ranges::any_of(schemas, [](const SchemaJson* s) {
    return s->is_object() &&
           (s->contains("unevaluatedProperties") || s->contains("unevaluatedItems"));
  });
  for (const SchemaJson* s : schemas) {
    const SchemaJson& schema = *s;
    if (!schema.is_object()) continue;
    for (const char* key : {"anyOf", "oneOf"}) {
      const SchemaJson* ways = find(schema, key);
      if (ways == nullptr || all.made.contains({s, key})) continue;
      if (!ways->is_array() || ways->empty()) {
        refuse(schema, in_quotes(key) + " that is no list of schemas");
      }
      Choice choice{.what = {s, key}, .ways = {}, .exclusive = std::string_view(key) == "oneOf"};
      if (evaluates && !choice.exclusive) {
        choice.ways = subsets(schema, *ways);
      } else {
        for (const SchemaJson& way : *ways) choice.ways.push_back({&way});
      }
      return choice;
    }
    if (!all.made.contains({s, "if"})) {
      if (auto condition = find_condition(schema, evaluates)) return condition;
    }
    if (auto dependency = find_dependency(schema, all)) return dependency;
  }
  return std::nullopt;
}

// All that may hold at once of alternatives, since all that do evaluate members and items.
std::vector<SchemaCompiler::Schemas> SchemaCompiler::subsets(const SchemaJson& owner,
                                                             const SchemaJson& ways) const {
  constexpr size_t kMost = 5;
  if (ways.size() > kMost) {
    refuse(owner, "\"anyOf\" of more than " + std::to_string(kMost) +
                      " alternatives where unevaluated members or items count, which is not "
                      "supported");
  }
  std::vector<Schemas> found;
  for (size_t set = 1; set < size_t{1} << ways.size(); ++set) {
    Schemas& schemas = found.emplace_back();
    for (size_t i = 0; i < ways.size(); ++i) {
      if ((set >> i & 1U) != 0) schemas.push_back(&ways[i]);
    }
  }
  return found;
}

// evaluates: what the condition says of members and items counts, even if nothing follows from it.
std::optional<SchemaCompiler::Choice> SchemaCompiler::find_condition(const SchemaJson& schema,
                                                                     bool evaluates) {
  const SchemaJson* condition = find(schema, "if");
  const SchemaJson* then = find(schema, "then");
  const SchemaJson* otherwise = find(schema, "else");
  if (condition == nullptr) return std::nullopt;
  if (then == nullptr && otherwise == nullptr && !evaluates) return std::nullopt;
  Schemas& made = made_[{&schema, "if"}];
  if (made.empty()) {
    const auto both = [this](SchemaJson a, const SchemaJson* b) {
      SchemaJson parts = SchemaJson::array({std::move(a)});
      if (b != nullptr) parts.push_back(*b);
      return &document_.keep({{"allOf", std::move(parts)}});
    };
    SchemaJson no = true;
    if (then != nullptr || otherwise != nullptr) no = {{"not", *condition}};
    made = {both(*condition, then), both(std::move(no), otherwise)};
  }
  return Choice{.what = {&schema, "if"}, .ways = {{made.front()}, {made.back()}}};
}

// Either a member is not there, or what depends on it holds.
std::optional<SchemaCompiler::Choice> SchemaCompiler::find_dependency(const SchemaJson& schema,
                                                                      const All& all) {
  for (const char* key : {"dependentRequired", "dependentSchemas", "dependencies"}) {
    const SchemaJson* dependents = find(schema, key);
    if (dependents == nullptr) continue;
    if (!dependents->is_object()) refuse(schema, in_quotes(key) + " that is no object");
    for (const auto& [name, dependent] : dependents->items()) {
      const std::pair<const SchemaJson*, std::string> what(&schema, key + ("/" + name));
      if (all.made.contains(what)) continue;
      Schemas& made = made_[what];
      if (made.empty()) {
        const SchemaJson without = {{"properties", SchemaJson::object({{name, false}})}};
        SchemaJson with = {{"required", SchemaJson::array({name})}};
        if (dependent.is_array()) {
          for (const SchemaJson& other : dependent) with["required"].push_back(other);
        } else {
          with["allOf"] = SchemaJson::array({dependent});
        }
        made = {&document_.keep(without), &document_.keep(std::move(with))};
      }
      return Choice{.what = what, .ways = {{made.front()}, {made.back()}}};
    }
  }
  return std::nullopt;
}

Expr SchemaCompiler::build_choice(const Choice& made, const All& all) {
  All rest = all;
  rest.made.insert(made.what);
  std::vector<Expr> parts;
  Schemas possible;
  for (const Schemas& way : made.ways) {
    All with = rest;
    with.schemas.insert(way.begin(), way.end());
    Expr expr = rule_of(with);
    if (is_nothing(expr)) continue;
    parts.push_back(std::move(expr));
    possible.push_back(way.front());
  }
  if (made.exclusive && possible.size() > kMaxExclusive) {
    refuse(*made.what.first, "\"oneOf\" of more than " + std::to_string(kMaxExclusive) +
                                 " alternatives, which is not supported; use \"anyOf\"");
  }
  for (size_t i = 0; made.exclusive && i < possible.size(); ++i) {
    Schemas others;  // that may be valid, too
    for (size_t j = 0; j < possible.size(); ++j) {
      if (j != i && !are_disjoint(*possible[i], *possible[j], rest)) others.push_back(possible[j]);
    }
    if (!others.empty()) parts[i] = build_alone(made, *possible[i], others, rest);
  }
  return choice(std::move(parts));
}

// An alternative of oneOf where others, which may be valid, too, are not.
Expr SchemaCompiler::build_alone(const Choice& made, const SchemaJson& way, const Schemas& others,
                                 const All& rest) {
  All with = rest;
  with.schemas.insert(&way);
  try {
    for (const SchemaJson* other : others) with.schemas.insert(&document_.negation(*other));
    return rule_of(with);
  } catch (const Error& error) {
    refuse(*made.what.first,
           "\"oneOf\" of which two alternatives may be valid at once, which is not supported (" +
               std::string(error.what()) + "); use \"anyOf\"");
  }
}

bool SchemaCompiler::are_disjoint(const SchemaJson& a, const SchemaJson& b, const All& all) {
  All with = all;
  if (!with.schemas.insert(&a).second || !with.schemas.insert(&b).second) return false;
  const size_t n_rules = grammar_.rules.size();
  const int depth = depth_;
  try {
    const bool disjoint = is_nothing(rule_of(with));
    return disjoint;
  } catch (const Error&) {  // cannot be said
    depth_ = depth;
    std::erase_if(rules_, [&](const auto& rule) {
      return static_cast<size_t>(rule.second) >= n_rules &&
             !grammar_.rules[static_cast<size_t>(rule.second)].expr;
    });
    for (size_t r = n_rules; r < grammar_.rules.size(); ++r) {
      if (!grammar_.rules[r].expr) grammar_.rules[r].expr = nothing();
    }
    return false;
  }
}

uint8_t SchemaCompiler::types(const Schemas& schemas) const {
  uint8_t allowed = kAnyType;
  const auto of_name = [this](const SchemaJson& schema, const SchemaJson& name) -> uint8_t {
    if (name == "null") return kNull;
    if (name == "boolean") return kBoolean;
    if (name == "integer") return kInteger;
    if (name == "number") return kInteger | kOtherNumber;
    if (name == "string") return kString;
    if (name == "array") return kArray;
    if (name == "object") return kObject;
    if (name == "any") return kAnyType;
    if (name == kFraction) return kOtherNumber;
    refuse(schema, "the \"type\" " + name.dump() + ", which is unknown");
  };
  for (const SchemaJson* schema : schemas) {
    const SchemaJson* type = schema->is_object() ? find(*schema, "type") : nullptr;
    if (type == nullptr) continue;
    uint8_t named = 0;
    if (type->is_array()) {
      for (const SchemaJson& name : *type) named |= of_name(*schema, name);
    } else {
      named = of_name(*schema, *type);
    }
    allowed &= named;
  }
  return allowed;
}

// The values of an enumeration that are valid; nothing where there is none.
std::optional<std::vector<SchemaJson>> SchemaCompiler::values_of(const Schemas& schemas) {
  for (const SchemaJson* schema : schemas) {
    if (!schema->is_object()) continue;
    const SchemaJson* only = find(*schema, "const");
    const SchemaJson* list = find(*schema, "enum");
    if (only == nullptr && list == nullptr) continue;
    SchemaJson values = only != nullptr ? SchemaJson::array({*only}) : *list;
    if (!values.is_array()) refuse(*schema, "an \"enum\" that is no list");
    std::vector<SchemaJson> found;
    tried_ = only != nullptr ? only : list;
    for (const SchemaJson& value : values) {
      const bool fits = std::ranges::all_of(
          schemas, [&](const SchemaJson* other) { return valid(value, *other, false); });
      if (fits) found.push_back(value);
    }
    tried_ = nullptr;
    return found;
  }
  return std::nullopt;
}

std::optional<int64_t> SchemaCompiler::count(const SchemaJson& schema, const char* key) const {
  constexpr double kMaxCount = 1e9;
  const SchemaJson* value = find(schema, key);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : -1;
  if (number < 0 ||
      number != static_cast<double>(static_cast<int64_t>(std::min(number, kMaxCount)))) {
    if (number > kMaxCount) return static_cast<int64_t>(kMaxCount);
    refuse(schema, in_quotes(key) + " that is no whole number");
  }
  return static_cast<int64_t>(number);
}

}  // namespace faststream::rules
