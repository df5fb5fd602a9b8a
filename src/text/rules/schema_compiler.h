// A JSON schema's instances as a grammar.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/rules/character_classes.h"
#include "text/rules/dfa.h"
#include "text/rules/expression.h"
#include "text/rules/schema_document.h"

namespace faststream::rules {

/// Schemas that all hold at once are one rule, whatever they are called by. Of those the keywords
/// that choose (anyOf, oneOf, if, dependencies) are resolved first, each by schemas that hold
/// besides; what is left is said by type.
class SchemaCompiler {
 public:
  explicit SchemaCompiler(SchemaDocument& document) : document_(document) {}

  /// Once. Throws Error as parse_json_schema() does.
  Grammar compile();

 private:
  using Schemas = std::vector<const SchemaJson*>;
  /// Schemas that hold, and choices in them that were made.
  struct All {
    std::set<const SchemaJson*> schemas;
    std::set<std::pair<const SchemaJson*, std::string>> made;
    friend auto operator<=>(const All&, const All&) = default;  // NOLINT(modernize-use-nullptr)
  };
  /// Ways in which a choice can be made: each of schemas.
  struct Choice {
    std::pair<const SchemaJson*, std::string> what;
    std::vector<Schemas> ways;
    bool exclusive = false;  ///< of one schema each, of which no two may hold at once
  };
  /// What a schema says of members or items that no other one evaluates, of those that hold in its
  /// place.
  struct Unevaluated {
    const SchemaJson* owner = nullptr;
    const SchemaJson* value = nullptr;
    Schemas others;  ///< its owner is the first
  };
  /// Items of which there is a number, from an index on.
  struct Contained {
    const SchemaJson* schema = nullptr;
    size_t from = 0;
    int64_t least = 0;
    int64_t most = 0;  ///< or kUnbounded
  };
  struct ListBounds {
    int64_t least = 0;
    int64_t most = 0;
    size_t n_first = 0;
  };
  enum Type : uint8_t {
    kNull = 1,
    kBoolean = 2,
    kInteger = 4,
    kOtherNumber = 8,
    kString = 16,
    kArray = 32,
    kObject = 64,
    kAnyType = 127
  };

  [[noreturn]] void refuse(const SchemaJson& schema, const std::string& what) const;
  void count_combination(const All& all);
  Expr rule_of(const All& all);
  Expr build(const All& all);
  bool has_no_value(const Schemas& schemas);
  Schemas flatten(const All& all);
  void check_keywords(const SchemaJson& schema) const;
  void check_unevaluated(const SchemaJson& schema) const;
  const SchemaJson& negation(const SchemaJson& owner, const SchemaJson& schema);
  Schemas in_place(const SchemaJson& owner, const All& all);
  std::vector<Unevaluated> unevaluated(const Schemas& schemas, const All& all, const char* key);
  std::optional<Choice> find_choice(const Schemas& schemas, const All& all);
  std::vector<Schemas> subsets(const SchemaJson& owner, const SchemaJson& ways) const;
  std::optional<Choice> find_condition(const SchemaJson& schema, bool evaluates);
  std::optional<Choice> find_dependency(const SchemaJson& schema, const All& all);
  Expr build_choice(const Choice& choice, const All& all);
  Expr build_alone(const Choice& made, const SchemaJson& way, const Schemas& others,
                   const All& rest);
  bool are_disjoint(const SchemaJson& a, const SchemaJson& b, const All& all);
  uint8_t types(const Schemas& schemas) const;
  std::optional<std::vector<SchemaJson>> values_of(const Schemas& schemas);
  Expr build_numbers(const Schemas& schemas, uint8_t types);
  std::optional<Expr> build_counted_string(const Dfa& language, int32_t least, int32_t most);
  Expr build_strings(const Schemas& schemas);
  std::optional<Dfa> string_language(const Schemas& schemas);
  const Dfa& pattern(const SchemaJson& schema, const char* key, const std::string& text,
                     bool anywhere);
  const Dfa& format_language(const SchemaJson& schema, const SchemaJson& format);
  Expr build_arrays(const Schemas& schemas, const All& all);
  Expr build_plain_array(const ListBounds& bounds, const std::vector<All>& items);
  Expr build_counted_array(const Schemas& schemas, const ListBounds& bounds,
                           const std::vector<All>& items, const std::vector<Contained>& contained);
  Expr build_unique_array(const Schemas& schemas, const ListBounds& bounds,
                          const std::vector<All>& items);
  std::vector<Contained> contained_items(const Schemas& schemas) const;
  All item_schemas(const Schemas& schemas, const std::vector<Unevaluated>& unevaluated, size_t i);
  Expr build_objects(const Schemas& schemas, const All& all);
  Expr build_members(const Schemas& schemas, const std::vector<Unevaluated>& unevaluated,
                     const std::vector<std::string>& names, const std::set<std::string>& required);
  Expr any_name();
  Expr build_others(const Schemas& schemas, const std::vector<Unevaluated>& unevaluated,
                    const std::vector<std::string>& names);
  std::optional<All> member_schemas(const Schemas& schemas,
                                    const std::vector<Unevaluated>& unevaluated,
                                    const std::string& name);
  Schemas last_members(const Schemas& schemas, const Schemas& some, size_t names_set, size_t set);
  bool evaluates(const SchemaJson& schema, const std::string& name);
  std::optional<Dfa> names_language(const Schemas& schemas);
  Dfa names_of(const All& all);
  Dfa plain_names_of(const Schemas& flat);
  bool valid(const SchemaJson& value, const SchemaJson& schema, bool with_choices, int depth = 0);
  bool valid_number(const SchemaJson& value, const SchemaJson& schema);
  bool valid_string(const SchemaJson& value, const SchemaJson& schema);
  bool valid_array(const SchemaJson& value, const SchemaJson& schema, int depth);
  bool valid_object(const SchemaJson& value, const SchemaJson& schema, int depth);
  std::optional<int64_t> count(const SchemaJson& schema, const char* key) const;
  Expr shared(const std::string& name, const Expr& expr);
  const SchemaJson& unit(bool value) { return value ? yes_ : no_; }

  SchemaDocument& document_;
  WorkBudget budget_;
  CharacterClasses classes_{budget_};
  Grammar grammar_;
  std::map<All, int32_t> rules_;
  std::map<std::string, Expr> shared_;
  std::map<std::string, std::unique_ptr<const Dfa>> patterns_;
  std::map<std::pair<const SchemaJson*, std::string>, Schemas> made_;  // by schema and keyword
  std::map<Schemas, const SchemaJson*> any_of_;                        // anyOf of these
  const SchemaJson* tried_ = nullptr;  // the enumeration whose values are tried: they are in it
  int depth_ = 0;
  SchemaJson yes_ = true;
  SchemaJson no_ = false;
};

}  // namespace faststream::rules
