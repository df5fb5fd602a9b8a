// A JSON Schema as it is written: its parts by reference, and whether instances are valid.
#pragma once

#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace faststream::rules {

using SchemaJson = nlohmann::ordered_json;

/// Keywords of our own, for what `not` makes of others; no text in UTF-8 has these names.
inline constexpr const char* kNoneOf = "\xFFnone-of";           ///< scalars that it is not
inline constexpr const char* kNotPattern = "\xFFno-pattern";    ///< that is not found
inline constexpr const char* kNotFormat = "\xFFno-format";      ///< that a text has not
inline constexpr const char* kNotMultiple = "\xFFno-multiple";  ///< what it is no multiple of
/// An object of "from" and "items": from this index on some item is of this schema.
inline constexpr const char* kSomeItem = "\xFFsome-item";
/// An object of "propertyNames" and "additionalProperties": some member has both.
inline constexpr const char* kSomeMember = "\xFFsome-member";
/// The type of numbers that are not whole.
inline constexpr const char* kFraction =
    "\xFF"
    "fraction";

/// Keywords whose value refers to another schema that holds, too.
inline constexpr const char* kReferences[] = {"$ref", "$dynamicRef"};

/// Whether JSON Schema, in some dialect, says something of instances by this name.
bool is_keyword(std::string_view name);
/// Of dialects' keywords those that are always refused.
bool is_refused_keyword(std::string_view name);

class SchemaDocument {
 public:
  /// Throws Error where it is no schema: each keyword's value is of the keyword's kind.
  explicit SchemaDocument(std::string_view text);

  [[nodiscard]] const SchemaJson& root() const { return root_; }
  /// Whether members beside "$ref" are ignored, as until draft 7.
  [[nodiscard]] bool ref_is_alone() const { return ref_is_alone_; }
  /// Whether items that "contains" finds are evaluated, as since 2020-12.
  [[nodiscard]] bool contains_evaluates() const { return contains_evaluates_; }
  /// The schema that is referred to: "#", or "#" and a JSON pointer, as references that were found
  /// are made. Throws Error where it is neither.
  [[nodiscard]] const SchemaJson& resolve(const std::string& reference);
  /// Keeps a schema that was made of others.
  const SchemaJson& keep(SchemaJson schema);
  /// What is valid where a schema is not. Throws Error where that cannot be said.
  const SchemaJson& negation(const SchemaJson& schema);
  /// Where a part of the document is, for errors: "#/properties/x", or of a long one the start; of
  /// others "#".
  [[nodiscard]] std::string place(const SchemaJson& schema) const;
  /// How many schemas stand before a part of the document, or of one that is kept, which come in
  /// the order in which they were made; of others the number of all.
  [[nodiscard]] size_t position(const SchemaJson& schema) const;

 private:
  /// Throws Error where names of the document would take memory out of proportion to it.
  void count_name(size_t bytes);
  void index(SchemaJson& schema, const std::string& place, std::string base);
  std::string index_names(SchemaJson& schema, std::string base);
  void resolve_references();
  std::string canonical(const std::string& reference, const std::string& base);

  SchemaJson root_;
  const char* id_ = "$id";
  bool ref_is_alone_ = false;
  bool contains_evaluates_ = true;
  struct Reference {
    SchemaJson* schema = nullptr;
    std::string base;
  };
  std::vector<Reference> references_;         // that are to be resolved
  std::map<std::string, SchemaJson*> named_;  // by URI, with a fragment or without
  std::map<std::string, int> n_dynamic_;      // of each "$dynamicAnchor"
  struct Place {
    std::string pointer;
    size_t position = 0;
  };
  std::unordered_map<const SchemaJson*, Place> places_;
  size_t n_name_bytes_ = 0;
  std::deque<SchemaJson> made_;
  std::unordered_map<const SchemaJson*, const SchemaJson*> negations_;
};

/// Whether values are equal as JSON Schema has it: whatever the order of members and the spelling
/// of numbers.
bool is_same_json(const SchemaJson& a, const SchemaJson& b);

/// The number of characters of a text.
size_t count_characters(std::string_view text);

}  // namespace faststream::rules
