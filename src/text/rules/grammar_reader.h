// What the kinds of grammars have in common: characters, lines, and rules by name.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/rules/expression.h"

namespace faststream::rules {

/// Groups within each other.
constexpr int kMaxGroupDepth = 200;
/// Times that a grammar's part is repeated.
constexpr int32_t kMaxRepeated = 1 << 20;

/// Reads characters of a grammar.
class GrammarReader {
 public:
  explicit GrammarReader(std::string_view text) : text_(text) {}

  /// Throws Error with the line.
  [[noreturn]] void fail(const std::string& what) const;
  [[nodiscard]] bool at_end() const { return at_ == text_.size(); }
  [[nodiscard]] char peek() const { return at_end() ? '\0' : text_[at_]; }
  [[nodiscard]] bool sees(std::string_view what) const {
    return text_.substr(at_).starts_with(what);
  }
  bool take(std::string_view what);
  uint32_t take_character();
  /// Letters, digits, - and _; may be empty.
  std::string take_name();
  /// Behind a backslash.
  uint32_t take_escape();
  /// The number of repetitions; -1 where there is none.
  int32_t take_count();
  /// Up to the unescaped `end`, which is passed.
  std::string take_until(char end);
  /// Blanks and comments; line ends, too, if `lines`.
  void skip_blanks(bool lines, std::string_view comment);

  size_t at() const { return at_; }
  void go_back(size_t at) { at_ = at; }

 private:
  std::string_view text_;
  size_t at_ = 0;
};

/// Numbers rules as they are named, and checks that all are defined.
class RuleNames {
 public:
  /// Of the rule that is the whole text.
  explicit RuleNames(const std::string& root) { number(root); }
  int32_t number(const std::string& name);
  [[nodiscard]] bool is_defined(int32_t rule) const {
    return grammar_.rules[static_cast<size_t>(rule)].expr != nullptr;
  }
  void define(int32_t rule, const Expr& expr);
  /// Throws Error where one is not defined.
  Grammar take();

 private:
  Grammar grammar_;
  std::map<std::string, int32_t> numbers_;
};

/// A rule that begins with itself, A = A x | y, as the repetition y x*.
Expr without_left_recursion(int32_t rule, const Expr& expr);

Grammar parse_gbnf(std::string_view text);
Grammar parse_lark(std::string_view text);

}  // namespace faststream::rules
