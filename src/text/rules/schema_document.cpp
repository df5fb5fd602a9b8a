#include "text/rules/schema_document.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "support/error.h"
#include "support/json.h"
#include "support/printable.h"
#include "text/rules/json_schema.h"

namespace faststream::rules {
namespace {

constexpr int kMaxNegationDepth = 16;

// What a keyword's value is.
enum class Kind : uint8_t {
  schema,
  schemas,            // a list of them
  schema_or_schemas,  // a list until 2019-09
  named_schemas,      // an object of them
  schemas_or_texts,   // an object whose members may also be lists of texts
  named_texts,        // an object of lists of texts
  texts,              // a list of them
  texts_or_truth,     // draft 3 has true or false
  type,               // the name of a type, or a list of such
  list,
  text,
  truth,
  number,
  number_or_truth,  // draft 4 has true or false
  count,
};
struct Keyword {
  std::string_view name;
  Kind kind;
};
constexpr Keyword kKeywords[] = {
    {"$anchor", Kind::text},
    {"$defs", Kind::named_schemas},
    {"$id", Kind::text},
    {"$ref", Kind::text},
    {"additionalItems", Kind::schema},
    {"additionalProperties", Kind::schema},
    {"allOf", Kind::schemas},
    {"anyOf", Kind::schemas},
    {"contains", Kind::schema},
    {"definitions", Kind::named_schemas},
    {"dependencies", Kind::schemas_or_texts},
    {"dependentRequired", Kind::named_texts},
    {"dependentSchemas", Kind::named_schemas},
    {"else", Kind::schema},
    {"enum", Kind::list},
    {"exclusiveMaximum", Kind::number_or_truth},
    {"exclusiveMinimum", Kind::number_or_truth},
    {"format", Kind::text},
    {"if", Kind::schema},
    {"items", Kind::schema_or_schemas},
    {"maxContains", Kind::count},
    {"maxItems", Kind::count},
    {"maxLength", Kind::count},
    {"maxProperties", Kind::count},
    {"maximum", Kind::number},
    {"minContains", Kind::count},
    {"minItems", Kind::count},
    {"minLength", Kind::count},
    {"minProperties", Kind::count},
    {"minimum", Kind::number},
    {"multipleOf", Kind::number},
    {"not", Kind::schema},
    {"oneOf", Kind::schemas},
    {"pattern", Kind::text},
    {"patternProperties", Kind::named_schemas},
    {"prefixItems", Kind::schemas},
    {"properties", Kind::named_schemas},
    {"propertyNames", Kind::schema},
    {"required", Kind::texts_or_truth},
    {"then", Kind::schema},
    {"type", Kind::type},
    {"unevaluatedItems", Kind::schema},
    {"unevaluatedProperties", Kind::schema},
    {"uniqueItems", Kind::truth},
};
static_assert(std::ranges::is_sorted(kKeywords, {}, &Keyword::name));

const Keyword* find_keyword(std::string_view name) {
  const auto* found = std::ranges::lower_bound(kKeywords, name, {}, &Keyword::name);
  return found == std::end(kKeywords) || found->name != name ? nullptr : found;
}

bool is_text(const SchemaJson& value) { return value.is_string(); }
bool is_list_of_texts(const SchemaJson& value) {
  return value.is_array() && std::ranges::all_of(value, is_text);
}
bool is_type(const SchemaJson& value) {
  constexpr std::string_view kNames[] = {"any",  "array",  "boolean", "integer",
                                         "null", "number", "object",  "string"};
  return value.is_string() &&
         std::ranges::find(kNames, value.get_ref<const std::string&>()) != std::end(kNames);
}
bool is_count(const SchemaJson& value) {
  if (!value.is_number()) return false;
  const auto number = value.get<double>();
  return number >= 0 && std::trunc(number) == number;
}

// What is wrong with a keyword's value, but for the schemas in it; null: nothing.
const char* fault_of(Kind kind, const SchemaJson& value) {
  switch (kind) {
    case Kind::schema:
      return value.is_object() || value.is_boolean() ? nullptr
                                                     : "which is no object, true or false";
    case Kind::schemas:
      return value.is_array() ? nullptr : "which is no list of schemas";
    case Kind::schema_or_schemas:
      return value.is_array() ? nullptr : fault_of(Kind::schema, value);
    case Kind::named_schemas:
    case Kind::schemas_or_texts:
      return value.is_object() ? nullptr : "which is no object of schemas";
    case Kind::named_texts:
      return value.is_object() && std::ranges::all_of(value, is_list_of_texts)
                 ? nullptr
                 : "which is no object of lists of texts";
    case Kind::texts:
      return is_list_of_texts(value) ? nullptr : "which is no list of texts";
    case Kind::texts_or_truth:
      return value.is_boolean() ? nullptr : fault_of(Kind::texts, value);
    case Kind::type:
      return is_type(value) || (value.is_array() && std::ranges::all_of(value, is_type))
                 ? nullptr
                 : "which names no type";
    case Kind::list:
      return value.is_array() ? nullptr : "which is no list";
    case Kind::text:
      return value.is_string() ? nullptr : "which is no text";
    case Kind::truth:
      return value.is_boolean() ? nullptr : "which is neither true nor false";
    case Kind::number:
      return value.is_number() ? nullptr : "which is no number";
    case Kind::number_or_truth:
      return value.is_boolean() ? nullptr : fault_of(Kind::number, value);
    case Kind::count:
      return is_count(value) ? nullptr : "which is no whole number from 0 on";
  }
  return nullptr;
}

// Keywords that say nothing about an instance.
constexpr std::array<std::string_view, 17> kSilent = {
    "title",        "description", "default",         "examples",
    "deprecated",   "readOnly",    "writeOnly",       "$comment",
    "$schema",      "$defs",       "definitions",     "$anchor",
    "$id",          "id",          "contentEncoding", "contentMediaType",
    "contentSchema"};

std::string escaped_pointer(std::string_view name) {
  std::string escaped;
  for (const char c : name) {
    if (c == '~') {
      escaped += "~0";
    } else if (c == '/') {
      escaped += "~1";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string decode_percent(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto is_hex = [&](size_t at) {
      return at < text.size() && std::isxdigit(static_cast<unsigned char>(text[at])) != 0;
    };
    if (text[i] == '%' && is_hex(i + 1) && is_hex(i + 2)) {
      decoded += static_cast<char>(std::stoi(std::string(text.substr(i + 1, 2)), nullptr, 16));
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

SchemaJson any_of(std::vector<SchemaJson> schemas) {
  if (schemas.empty()) return false;
  if (schemas.size() == 1) return schemas.front();
  return {{"anyOf", std::move(schemas)}};
}

}  // namespace

size_t count_characters(std::string_view text) {
  return static_cast<size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<uint8_t>(c) & 0xC0U) != 0x80U; }));
}

SchemaDocument::SchemaDocument(std::string_view text) {
  if (text.size() > kMaxSchemaBytes) {
    throw Error("the JSON schema has more than " + std::to_string(kMaxSchemaBytes) +
                " bytes; make it smaller");
  }
  root_ = parse_ordered_json(text, "the JSON schema", "correct it");
  if (root_.is_object() && root_.contains("$schema") && root_["$schema"].is_string()) {
    const auto draft = root_["$schema"].get<std::string>();
    const auto is = [&](const char* name) { return draft.find(name) != std::string::npos; };
    ref_is_alone_ = is("draft-07") || is("draft-06") || is("draft-04") || is("draft-03");
    if (!is("json-schema.org")) {
      throw Error("\"$schema\" is " + in_quotes(draft) + ", which is not supported; leave it out");
    }
  }
  index(root_, "#");
}

void SchemaDocument::index(const SchemaJson& schema, const std::string& place) {
  if (!places_.emplace(&schema, Place{place, places_.size()}).second) return;
  if (!schema.is_object() && !schema.is_boolean()) {
    throw Error("the JSON schema's " + place + " is no object, true or false");
  }
  if (!schema.is_object()) return;
  for (const char* name : {"$anchor", "$dynamicAnchor"}) {
    const auto anchor = schema.find(name);
    if (anchor != schema.end() && anchor->is_string()) {
      anchors_.emplace("#" + anchor->get<std::string>(), &schema);
    }
  }
  const auto id = schema.find("$id");
  if (id != schema.end() && id->is_string()) anchors_.emplace(id->get<std::string>(), &schema);
  for (const auto& [name, value] : schema.items()) {
    const Keyword* keyword = find_keyword(name);
    if (keyword == nullptr) continue;
    if (const char* fault = fault_of(keyword->kind, value)) {
      throw Error("the JSON schema's " + place + " has " + in_quotes(name) + ", " + fault);
    }
    const std::string at = place + "/" + escaped_pointer(name);
    switch (keyword->kind) {
      case Kind::schema:
      case Kind::schemas:
      case Kind::schema_or_schemas:
        if (!value.is_array()) index(value, at);
        for (size_t i = 0; value.is_array() && i < value.size(); ++i) {
          index(value[i], at + "/" + std::to_string(i));
        }
        break;
      case Kind::named_schemas:
      case Kind::schemas_or_texts:
        for (const auto& [key, part] : value.items()) {
          if (keyword->kind == Kind::schemas_or_texts && is_list_of_texts(part)) continue;
          index(part, at + "/" + escaped_pointer(key));
        }
        break;
      default:
        break;
    }
  }
}

const SchemaJson& SchemaDocument::keep(SchemaJson schema) {
  const SchemaJson& kept = made_.emplace_back(std::move(schema));
  places_.emplace(&kept, Place{"#", places_.size()});
  return kept;
}

std::string SchemaDocument::place(const SchemaJson& schema) const {
  const auto found = places_.find(&schema);
  return found == places_.end() ? "#" : found->second.pointer;
}

size_t SchemaDocument::position(const SchemaJson& schema) const {
  const auto found = places_.find(&schema);
  return found == places_.end() ? places_.size() : found->second.position;
}

const SchemaJson& SchemaDocument::resolve(const std::string& reference) {
  std::string local = reference;
  if (root_.is_object() && root_.contains("$id") && root_["$id"].is_string()) {
    const auto id = root_["$id"].get<std::string>();
    if (local.starts_with(id)) local.erase(0, id.size());
  }
  if (local.empty() || local == "#") return root_;
  const auto anchor = anchors_.find(local);
  if (anchor != anchors_.end()) return *anchor->second;
  const std::string pointer = decode_percent(std::string_view(local).substr(1));
  if (!local.starts_with("#/")) {
    throw Error("\"$ref\" is " + in_quotes(reference) +
                ", which is not in this document; other documents are not supported");
  }
  const SchemaJson* found = nullptr;
  try {
    found = &std::as_const(root_).at(SchemaJson::json_pointer(pointer));
  } catch (const nlohmann::json::exception&) {  // told below
  }
  if (found == nullptr || (!found->is_object() && !found->is_boolean())) {
    throw Error("\"$ref\" is " + in_quotes(reference) + ", where there is no schema");
  }
  index(*found, local);  // it may stand where no keyword has schemas
  return *found;
}

SchemaJson SchemaDocument::negation(const SchemaJson& schema, int depth) {
  if (depth > kMaxNegationDepth) throw Error("\"not\" is nested too deep");
  if (schema.is_boolean()) return !schema.get<bool>();
  if (!schema.is_object()) throw Error("\"not\" is no schema");
  const auto typed = [](const char* type, const char* key, SchemaJson value) -> SchemaJson {
    return {{"type", type}, {key, std::move(value)}};
  };
  std::vector<SchemaJson> ways;  // in which it can be invalid
  for (const auto& [key, value] : schema.items()) {
    if (std::ranges::find(kSilent, key) != kSilent.end()) continue;
    if (key == "type") {
      SchemaJson others = SchemaJson::array();
      const auto has = [&types = value](const char* type) {
        return types == type ||
               (types.is_array() && std::ranges::find(types, SchemaJson(type)) != types.end());
      };
      if (has("integer") && !has("number")) {
        throw Error("\"not\" of \"type\": \"integer\" is not supported");
      }
      for (const char* type : {"null", "boolean", "number", "string", "array", "object"}) {
        if (!has(type)) others.push_back(type);
      }
      if (!others.empty()) ways.push_back({{"type", others}});
    } else if (key == "const") {
      ways.push_back({{kNoneOf, SchemaJson::array({value})}});
    } else if (key == "enum") {
      ways.push_back({{kNoneOf, value}});
    } else if (key == "not") {
      ways.push_back(value);
    } else if (key == "allOf") {
      for (const SchemaJson& part : value) ways.push_back(negation(part, depth + 1));
    } else if (key == "anyOf") {
      SchemaJson all = SchemaJson::array();
      for (const SchemaJson& part : value) all.push_back(negation(part, depth + 1));
      ways.push_back({{"allOf", all}});
    } else if (key == "$ref") {
      ways.push_back(negation(resolve(value.get<std::string>()), depth + 1));
    } else if (key == "required" && value.is_array()) {
      for (const SchemaJson& name : value) {
        ways.push_back(
            typed("object", "properties", SchemaJson::object({{name.get<std::string>(), false}})));
      }
    } else if (key == "properties") {
      for (const auto& [name, part] : value.items()) {
        SchemaJson without = negation(part, depth + 1);
        if (without == SchemaJson(false)) continue;
        SchemaJson way = typed("object", "properties", SchemaJson::object({{name, without}}));
        way["required"] = SchemaJson::array({name});
        ways.push_back(std::move(way));
      }
    } else if (key == "pattern") {
      ways.push_back(typed("string", kNotPattern, value));
    } else if (key == "minLength" && value.is_number_unsigned()) {
      const auto least = value.get<uint64_t>();
      if (least > 0) ways.push_back(typed("string", "maxLength", least - 1));
    } else if (key == "maxLength" && value.is_number_unsigned()) {
      ways.push_back(typed("string", "minLength", value.get<uint64_t>() + 1));
    } else if (key == "minimum") {
      ways.push_back(typed("number", "exclusiveMaximum", value));
    } else if (key == "maximum") {
      ways.push_back(typed("number", "exclusiveMinimum", value));
    } else if (key == "exclusiveMinimum" && value.is_number()) {
      ways.push_back(typed("number", "maximum", value));
    } else if (key == "exclusiveMaximum" && value.is_number()) {
      ways.push_back(typed("number", "minimum", value));
    } else if (key == "items" && (value.is_boolean() || value.empty())) {
      if (value == SchemaJson(false)) ways.push_back(typed("array", "minItems", 1));
    } else if (key == "minItems" && value.is_number_unsigned()) {
      const auto least = value.get<uint64_t>();
      if (least > 0) ways.push_back(typed("array", "maxItems", least - 1));
    } else if (key == "maxItems" && value.is_number_unsigned()) {
      ways.push_back(typed("array", "minItems", value.get<uint64_t>() + 1));
    } else {
      throw Error("\"not\" or \"if\" of " + in_quotes(key) + " is not supported");
    }
  }
  return any_of(std::move(ways));
}

}  // namespace faststream::rules
