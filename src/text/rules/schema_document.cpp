#include "text/rules/schema_document.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "support/error.h"
#include "support/json.h"
#include "support/printable.h"
#include "support/utf8.h"
#include "text/rules/json_schema.h"
#include "text/rules/uri.h"

namespace faststream::rules {
namespace {

/// Of names that are kept once for each schema below them: a place, the base of its references.
constexpr size_t kMaxNameBytes = size_t{32} << 20U;

// A place in an error, where a name may be long.
std::string shown_place(const std::string& pointer) {
  constexpr size_t kMaxBytes = 256;
  if (pointer.size() <= kMaxBytes) return pointer;
  std::string start = pointer.substr(0, kMaxBytes);
  return take_utf8(start) + "...";
}

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
    {"$dynamicAnchor", Kind::text},
    {"$dynamicRef", Kind::text},
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

constexpr std::string_view kRefused[] = {
    "$recursiveAnchor",       "$recursiveRef",          "disallow",      "divisibleBy",  "extends",
    "formatExclusiveMaximum", "formatExclusiveMinimum", "formatMaximum", "formatMinimum"};

// What is at a JSON pointer, escaped as in a URI; null: nothing.
template <typename Json>
Json* find_pointer(Json& in, std::string_view pointer) {
  try {
    return &in.at(SchemaJson::json_pointer(decode_percent(pointer)));
  } catch (const nlohmann::json::exception&) {
    return nullptr;
  }
}

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

}  // namespace

bool is_keyword(std::string_view name) { return find_keyword(name) != nullptr; }

bool is_refused_keyword(std::string_view name) {
  return std::ranges::find(kRefused, name) != std::end(kRefused);
}

bool is_same_json(const SchemaJson& a, const SchemaJson& b) {
  if (a.is_string() || b.is_string()) return a == b;
  return nlohmann::json(a) == nlohmann::json(b);
}

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
    contains_evaluates_ = !is("2019-09");
    if (is("draft-04") || is("draft-03")) id_ = "id";
    if (!is("json-schema.org")) {
      throw Error("\"$schema\" is " + in_quotes(draft) + ", which is not supported; leave it out");
    }
  }
  named_[""] = &root_;
  index(root_, "#", "");
  resolve_references();
}

void SchemaDocument::count_name(size_t bytes) {
  n_name_bytes_ += bytes;
  if (n_name_bytes_ > kMaxNameBytes) {
    throw Error(
        "the JSON schema has many parts below, or references to, long names; shorten these");
  }
}

void SchemaDocument::index(SchemaJson& schema, const std::string& place, std::string base) {
  count_name(place.size());
  if (!places_.emplace(&schema, Place{place, places_.size()}).second) return;
  if (!schema.is_object() && !schema.is_boolean()) {
    throw Error("the JSON schema's " + shown_place(place) + " is no object, true or false");
  }
  if (!schema.is_object()) return;
  base = index_names(schema, std::move(base));
  count_name(base.size());
  for (auto& [name, value] : schema.items()) {
    const Keyword* keyword = find_keyword(name);
    if (keyword == nullptr) continue;
    if (const char* fault = fault_of(keyword->kind, value)) {
      throw Error("the JSON schema's " + shown_place(place) + " has " + in_quotes(name) + ", " +
                  fault);
    }
    const std::string at = place + "/" + escaped_pointer(name);
    switch (keyword->kind) {
      case Kind::schema:
      case Kind::schemas:
      case Kind::schema_or_schemas:
        if (!value.is_array()) index(value, at, base);
        for (size_t i = 0; value.is_array() && i < value.size(); ++i) {
          index(value[i], at + "/" + std::to_string(i), base);
        }
        break;
      case Kind::named_schemas:
      case Kind::schemas_or_texts:
        for (auto& [key, part] : value.items()) {
          if (keyword->kind == Kind::schemas_or_texts && is_list_of_texts(part)) continue;
          index(part, at + "/" + escaped_pointer(key), base);
        }
        break;
      default:
        break;
    }
  }
}

// Notes what a schema is called by, and its references. Returns the base of URIs in it.
std::string SchemaDocument::index_names(SchemaJson& schema, std::string base) {
  const auto text_of = [&](const char* name) -> const std::string* {
    const auto found = schema.find(name);
    return found != schema.end() && found->is_string() ? &found->get_ref<const std::string&>()
                                                       : nullptr;
  };
  const bool is_alone = ref_is_alone_ && schema.contains("$ref");
  const std::string* id = is_alone ? nullptr : text_of(id_);
  if (id != nullptr && !id->empty()) {
    const size_t hash = std::min(id->find('#'), id->size());
    base = resolve_uri(base, id->substr(0, hash));
    if (hash > 0) named_.emplace(base, &schema);
    if (hash + 1 < id->size()) named_.emplace(base + id->substr(hash), &schema);
  }
  for (const char* name : {"$anchor", "$dynamicAnchor"}) {
    if (const std::string* anchor = text_of(name)) named_.emplace(base + "#" + *anchor, &schema);
  }
  if (const std::string* anchor = text_of("$dynamicAnchor")) ++n_dynamic_[*anchor];
  references_.push_back({&schema, base});
  return base;
}

// References become pointers into the whole document; those that lead elsewhere stay.
void SchemaDocument::resolve_references() {
  for (size_t i = 0; i < references_.size(); ++i) {  // to which are added
    const Reference each = references_[i];
    for (const char* key : kReferences) {
      const auto found = each.schema->find(key);
      if (found == each.schema->end()) continue;
      const auto& reference = found->get_ref<const std::string&>();
      const std::string name =
          reference.substr(std::min(reference.find('#') + 1, reference.size()));
      const auto dynamic = n_dynamic_.find(name);
      const bool is_dynamic = std::string_view(key) == "$dynamicRef";
      if (is_dynamic && dynamic != n_dynamic_.end() && dynamic->second > 1) {
        throw Error("the JSON schema's " + place(*each.schema) + " has the \"$dynamicRef\" " +
                    in_quotes(reference) + ", of which there are several, which is not supported");
      }
      std::string pointer = canonical(reference, each.base);
      count_name(pointer.size());
      *found = std::move(pointer);
    }
  }
  references_.clear();
}

std::string SchemaDocument::canonical(const std::string& reference, const std::string& base) {
  const size_t hash = std::min(reference.find('#'), reference.size());
  const std::string uri = resolve_uri(base, reference.substr(0, hash));
  const std::string fragment = hash < reference.size() ? reference.substr(hash + 1) : "";
  const bool is_pointer = fragment.starts_with('/');
  const bool is_name = !fragment.empty() && !is_pointer;
  const auto named = named_.find(is_name ? uri + "#" + decode_percent(fragment) : uri);
  if (named == named_.end()) return reference;
  SchemaJson* found = named->second;
  if (is_pointer) {
    found = find_pointer(*named->second, fragment);
    if (found == nullptr) return reference;
    // It may stand where no keyword has schemas.
    if (!places_.contains(found)) {
      index(*found, places_.at(named->second).pointer + decode_percent(fragment), uri);
    }
  }
  std::string pointer;
  for (const char c : places_.at(found).pointer) pointer += c == '%' ? "%25" : std::string(1, c);
  return pointer;
}

const SchemaJson& SchemaDocument::keep(SchemaJson schema) {
  const SchemaJson& kept = made_.emplace_back(std::move(schema));
  // Its parts, too, have an order that does not depend on where they are in memory.
  std::vector<const SchemaJson*> todo = {&kept};
  while (!todo.empty()) {
    const SchemaJson& part = *todo.back();
    todo.pop_back();
    places_.emplace(&part, Place{"#", places_.size()});
    if (!part.is_structured()) continue;  // else it is what it is made of
    const auto n_before = static_cast<std::ptrdiff_t>(todo.size());
    for (const SchemaJson& inner : part) {
      if (inner.is_structured() || inner.is_boolean()) todo.push_back(&inner);
    }
    std::reverse(todo.begin() + n_before, todo.end());
  }
  return kept;
}

std::string SchemaDocument::place(const SchemaJson& schema) const {
  const auto found = places_.find(&schema);
  return found == places_.end() ? "#" : shown_place(found->second.pointer);
}

size_t SchemaDocument::position(const SchemaJson& schema) const {
  const auto found = places_.find(&schema);
  return found == places_.end() ? places_.size() : found->second.position;
}

const SchemaJson& SchemaDocument::resolve(const std::string& reference) {
  if (reference == "#") return root_;
  if (!reference.starts_with("#/")) {
    throw Error("a \"$ref\" or \"$dynamicRef\" is " + in_quotes(reference) +
                ", which is not in this document; other documents are not supported");
  }
  const SchemaJson* found =
      find_pointer(std::as_const(root_), std::string_view(reference).substr(1));
  if (found == nullptr || (!found->is_object() && !found->is_boolean())) {
    throw Error("\"$ref\" is " + in_quotes(reference) + ", where there is no schema");
  }
  return *found;
}

}  // namespace faststream::rules
