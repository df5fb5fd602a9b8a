// What keywords say of objects, and whether a value is valid under a schema.
#include <algorithm>
#include <cmath>
#include <limits>

#include "support/error.h"
#include "support/printable.h"
#include "text/rules/json_text.h"
#include "text/rules/regex.h"
#include "text/rules/schema_compiler.h"

namespace faststream::rules {
namespace {

constexpr int kMaxValidDepth = 200;
constexpr size_t kMaxPatterns = 5;  // of members' names in one object
constexpr int64_t kMaxCounted = 20000;

const SchemaJson* object_member(const SchemaJson& schema, const char* key) {
  if (!schema.is_object()) return nullptr;
  const auto found = schema.find(key);
  return found == schema.end() ? nullptr : &*found;
}

const SchemaJson* additional(const SchemaJson& schema) {
  const SchemaJson* others = object_member(schema, "additionalProperties");
  return others != nullptr ? others : object_member(schema, "unevaluatedProperties");
}

// Equal as JSON Schema has it: whatever the order of members and the spelling of numbers.
bool is_same(const SchemaJson& a, const SchemaJson& b) {
  if (a.is_string() || b.is_string()) return a == b;
  return nlohmann::json(a) == nlohmann::json(b);
}

}  // namespace

// The schemas of a member; nothing where it may not be there.
std::optional<SchemaCompiler::All> SchemaCompiler::member_schemas(const Schemas& schemas,
                                                                  const std::string& name) {
  All all;
  for (const SchemaJson* s : schemas) {
    const SchemaJson& schema = *s;
    bool is_told = false;
    if (const SchemaJson* members = object_member(schema, "properties")) {
      const auto found = members->find(name);
      if (found != members->end()) {
        all.schemas.insert(&*found);
        is_told = true;
      }
    }
    if (const SchemaJson* patterns = object_member(schema, "patternProperties")) {
      for (const auto& [text, of] : patterns->items()) {
        if (!pattern(schema, "patternProperties", text, true).accepts(name)) continue;
        all.schemas.insert(&of);
        is_told = true;
      }
    }
    const SchemaJson* others = additional(schema);
    if (!is_told && others != nullptr) all.schemas.insert(others);
    const SchemaJson* names = object_member(schema, "propertyNames");
    if (names != nullptr && !valid(name, *names, true)) return std::nullopt;
  }
  return all;
}

Expr SchemaCompiler::build_objects(const Schemas& schemas) {
  std::vector<std::string> names;
  std::set<std::string> known;
  std::set<std::string> required;
  const auto add = [&](const std::string& name) {
    if (known.insert(name).second) names.push_back(name);
  };
  for (const SchemaJson* s : schemas) {
    const SchemaJson* members = object_member(*s, "properties");
    if (members == nullptr) continue;
    if (!members->is_object()) refuse(*s, "\"properties\" that are no object");
    for (const auto& [name, ignored] : members->items()) add(name);
  }
  for (const SchemaJson* s : schemas) {
    const SchemaJson* list = object_member(*s, "required");
    if (list == nullptr || !list->is_array()) continue;  // draft 3 has true or false
    for (const SchemaJson& name : *list) {
      if (!name.is_string()) refuse(*s, "a \"required\" that is no list of texts");
      add(name.get<std::string>());
      required.insert(name.get<std::string>());
    }
  }
  return build_members(schemas, names, required);
}

Expr SchemaCompiler::build_members(const Schemas& schemas, const std::vector<std::string>& names,
                                   const std::set<std::string>& required) {
  int64_t least = 0;
  int64_t most = std::numeric_limits<int64_t>::max();
  for (const SchemaJson* schema : schemas) {
    if (!schema->is_object()) continue;
    least = std::max(least, count(*schema, "minProperties").value_or(0));
    most = std::min(most, count(*schema, "maxProperties").value_or(most));
  }
  struct Member {
    Expr expr;
    bool is_required = false;
  };
  std::vector<Member> members;
  for (const std::string& name : names) {
    const auto all = member_schemas(schemas, name);
    const Expr value = all ? rule_of(*all) : nothing();
    const bool is_required = required.contains(name);
    if (is_nothing(value)) {
      if (is_required) return nothing();
      continue;
    }
    members.push_back(
        {sequence({json_string(name), literal(":"), json_space(), value}), is_required});
  }
  const Expr others = build_others(schemas, names);
  const auto n = static_cast<int64_t>(members.size());
  const auto n_required = static_cast<int64_t>(required.size());
  least = std::max(least, n_required);
  if (is_nothing(others)) most = std::min(most, n);
  if (most < least) return nothing();
  // Names that the schema does not have may come twice, and count once then.
  if (!is_nothing(others) && least > std::max<int64_t>(n_required, 1)) {
    refuse(*schemas.front(), "\"minProperties\" above 1 of any names, which is not supported");
  }
  // A net of states by members that were passed and written ones, as far as these count.
  const bool is_bounded = most < (is_nothing(others) ? n : std::numeric_limits<int64_t>::max());
  const int64_t n_counts =
      std::max<int64_t>({least > n_required ? least : 0, is_bounded ? most : 0, 1});
  if (n_counts > 1 && (n + 1) * (n_counts + 1) > kMaxCounted) {
    refuse(*schemas.front(), "too many members for \"minProperties\" or \"maxProperties\"");
  }
  const auto state = [&](int64_t passed, int64_t written) {
    return static_cast<int32_t>(passed * (n_counts + 1) + written);
  };
  const int32_t end = state(n, n_counts) + 1;
  Net net(end + 1);
  const auto write = [&](int64_t from_passed, int64_t to_passed, int64_t written, const Expr& one) {
    if (is_bounded && written == n_counts && written >= most) return;
    const Expr part = written == 0 ? one : sequence({json_comma(), one});
    net.add(state(from_passed, written), state(to_passed, std::min(written + 1, n_counts)), part);
  };
  for (int64_t i = 0; i < n; ++i) {
    const Member& member = members[static_cast<size_t>(i)];
    for (int64_t written = 0; written <= std::min(i, n_counts); ++written) {
      write(i, i + 1, written, member.expr);
      if (!member.is_required) net.add(state(i, written), state(i + 1, written), literal(""));
    }
  }
  const int64_t least_counted = least > n_required ? least : 0;
  for (int64_t written = 0; written <= n_counts; ++written) {
    write(n, n, written, others);
    if (written > 0 && written >= std::min(least_counted, n_counts)) {
      net.add(state(n, written), end, literal(""));
    }
  }
  const Expr some = most == 0 ? nothing() : json_list('{', std::move(net).expr(), '}');
  const Expr none = sequence({literal("{"), json_space(), literal("}")});
  return least == 0 ? choice({none, some}) : some;
}

// The names that "propertyNames" allow; nothing: all.
std::optional<Dfa> SchemaCompiler::names_language(const Schemas& schemas) {
  std::optional<Dfa> language;
  for (const SchemaJson* s : schemas) {
    const SchemaJson* names = object_member(*s, "propertyNames");
    if (names == nullptr) continue;
    const Schemas flat = flatten({.schemas = {names}, .made = {}});
    if (find_choice(flat, {})) {
      refuse(*names, "alternatives for \"propertyNames\", which are not supported");
    }
    Dfa of = Dfa(repeat(any_character(), 0, kUnbounded), budget_);
    if ((types(flat) & kString) == 0) of = Dfa(nothing(), budget_);
    if (auto more = string_language(flat)) of = of.both(*more, budget_);
    for (const SchemaJson* part : flat) {
      if (*part == SchemaJson(false)) of = Dfa(nothing(), budget_);
      if (!part->is_object()) continue;
      const int64_t least = count(*part, "minLength").value_or(0);
      const auto most = count(*part, "maxLength");
      if (least > 0 || most) {
        constexpr int64_t kMost = 100000;
        const auto n_most = most ? static_cast<int32_t>(std::min(*most, kMost)) : kUnbounded;
        const auto n_least = static_cast<int32_t>(std::min(least, kMost));
        of = of.both(Dfa(repeat(any_character(), n_least, n_most), budget_), budget_);
      }
      std::vector<Expr> values;
      const SchemaJson* only = object_member(*part, "const");
      const SchemaJson* list = object_member(*part, "enum");
      if (only == nullptr && list == nullptr) continue;
      for (const SchemaJson& value : only != nullptr ? SchemaJson::array({*only}) : *list) {
        if (value.is_string()) values.push_back(literal(value.get<std::string>()));
      }
      of = of.both(Dfa(choice(std::move(values)), budget_), budget_);
    }
    language = language ? language->both(of, budget_) : of;
  }
  return language;
}

// A member of any other name, by which patterns the name fits.
Expr SchemaCompiler::build_others(const Schemas& schemas, const std::vector<std::string>& names) {
  struct Pattern {
    const SchemaJson* owner;
    const SchemaJson* value;
    const Dfa* names;
  };
  std::vector<Pattern> patterns;
  for (const SchemaJson* s : schemas) {
    const SchemaJson* of = object_member(*s, "patternProperties");
    if (of == nullptr) continue;
    if (!of->is_object()) refuse(*s, "\"patternProperties\" that are no object");
    for (const auto& [text, value] : of->items()) {
      patterns.push_back({s, &value, &pattern(*s, "patternProperties", text, true)});
    }
  }
  if (patterns.size() > kMaxPatterns) {
    refuse(*patterns.front().owner, "more than " + std::to_string(kMaxPatterns) +
                                        " \"patternProperties\", which is not supported");
  }
  std::optional<Dfa> language = names_language(schemas);
  if (!names.empty() || !patterns.empty()) {
    if (!language) language = Dfa(repeat(any_character(), 0, kUnbounded), budget_);
    std::vector<Expr> known;
    for (const std::string& name : names) known.push_back(literal(name));
    language = language->without(Dfa(choice(std::move(known)), budget_), budget_);
  }
  std::vector<Expr> parts;
  for (size_t fits = 0; fits < size_t{1} << patterns.size(); ++fits) {
    All all;
    for (const SchemaJson* s : schemas) {
      bool is_told = false;
      for (size_t i = 0; i < patterns.size(); ++i) {
        if (patterns[i].owner != s || (fits >> i & 1U) == 0) continue;
        all.schemas.insert(patterns[i].value);
        is_told = true;
      }
      const SchemaJson* others = additional(*s);
      if (!is_told && others != nullptr) all.schemas.insert(others);
    }
    if (std::ranges::any_of(all.schemas,
                            [](const SchemaJson* s) { return *s == SchemaJson(false); })) {
      continue;
    }
    std::optional<Dfa> of = language;
    for (size_t i = 0; i < patterns.size(); ++i) {
      const Dfa& fitting = *patterns[i].names;
      of = (fits >> i & 1U) != 0 ? of->both(fitting, budget_) : of->without(fitting, budget_);
    }
    if (of && of->is_nothing()) continue;
    const Expr value = rule_of(all);
    if (is_nothing(value)) continue;
    const Expr any_name =
        sequence({literal("\""), repeat(json_character(), 0, kUnbounded), literal("\"")});
    const Expr name = of ? json_string(*of, budget_) : shared("name", any_name);
    parts.push_back(sequence({name, literal(":"), json_space(), value}));
  }
  return choice(std::move(parts));
}

// Validity. ---------------------------------------------------------------------------------------

bool SchemaCompiler::valid_object(const SchemaJson& value, const SchemaJson& schema, int depth) {
  const auto n = static_cast<int64_t>(value.size());
  if (n < count(schema, "minProperties").value_or(0)) return false;
  if (n > count(schema, "maxProperties").value_or(n)) return false;
  if (const SchemaJson* required = object_member(schema, "required")) {
    for (const SchemaJson& name : *required) {
      if (name.is_string() && !value.contains(name.get<std::string>())) return false;
    }
  }
  for (const auto& [name, member] : value.items()) {
    const auto all = member_schemas({&schema}, name);
    if (!all) return false;
    for (const SchemaJson* of : all->schemas) {
      if (!valid(member, *of, true, depth + 1)) return false;
    }
  }
  for (const char* key : {"dependentRequired", "dependentSchemas", "dependencies"}) {
    const SchemaJson* dependents = object_member(schema, key);
    if (dependents == nullptr) continue;
    for (const auto& [name, dependent] : dependents->items()) {
      if (!value.contains(name)) continue;
      if (dependent.is_array()) {
        for (const SchemaJson& other : dependent) {
          if (other.is_string() && !value.contains(other.get<std::string>())) return false;
        }
      } else if (!valid(value, dependent, true, depth + 1)) {
        return false;
      }
    }
  }
  return true;
}

// with_choices: else keywords that find_choice() knows, references and allOf were followed already.
bool SchemaCompiler::valid(const SchemaJson& value, const SchemaJson& schema, bool with_choices,
                           int depth) {
  if (depth > kMaxValidDepth) throw Error("the JSON schema's values are nested too deep");
  if (schema.is_boolean()) return schema.get<bool>();
  if (!schema.is_object()) refuse(schema, "a schema that is no object, true or false");
  const auto fits = [&](const SchemaJson& other) { return valid(value, other, true, depth + 1); };
  if (with_choices) {
    check_keywords(schema);
    if (const SchemaJson* ref = object_member(schema, "$ref"); ref != nullptr && ref->is_string()) {
      if (!fits(document_.resolve(ref->get<std::string>()))) return false;
      if (document_.ref_is_alone()) return true;
    }
    const SchemaJson* all = object_member(schema, "allOf");
    if (all != nullptr && !std::ranges::all_of(*all, fits)) return false;
    const SchemaJson* any = object_member(schema, "anyOf");
    if (any != nullptr && std::ranges::none_of(*any, fits)) return false;
    const SchemaJson* one = object_member(schema, "oneOf");
    if (one != nullptr && std::ranges::count_if(*one, fits) != 1) return false;
    const SchemaJson* excluded = object_member(schema, "not");
    if (excluded != nullptr && fits(*excluded)) return false;
    if (const SchemaJson* condition = object_member(schema, "if")) {
      const SchemaJson* branch = object_member(schema, fits(*condition) ? "then" : "else");
      if (branch != nullptr && !fits(*branch)) return false;
    }
  }
  if (const SchemaJson* only = object_member(schema, "const")) {
    if (!is_same(value, *only)) return false;
  }
  const auto same = [&](const SchemaJson& other) { return is_same(value, other); };
  if (const SchemaJson* list = object_member(schema, "enum")) {
    if (list != tried_ && std::ranges::none_of(*list, same)) return false;
  }
  if (const SchemaJson* none = object_member(schema, kNoneOf)) {
    if (std::ranges::any_of(*none, same)) return false;
  }
  const uint8_t allowed = types({&schema});
  if (value.is_null()) return (allowed & kNull) != 0;
  if (value.is_boolean()) return (allowed & kBoolean) != 0;
  if (value.is_number()) {
    const auto number = value.get<double>();
    const bool is_integer = value.is_number_integer() || number == std::trunc(number);
    return (allowed & (is_integer ? kInteger : kOtherNumber)) != 0 && valid_number(value, schema);
  }
  if (value.is_string()) return (allowed & kString) != 0 && valid_string(value, schema);
  if (value.is_array()) return (allowed & kArray) != 0 && valid_array(value, schema, depth);
  return (allowed & kObject) != 0 && valid_object(value, schema, depth);
}

}  // namespace faststream::rules
