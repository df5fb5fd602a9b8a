// Makes a tree of a Jinja template's tokens.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace faststream::jinja {

/// Reads the grammar of Jinja2's parser.py (3.1) with its loopcontrols extension and Transformers'
/// {% generation %}. Tags that read other files (include, import, extends) are refused.
class Parser {
 public:
  /// `line` is kept at the place that is being read.
  Parser(std::string_view source, int& line);

  /// Throws Failure.
  Tree parse();

 private:
  friend class NestingGuard;

  // Tokens.
  [[nodiscard]] const Token& current() const { return tokens_[at_]; }
  [[nodiscard]] const Token& ahead() const;
  void skip(size_t n = 1);
  bool take_op(std::string_view spelling);
  bool take_name(std::string_view spelling);
  void expect_op(std::string_view spelling);
  void expect_name(std::string_view spelling);
  void expect(Token::Type type, const char* what);
  std::string expect_any_name();
  [[noreturn]] void fail_unexpected() const;
  Symbol symbol(const std::string& name);

  // Statements; parser.cpp.
  Body parse_body(std::initializer_list<std::string_view> ends);
  void parse_tag(Body& body);
  Body parse_block_body(std::initializer_list<std::string_view> ends);
  Body parse_enclosed(std::string_view end);
  Statement parse_set();
  Statement parse_for();
  Statement parse_if();
  Statement parse_with();
  Statement parse_macro();
  Statement parse_call_block();
  Statement parse_filter_block();
  Statement parse_block();
  Statement parse_print();
  Statement parse_loop_control();
  Signature parse_signature();
  std::shared_ptr<MacroNode> start_macro(std::string name);
  void parse_macro_body(MacroNode& macro, std::string_view end);
  Target parse_target(bool with_attributes);
  Target parse_single_target(bool with_attributes);
  void check_no_loop(const Target& target) const;

  // Expressions; parse_expression.cpp.
  ExpressionPtr parse_expression();
  ExpressionPtr parse_tuple(bool with_conditional = true, bool in_parentheses = false);
  ExpressionPtr parse_conditional();
  ExpressionPtr parse_logic(bool is_and);
  ExpressionPtr parse_or() { return parse_logic(false); }
  ExpressionPtr parse_not();
  ExpressionPtr parse_compare();
  /// Operands with operators of one rank between them, taken together from left to right.
  template <typename Operators, typename ParseOperand>
  ExpressionPtr parse_chain(const Operators& operators, ParseOperand&& parse_operand);
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concat();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_unary(bool with_filters);
  ExpressionPtr parse_primary();
  ExpressionPtr parse_name();
  ExpressionPtr parse_list();
  ExpressionPtr parse_dict();
  ExpressionPtr parse_postfix(ExpressionPtr node);
  ExpressionPtr parse_filters_and_tests(ExpressionPtr node);
  ExpressionPtr parse_filter(ExpressionPtr input);
  ExpressionPtr parse_filters(ExpressionPtr input);
  ExpressionPtr parse_test(ExpressionPtr input);
  ExpressionPtr parse_subscript(ExpressionPtr object);
  CallArguments parse_arguments();
  [[nodiscard]] bool ends_tuple() const;
  std::string parse_dotted_name();

  int& line_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
  int n_loops_ = 0;                 // around this place, in this macro
  int n_for_tags_ = 0;              // around this place, and this one
  int n_conditions_ = 0;            // around this place
  std::vector<MacroNode*> macros_;  // around this place
  std::unordered_map<std::string, Symbol> symbols_;
  std::vector<std::string> names_;
};

/// Counts how deep a parser is; constructor throws Failure where that is too deep for a stack.
class NestingGuard {
 public:
  explicit NestingGuard(Parser& parser);
  NestingGuard(const NestingGuard&) = delete;
  NestingGuard& operator=(const NestingGuard&) = delete;
  ~NestingGuard() { --parser_.nesting_; }

 private:
  Parser& parser_;
};

}  // namespace faststream::jinja
