// A JSON Schema as it is written: its parts by reference, and whether instances are valid.
#pragma once

#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>

namespace faststream::rules {

using SchemaJson = nlohmann::ordered_json;

/// Keywords of our own, for what `not` makes of others; no text in UTF-8 has these names.
inline constexpr const char* kNoneOf = "\xFFnone-of";         ///< values that it is not
inline constexpr const char* kNotPattern = "\xFFno-pattern";  ///< that is not found

class SchemaDocument {
 public:
  /// Throws Error where it is no schema: each keyword's value is of the keyword's kind.
  explicit SchemaDocument(std::string_view text);

  [[nodiscard]] const SchemaJson& root() const { return root_; }
  /// Whether members beside "$ref" are ignored, as until draft 7.
  [[nodiscard]] bool ref_is_alone() const { return ref_is_alone_; }
  /// The schema that is referred to. Throws Error where there is none in the document.
  [[nodiscard]] const SchemaJson& resolve(const std::string& reference);
  /// Keeps a schema that was made of others.
  const SchemaJson& keep(SchemaJson schema);
  /// What is valid where a schema is not. Throws Error where that cannot be said.
  SchemaJson negation(const SchemaJson& schema, int depth = 0);
  /// Where a part of the document is, for errors: "#/properties/x"; of others the nearest.
  [[nodiscard]] std::string place(const SchemaJson& schema) const;
  /// How many schemas stand before a part of the document; of others the number of all.
  [[nodiscard]] size_t position(const SchemaJson& schema) const;

 private:
  void index(const SchemaJson& schema, const std::string& place);

  SchemaJson root_;
  bool ref_is_alone_ = false;
  std::map<std::string, const SchemaJson*, std::less<>> anchors_;
  struct Place {
    std::string pointer;
    size_t position = 0;
  };
  std::unordered_map<const SchemaJson*, Place> places_;
  std::deque<SchemaJson> made_;
};

/// The number of characters of a text.
size_t count_characters(std::string_view text);

}  // namespace faststream::rules
