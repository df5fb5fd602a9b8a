// What is valid where a schema is not.
#include <utility>
#include <vector>

#include "support/error.h"
#include "support/printable.h"
#include "text/rules/schema_document.h"

namespace faststream::rules {
namespace {

constexpr int kMaxNegationDepth = 16;        // of schemas that hold in place
constexpr size_t kMaxNegatedExclusive = 12;  // alternatives of oneOf, of which two are valid

const SchemaJson* find_in(const SchemaJson& schema, const char* key) {
  const auto found = schema.find(key);
  return found == schema.end() ? nullptr : &*found;
}

SchemaJson one_of_ways(std::vector<SchemaJson> ways) {
  if (ways.empty()) return false;
  if (ways.size() == 1) return ways.front();
  return {{"anyOf", std::move(ways)}};
}

SchemaJson both(SchemaJson a, SchemaJson b) {
  if (a == SchemaJson(false) || b == SchemaJson(false)) return false;
  return {{"allOf", SchemaJson::array({std::move(a), std::move(b)})}};
}

SchemaJson typed(const char* type, const char* key, SchemaJson value) {
  return {{"type", type}, {key, std::move(value)}};
}

// Of members and items: said when it is needed, since schemas may have themselves there.
SchemaJson negated_later(const SchemaJson& schema) {
  if (schema.is_boolean()) return !schema.get<bool>();
  if (schema.empty()) return false;
  return {{"not", schema}};
}

/// The ways in which a value can be invalid under a schema, each a schema.
class Negation {
 public:
  Negation(SchemaDocument& document, int depth) : document_(document), depth_(depth) {}

  SchemaJson of(const SchemaJson& schema) {
    if (depth_ > kMaxNegationDepth) throw Error("\"not\" is nested too deep");
    if (schema.is_boolean()) return !schema.get<bool>();
    if (!schema.is_object()) throw Error("\"not\" is no schema");
    const bool is_alone = document_.ref_is_alone() && schema.contains("$ref");
    for (const auto& [key, value] : schema.items()) {
      if (is_alone && key != "$ref") continue;
      if (add_in_place(schema, key, value) || add_value(key, value) ||
          add_number(schema, key, value) || add_text(key, value) || add_list(schema, key, value) ||
          add_object(schema, key, value) || is_silent(key)) {
        continue;
      }
      throw Error("\"not\" or \"if\" of " + in_quotes(key) + " is not supported");
    }
    return one_of_ways(std::move(ways_));
  }

 private:
  static bool is_silent(std::string_view key) {
    for (const std::string_view name : {"$id", "$anchor", "$dynamicAnchor", "$defs", "definitions",
                                        "minContains", "maxContains", "then", "else"}) {
      if (key == name) return true;
    }
    return !key.starts_with('\xFF') && !is_keyword(key) && !is_refused_keyword(key);
  }

  void add(SchemaJson way) {
    if (way != SchemaJson(false)) ways_.push_back(std::move(way));
  }
  SchemaJson negated(const SchemaJson& schema) {
    return Negation(document_, depth_ + 1).of(schema);
  }

  bool add_in_place(const SchemaJson& schema, std::string_view key, const SchemaJson& value) {
    if (key == "not") {
      add(value);
    } else if (key == "$ref" || key == "$dynamicRef") {
      add(negated(document_.resolve(value.get<std::string>())));
    } else if (key == "allOf") {
      for (const SchemaJson& part : value) add(negated(part));
    } else if (key == "anyOf") {
      add(none_of(value));
    } else if (key == "oneOf") {
      add(none_of(value));
      if (value.size() > kMaxNegatedExclusive) {
        throw Error("\"not\" or \"if\" of a \"oneOf\" of more than " +
                    std::to_string(kMaxNegatedExclusive) + " alternatives is not supported");
      }
      for (size_t i = 0; i < value.size(); ++i) {
        for (size_t j = i + 1; j < value.size(); ++j) add(both(value[i], value[j]));
      }
    } else if (key == "if") {
      const SchemaJson* then = find_in(schema, "then");
      const SchemaJson* otherwise = find_in(schema, "else");
      if (then != nullptr) add(both(value, negated(*then)));
      if (otherwise != nullptr) add(both(negated(value), negated(*otherwise)));
    } else {
      return false;
    }
    return true;
  }

  SchemaJson none_of(const SchemaJson& schemas) {
    SchemaJson all = SchemaJson::array();
    for (const SchemaJson& part : schemas) {
      SchemaJson no = negated(part);
      if (no == SchemaJson(false)) return false;
      all.push_back(std::move(no));
    }
    return {{"allOf", std::move(all)}};
  }

  bool add_value(std::string_view key, const SchemaJson& value) {
    if (key == "type") {
      add_type(value);
    } else if (key == "const") {
      add(no_value(SchemaJson::array({value})));
    } else if (key == "enum") {
      add(no_value(value));
    } else {
      return false;
    }
    return true;
  }

  void add_type(const SchemaJson& type) {
    const auto has = [&](const char* name) {
      if (type.is_string()) return type == name;
      for (const SchemaJson& one : type) {
        if (one == name) return true;
      }
      return false;
    };
    if (has("any")) return;
    SchemaJson others = SchemaJson::array();
    for (const char* name : {"null", "boolean", "string", "array", "object"}) {
      if (!has(name)) others.push_back(name);
    }
    if (!has("number")) others.push_back(has("integer") ? kFraction : "number");
    if (!others.empty()) add({{"type", std::move(others)}});
  }

  // None of these values: lists and objects are said by what they are made of.
  SchemaJson no_value(const SchemaJson& values) {
    SchemaJson scalars = SchemaJson::array();
    SchemaJson all = SchemaJson::array();
    for (const SchemaJson& value : values) {
      if (value.is_structured()) {
        all.push_back(negated(value.is_array() ? same_list(value) : same_object(value)));
      } else {
        scalars.push_back(value);
      }
    }
    if (!scalars.empty()) all.push_back({{kNoneOf, std::move(scalars)}});
    if (all.empty()) return true;
    return all.size() == 1 ? all.front() : SchemaJson({{"allOf", std::move(all)}});
  }
  static SchemaJson same_list(const SchemaJson& list) {
    SchemaJson same = {{"type", "array"}, {"minItems", list.size()}, {"maxItems", list.size()}};
    SchemaJson& items = same["prefixItems"] = SchemaJson::array();
    for (const SchemaJson& one : list) items.push_back({{"const", one}});
    return same;
  }
  static SchemaJson same_object(const SchemaJson& object) {
    SchemaJson same = {{"type", "object"}, {"additionalProperties", false}};
    SchemaJson& required = same["required"] = SchemaJson::array();
    SchemaJson members = SchemaJson::object();
    for (const auto& [name, value] : object.items()) {
      required.push_back(name);
      members[name] = {{"const", value}};
    }
    same["properties"] = std::move(members);
    return same;
  }

  bool add_number(const SchemaJson& schema, std::string_view key, const SchemaJson& value) {
    const auto is_exclusive = [&](const char* name) {
      const SchemaJson* exclusive = find_in(schema, name);
      return exclusive != nullptr && *exclusive == SchemaJson(true);
    };
    if (key == "minimum") {
      const bool excludes = is_exclusive("exclusiveMinimum");
      add(typed("number", excludes ? "maximum" : "exclusiveMaximum", value));
    } else if (key == "maximum") {
      const bool excludes = is_exclusive("exclusiveMaximum");
      add(typed("number", excludes ? "minimum" : "exclusiveMinimum", value));
    } else if (key == "exclusiveMinimum") {
      if (value.is_number()) add(typed("number", "maximum", value));
    } else if (key == "exclusiveMaximum") {
      if (value.is_number()) add(typed("number", "minimum", value));
    } else if (key == "multipleOf") {
      add(typed("number", kNotMultiple, value));
    } else {
      return false;
    }
    return true;
  }

  // Fewer than `least`, or more than `most`, of what the other keyword bounds.
  void add_below(const char* type, const char* most, const SchemaJson& least) {
    const auto n = least.get<double>();
    if (n > 0) add(typed(type, most, SchemaJson(n - 1)));
  }
  void add_above(const char* type, const char* least, const SchemaJson& most) {
    add(typed(type, least, SchemaJson(most.get<double>() + 1)));
  }

  bool add_text(std::string_view key, const SchemaJson& value) {
    if (key == "minLength") {
      add_below("string", "maxLength", value);
    } else if (key == "maxLength") {
      add_above("string", "minLength", value);
    } else if (key == "pattern") {
      add(typed("string", kNotPattern, value));
    } else if (key == "format") {
      add(typed("string", kNotFormat, value));
    } else {
      return false;
    }
    return true;
  }

  bool add_list(const SchemaJson& schema, std::string_view key, const SchemaJson& value) {
    const SchemaJson* items = find_in(schema, "items");
    const bool are_first = items != nullptr && items->is_array();  // until 2019-09
    const SchemaJson* first = are_first ? items : find_in(schema, "prefixItems");
    if (key == "minItems") {
      add_below("array", "maxItems", value);
    } else if (key == "maxItems") {
      add_above("array", "minItems", value);
    } else if (key == "prefixItems" || (key == "items" && are_first)) {
      if (&value == first) add_first_items(value);
    } else if (key == "items" || key == "additionalItems") {
      const bool counts = key == "items" || are_first;
      if (counts) add_some_item(first == nullptr ? 0 : first->size(), value);
    } else if (key == "contains") {
      add_contained(schema, value);
    } else if (key == "uniqueItems") {
      return value == SchemaJson(false);
    } else {
      return false;
    }
    return true;
  }

  void add_first_items(const SchemaJson& schemas) {
    SchemaJson items = SchemaJson::array();
    for (const SchemaJson& schema : schemas) {
      SchemaJson no = negated_later(schema);
      items.push_back(no);
      if (no != SchemaJson(false)) {
        add({{"type", "array"}, {"minItems", items.size()}, {"prefixItems", items}});
      }
      items.back() = true;
    }
  }

  void add_some_item(size_t from, const SchemaJson& schema) {
    const SchemaJson no = negated_later(schema);
    if (no == SchemaJson(false)) return;
    if (no == SchemaJson(true)) {
      add(typed("array", "minItems", SchemaJson(from + 1)));
    } else {
      add(typed("array", kSomeItem, {{"from", from}, {"items", no}}));
    }
  }

  void add_contained(const SchemaJson& schema, const SchemaJson& contained) {
    const SchemaJson* least = find_in(schema, "minContains");
    const SchemaJson* most = find_in(schema, "maxContains");
    const double n_least = least == nullptr ? 1 : least->get<double>();
    if (n_least == 1) {
      add(typed("array", "items", negated_later(contained)));
    } else if (n_least > 1) {
      add({{"type", "array"},
           {"contains", contained},
           {"minContains", 0},
           {"maxContains", n_least - 1}});
    }
    if (most == nullptr) return;
    add({{"type", "array"}, {"contains", contained}, {"minContains", most->get<double>() + 1}});
  }

  bool add_object(const SchemaJson& schema, std::string_view key, const SchemaJson& value) {
    if (key == "minProperties") {
      add_below("object", "maxProperties", value);
    } else if (key == "maxProperties") {
      add_above("object", "minProperties", value);
    } else if (key == "required") {
      if (!value.is_array()) return true;  // draft 3
      for (const SchemaJson& name : value) add(without(name.get<std::string>()));
    } else if (key == "properties") {
      for (const auto& [name, part] : value.items()) {
        const SchemaJson no = negated_later(part);
        if (no == SchemaJson(false)) continue;
        SchemaJson way = typed("object", "properties", SchemaJson::object({{name, no}}));
        way["required"] = SchemaJson::array({name});
        add(std::move(way));
      }
    } else if (key == "patternProperties") {
      for (const auto& [pattern, part] : value.items()) {
        add_some_member({{"pattern", pattern}}, negated_later(part));
      }
    } else if (key == "additionalProperties") {
      add_some_member(other_names(schema), negated_later(value));
    } else if (key == "propertyNames") {
      add_some_member(negated_later(value), true);
    } else if (key == "dependentRequired" || key == "dependentSchemas" || key == "dependencies") {
      for (const auto& [name, dependent] : value.items()) add_dependent(name, dependent);
    } else {
      return false;
    }
    return true;
  }

  static SchemaJson without(const std::string& name) {
    return typed("object", "properties", SchemaJson::object({{name, false}}));
  }
  static SchemaJson with(const std::string& name) {
    return typed("object", "required", SchemaJson::array({name}));
  }

  void add_some_member(const SchemaJson& names, const SchemaJson& value) {
    if (names == SchemaJson(false) || value == SchemaJson(false)) return;
    add(typed("object", kSomeMember, {{"propertyNames", names}, {"additionalProperties", value}}));
  }

  // Names that neither "properties" nor "patternProperties" have.
  static SchemaJson other_names(const SchemaJson& schema) {
    SchemaJson known = SchemaJson::array();
    SchemaJson patterns = SchemaJson::array();
    if (const SchemaJson* members = find_in(schema, "properties")) {
      for (const auto& [name, part] : members->items()) known.push_back(name);
    }
    if (const SchemaJson* of = find_in(schema, "patternProperties")) {
      for (const auto& [pattern, part] : of->items()) patterns.push_back({{kNotPattern, pattern}});
    }
    SchemaJson names = {{kNoneOf, std::move(known)}};
    if (!patterns.empty()) names["allOf"] = std::move(patterns);
    return names;
  }

  void add_dependent(const std::string& name, const SchemaJson& dependent) {
    if (!dependent.is_array()) {
      const SchemaJson no = negated(dependent);
      add(both(with(name), no));
      return;
    }
    for (const SchemaJson& other : dependent) {
      add(both(with(name), without(other.get<std::string>())));
    }
  }

  SchemaDocument& document_;
  int depth_;
  std::vector<SchemaJson> ways_;
};

}  // namespace

const SchemaJson& SchemaDocument::negation(const SchemaJson& schema) {
  // Of a reference alone: what it refers to is negated once, so that recursion ends.
  const SchemaJson* what = &schema;
  for (int depth = 0; what->is_object() && what->size() == 1 && what->contains("$ref"); ++depth) {
    if (depth > kMaxNegationDepth) throw Error("\"not\" is nested too deep");
    what = &resolve(what->at("$ref").get<std::string>());
  }
  if (const auto known = negations_.find(what); known != negations_.end()) return *known->second;
  const SchemaJson& made = keep(Negation(*this, 0).of(*what));
  negations_.emplace(what, &made);
  return made;
}

}  // namespace faststream::rules
