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
constexpr size_t kMaxNameKinds = 64;  // of one object, by the patterns that they fit
constexpr size_t kMaxSome = 4;        // members that are to be there, each beside each
constexpr int64_t kMaxCounted = 20000;

const SchemaJson* object_member(const SchemaJson& schema, const char* key) {
  if (!schema.is_object()) return nullptr;
  const auto found = schema.find(key);
  return found == schema.end() ? nullptr : &*found;
}

}  // namespace

// Whether a schema says of a member what it must be, so that the member is evaluated.
bool SchemaCompiler::evaluates(const SchemaJson& schema, const std::string& name) {
  const SchemaJson* members = object_member(schema, "properties");
  if (members != nullptr && members->contains(name)) return true;
  if (object_member(schema, "additionalProperties") != nullptr) return true;
  const SchemaJson* patterns = object_member(schema, "patternProperties");
  if (patterns == nullptr) return false;
  for (const auto& [text, of] : patterns->items()) {
    if (pattern(schema, "patternProperties", text, true).accepts(name)) return true;
  }
  return false;
}

// The schemas of a member; nothing where it may not be there.
std::optional<SchemaCompiler::All> SchemaCompiler::member_schemas(
    const Schemas& schemas, const std::vector<Unevaluated>& unevaluated, const std::string& name) {
  All all;
  budget_.spend(schemas.size());
  for (const Unevaluated& each : unevaluated) budget_.spend(each.others.size());
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
    const SchemaJson* others = object_member(schema, "additionalProperties");
    if (!is_told && others != nullptr) all.schemas.insert(others);
    const SchemaJson* names = object_member(schema, "propertyNames");
    if (names != nullptr && !valid(name, *names, true)) return std::nullopt;
  }
  for (const Unevaluated& each : unevaluated) {
    const bool is_evaluated = std::ranges::any_of(each.others, [&](const SchemaJson* other) {
      return evaluates(*other, name) ||
             (other != each.owner && other->contains("unevaluatedProperties"));
    });
    if (!is_evaluated) all.schemas.insert(each.value);
  }
  return all;
}

Expr SchemaCompiler::build_objects(const Schemas& schemas, const All& all) {
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
  return build_members(schemas, unevaluated(schemas, all, "unevaluatedProperties"), names,
                       required);
}

Expr SchemaCompiler::build_members(const Schemas& schemas,
                                   const std::vector<Unevaluated>& unevaluated,
                                   const std::vector<std::string>& names,
                                   const std::set<std::string>& required) {
  int64_t least = 0;
  int64_t most = std::numeric_limits<int64_t>::max();
  Schemas some;  // of members that are to be there
  for (const SchemaJson* schema : schemas) {
    if (!schema->is_object()) continue;
    least = std::max(least, count(*schema, "minProperties").value_or(0));
    most = std::min(most, count(*schema, "maxProperties").value_or(most));
    if (const SchemaJson* member = object_member(*schema, kSomeMember)) some.push_back(member);
  }
  if (some.size() > kMaxSome) {
    refuse(*schemas.front(), "too many \"not\" of members at once, which is not supported");
  }
  const size_t n_sets = size_t{1} << some.size();
  struct Member {
    std::vector<Expr> of_set;  // by the set of `some` that it is one of
    bool is_required = false;
  };
  std::vector<Member> members;
  const auto written_as = [](const std::string& name, const Expr& value) {
    if (is_nothing(value)) return value;
    return sequence({json_string(name), literal(":"), json_space(), value});
  };
  for (const std::string& name : names) {
    Member member{.of_set = {}, .is_required = required.contains(name)};
    for (size_t set = 0; set < n_sets; ++set) {
      Schemas with = schemas;
      for (size_t i = 0; i < some.size(); ++i) {
        if ((set >> i & 1U) != 0) with.push_back(some[i]);
      }
      const auto all = member_schemas(with, unevaluated, name);
      member.of_set.push_back(written_as(name, all ? rule_of(*all) : nothing()));
    }
    if (is_nothing(member.of_set.front())) {
      if (member.is_required) return nothing();
      continue;
    }
    members.push_back(std::move(member));
  }
  const Expr others = build_others(schemas, unevaluated, names);
  const auto n = static_cast<int64_t>(members.size());
  const auto n_required = static_cast<int64_t>(required.size());
  const bool has_others = !is_nothing(others);
  least = std::max(least, n_required);
  if (!has_others) most = std::min(most, n);
  if (most < least) return nothing();
  // Names that the schema does not have may come twice, and count once then.
  if (has_others && least > std::max<int64_t>(n_required, 1)) {
    refuse(*schemas.front(), "\"minProperties\" above 1 of any names, which is not supported");
  }
  // A net of states by members that were passed and written ones, as far as these count, and by
  // the set of `some` that there were.
  const bool is_bounded = most < (has_others ? std::numeric_limits<int64_t>::max() : n);
  const int64_t n_counts =
      std::max<int64_t>({least > n_required ? least : 0, is_bounded ? most : 0, 1});
  if ((n_counts > 1 || n_sets > 1) &&
      (n + 1 + static_cast<int64_t>(n_sets)) * (n_counts + 1) * static_cast<int64_t>(n_sets) >
          kMaxCounted) {
    refuse(*schemas.front(), "too many members for \"minProperties\" or \"maxProperties\"");
  }
  const auto state = [&](int64_t passed, int64_t written, size_t set) {
    return static_cast<int32_t>((static_cast<int64_t>(set) * (n + 1) + passed) * (n_counts + 1) +
                                written);
  };
  // Behind all others those that are one of `some`, by the set of names that they have, one a set:
  // of members of one name only the last one counts.
  const auto last_state = [&](size_t names_set, int64_t written, size_t set) {
    return state(n, n_counts, n_sets - 1) + 1 +
           static_cast<int32_t>((static_cast<int64_t>(names_set * n_sets + set)) * (n_counts + 1) +
                                written);
  };
  const int32_t end = last_state(n_sets, n_counts, n_sets - 1) + 1;
  Net net(end + 1);
  const auto may_write = [&](int64_t written) {
    return !is_bounded || written < n_counts || written < most;
  };
  const auto after = [](int64_t written, const Expr& one) {
    return written == 0 ? one : sequence({json_comma(), one});
  };
  const auto write_each = [&](int64_t from, int64_t to, int64_t written, size_t set,
                              const std::vector<Expr>& of_set) {
    for (size_t more = 0; more < n_sets && may_write(written); ++more) {
      if ((more & set) != 0 || is_nothing(of_set[more])) continue;
      net.add(state(from, written, set), state(to, std::min(written + 1, n_counts), set | more),
              after(written, of_set[more]));
    }
  };
  const int64_t least_counted = least > n_required ? least : 0;
  for (size_t set = 0; set < n_sets; ++set) {
    for (int64_t i = 0; i < n; ++i) {
      const Member& member = members[static_cast<size_t>(i)];
      for (int64_t written = 0; written <= std::min(i, n_counts); ++written) {
        write_each(i, i + 1, written, set, member.of_set);
        if (!member.is_required) {
          net.add(state(i, written, set), state(i + 1, written, set), literal(""));
        }
      }
    }
    for (int64_t written = 0; written <= n_counts; ++written) {
      if (may_write(written) && has_others) {
        net.add(state(n, written, set), state(n, std::min(written + 1, n_counts), set),
                after(written, others));
      }
      net.add(state(n, written, set), last_state(1, written, set), literal(""));
    }
  }
  for (size_t names_set = 1; names_set < n_sets; ++names_set) {
    for (size_t more = 1; more < n_sets; ++more) {
      if ((more & names_set) != more) continue;
      const Expr one =
          build_others(last_members(schemas, some, names_set, more), unevaluated, names);
      if (is_nothing(one)) continue;
      for (size_t set = 0; set < n_sets; ++set) {
        for (int64_t written = 0; written <= n_counts && (set & more) == 0; ++written) {
          if (!may_write(written)) continue;
          net.add(last_state(names_set, written, set),
                  last_state(names_set + 1, std::min(written + 1, n_counts), set | more),
                  after(written, one));
        }
      }
    }
    for (size_t set = 0; set < n_sets; ++set) {
      for (int64_t written = 0; written <= n_counts; ++written) {
        net.add(last_state(names_set, written, set), last_state(names_set + 1, written, set),
                literal(""));
      }
    }
  }
  for (int64_t written = 1; written <= n_counts; ++written) {
    if (written >= std::min(least_counted, n_counts)) {
      net.add(last_state(n_sets, written, n_sets - 1), end, literal(""));
    }
  }
  const Expr filled = most == 0 ? nothing() : json_list('{', std::move(net).expr(), '}');
  const Expr none = sequence({literal("{"), json_space(), literal("}")});
  return least == 0 && some.empty() ? choice({none, filled}) : filled;
}

// What holds for a member whose name is one of `names_set` of `some`, and of no other, and whose
// value is one of `set`.
SchemaCompiler::Schemas SchemaCompiler::last_members(const Schemas& schemas, const Schemas& some,
                                                     size_t names_set, size_t set) {
  Schemas all = schemas;
  for (size_t i = 0; i < some.size(); ++i) {
    if ((set >> i & 1U) != 0) {
      all.push_back(some[i]);
      continue;
    }
    const bool has_name = (names_set >> i & 1U) != 0;
    Schemas& made = made_[{some[i], has_name ? "names" : "no names"}];
    if (made.empty()) {
      SchemaJson names = some[i]->at("propertyNames");
      if (!has_name) names = {{"not", std::move(names)}};
      made.push_back(&document_.keep({{"propertyNames", std::move(names)}}));
    }
    all.push_back(made.front());
  }
  return all;
}

// The names that "propertyNames" allow; nothing: all.
std::optional<Dfa> SchemaCompiler::names_language(const Schemas& schemas) {
  std::optional<Dfa> language;
  for (const SchemaJson* s : schemas) {
    const SchemaJson* names = object_member(*s, "propertyNames");
    if (names == nullptr) continue;
    const Dfa of = names_of({.schemas = {names}, .made = {}});
    language = language ? language->both(of, budget_) : of;
  }
  return language;
}

// The texts that are valid.
Dfa SchemaCompiler::names_of(const All& all) {
  constexpr size_t kMaxMade = 100;
  count_combination(all);
  if (all.made.size() > kMaxMade) {
    refuse(**all.schemas.begin(), "too many alternatives for \"propertyNames\"");
  }
  const Schemas flat = flatten(all);
  const auto made = find_choice(flat, all);
  if (!made) return plain_names_of(flat);
  All rest = all;
  rest.made.insert(made->what);
  std::vector<Dfa> ways;
  for (const Schemas& way : made->ways) {
    All with = rest;
    with.schemas.insert(way.begin(), way.end());
    ways.push_back(names_of(with));
  }
  const Dfa any(repeat(any_character(), 0, kUnbounded), budget_);
  Dfa others = any;  // texts that are in no way
  for (size_t i = 0; i < ways.size(); ++i) {
    Dfa alone = ways[i];
    for (size_t j = 0; made->exclusive && j < ways.size(); ++j) {
      if (j != i) alone = alone.without(ways[j], budget_);
    }
    others = others.without(alone, budget_);
  }
  return any.without(others, budget_);
}

Dfa SchemaCompiler::plain_names_of(const Schemas& flat) {
  Dfa of = Dfa(repeat(any_character(), 0, kUnbounded), budget_);
  if ((types(flat) & kString) == 0) return {nothing(), budget_};
  if (auto more = string_language(flat)) of = of.both(*more, budget_);
  for (const SchemaJson* part : flat) {
    if (*part == SchemaJson(false)) return {nothing(), budget_};
    if (!part->is_object()) continue;
    const int64_t least = count(*part, "minLength").value_or(0);
    const auto most = count(*part, "maxLength");
    if (least > 0 || most) {
      constexpr int64_t kMost = 100000;
      const auto n_most = most ? static_cast<int32_t>(std::min(*most, kMost)) : kUnbounded;
      const auto n_least = static_cast<int32_t>(std::min(least, kMost));
      if (most && *most < least) return {nothing(), budget_};
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
  return of;
}

Expr SchemaCompiler::any_name() {
  return shared("name",
                sequence({literal("\""), repeat(json_character(), 0, kUnbounded), literal("\"")}));
}

// A member of any other name, by which patterns the name fits.
Expr SchemaCompiler::build_others(const Schemas& schemas,
                                  const std::vector<Unevaluated>& unevaluated,
                                  const std::vector<std::string>& names) {
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
  struct Kind {
    std::set<const SchemaJson*> owners;  // of patterns that names fit
    All all;
    std::optional<Dfa> names;
  };
  std::vector<Kind> kinds(1);
  std::optional<Dfa>& language = kinds.front().names;
  language = names_language(schemas);
  const bool is_any_but_known = !language && patterns.empty() && !names.empty();
  if (!is_any_but_known && (!names.empty() || !patterns.empty())) {
    if (!language) language = Dfa(repeat(any_character(), 0, kUnbounded), budget_);
    std::vector<Expr> known;
    for (const std::string& name : names) known.push_back(literal(name));
    language = language->without(Dfa(choice(std::move(known)), budget_), budget_);
  }
  for (const Pattern& each : patterns) {
    std::vector<Kind> finer;
    for (const Kind& kind : kinds) {
      Kind fits = kind;
      Kind others = kind;
      fits.names = kind.names->both(*each.names, budget_);
      others.names = kind.names->without(*each.names, budget_);
      fits.owners.insert(each.owner);
      fits.all.schemas.insert(each.value);
      if (!fits.names->is_nothing()) finer.push_back(std::move(fits));
      if (!others.names->is_nothing()) finer.push_back(std::move(others));
    }
    kinds = std::move(finer);
    if (kinds.size() > kMaxNameKinds) {
      refuse(*each.owner, "\"patternProperties\" that overlap in too many ways");
    }
  }
  std::vector<Expr> parts;
  for (Kind& kind : kinds) {
    for (const SchemaJson* s : schemas) {
      const SchemaJson* others = object_member(*s, "additionalProperties");
      if (!kind.owners.contains(s) && others != nullptr) kind.all.schemas.insert(others);
    }
    for (const Unevaluated& each : unevaluated) {
      const bool is_evaluated = std::ranges::any_of(each.others, [&](const SchemaJson* other) {
        return kind.owners.contains(other) || other->contains("additionalProperties") ||
               (other != each.owner && other->contains("unevaluatedProperties"));
      });
      if (!is_evaluated) kind.all.schemas.insert(each.value);
    }
    if (std::ranges::any_of(kind.all.schemas,
                            [](const SchemaJson* s) { return *s == SchemaJson(false); })) {
      continue;
    }
    if (kind.names && kind.names->is_nothing()) continue;
    const Expr value = rule_of(kind.all);
    if (is_nothing(value)) continue;
    const Expr name = kind.names         ? json_string(*kind.names, budget_)
                      : is_any_but_known ? other_json_string(names, budget_)
                                         : any_name();
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
  const auto others = unevaluated({&schema}, {}, "unevaluatedProperties");
  for (const auto& [name, member] : value.items()) {
    const auto all = member_schemas({&schema}, others, name);
    if (!all) return false;
    for (const SchemaJson* of : all->schemas) {
      if (!valid(member, *of, true, depth + 1)) return false;
    }
  }
  if (const SchemaJson* some = object_member(schema, kSomeMember)) {
    bool is_there = false;
    for (const auto& [name, member] : value.items()) {
      is_there = is_there || (valid(name, some->at("propertyNames"), true, depth + 1) &&
                              valid(member, some->at("additionalProperties"), true, depth + 1));
    }
    if (!is_there) return false;
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
    check_unevaluated(schema);
    for (const char* key : kReferences) {
      const SchemaJson* ref = object_member(schema, key);
      if (ref == nullptr) continue;
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
    if (!is_same_json(value, *only)) return false;
  }
  const auto same = [&](const SchemaJson& other) { return is_same_json(value, other); };
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
