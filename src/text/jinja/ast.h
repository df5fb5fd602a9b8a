// A template as a tree.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/value.h"

namespace faststream::jinja {

class Runtime;
struct Arguments;

/// A name as a number: an index into Tree::names.
using Symbol = size_t;

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

using Filter = Value (*)(Runtime&, const Value& input, Arguments);
using Test = bool (*)(Runtime&, const Value& input, Arguments);

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr list;  ///< *list; may be null
  ExpressionPtr dict;  ///< **dict; may be null
};

enum class BinaryOp { add, subtract, multiply, divide, floor_divide, modulo, power };
enum class CompareOp { equal, not_equal, less, less_equal, greater, greater_equal, in, not_in };

struct ConstantNode {
  Value value;
};
struct NameNode {
  Symbol symbol = 0;
};
struct AttributeNode {
  ExpressionPtr object;
  std::string name;
};
struct ItemNode {
  ExpressionPtr object;
  ExpressionPtr key;
};
struct SliceNode {  ///< each bound may be null
  ExpressionPtr object;
  ExpressionPtr start, stop, step;
};
struct CallNode {
  ExpressionPtr callee;
  CallArguments arguments;
};
struct FilterNode {
  ExpressionPtr input;  ///< null for what a block encloses
  std::string name;
  Filter filter = nullptr;  ///< null for a name that none has
  CallArguments arguments;
};
struct TestNode {
  ExpressionPtr input;
  std::string name;
  Test test = nullptr;  ///< likewise
  CallArguments arguments;
};
struct ListNode {
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
};
struct DictNode {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> entries;
};
struct ConcatNode {  ///< a ~ b ~ c
  std::vector<ExpressionPtr> parts;
};
struct CompareNode {  ///< a < b <= c
  ExpressionPtr first;
  std::vector<std::pair<CompareOp, ExpressionPtr>> rest;
};
struct ConditionalNode {
  ExpressionPtr condition, then, otherwise;  ///< otherwise: may be null
};
struct LogicNode {
  bool is_and = false;
  std::vector<ExpressionPtr> operands;
};
struct NotNode {
  ExpressionPtr operand;
};
struct SignNode {
  bool negative = false;
  ExpressionPtr operand;
};
struct BinaryNode {
  BinaryOp op = BinaryOp::add;
  ExpressionPtr left, right;
};

struct Expression {
  std::variant<ConstantNode, NameNode, AttributeNode, ItemNode, SliceNode, CallNode, FilterNode,
               TestNode, ListNode, DictNode, ConcatNode, CompareNode, ConditionalNode, LogicNode,
               NotNode, SignNode, BinaryNode>
      node;
  int line = 1;
  int depth = 1;  ///< of the tree below, this included
};

/// What is assigned to: a name, an attribute of a namespace, or several of these.
struct Target {
  Symbol symbol = 0;
  std::string attribute;  ///< of the namespace `symbol`; empty for the name itself
  std::vector<Target> parts;
  bool is_tuple = false;  ///< `parts` are assigned to
};

struct Statement;
using Body = std::vector<Statement>;

/// Parameters of a macro or a call block; the last ones may have defaults.
struct Signature {
  std::vector<Symbol> names;
  std::vector<ExpressionPtr> defaults;
};
/// What a macro's body may use besides.
struct MacroNode {
  std::string name;
  Symbol symbol = 0;
  Signature signature;
  std::vector<Statement> body;
  bool takes_caller = false;  ///< the body says "caller"
  bool takes_kwargs = false;
  bool takes_varargs = false;
};

struct DataStatement {
  std::string text;
};
struct PrintStatement {
  std::vector<ExpressionPtr> values;
};
struct SetStatement {
  Target target;
  ExpressionPtr value;
};
struct SetBlockStatement {
  Target target;
  ExpressionPtr filters;  ///< may be null
  Body body;
};
struct ForStatement {
  Target target;
  ExpressionPtr iterable;
  ExpressionPtr condition;  ///< may be null
  bool recursive = false;
  Body body;
  Body otherwise;
};
struct IfStatement {
  std::vector<std::pair<ExpressionPtr, Body>> branches;
  Body otherwise;
};
struct WithStatement {
  std::vector<std::pair<Target, ExpressionPtr>> values;
  Body body;
};
struct MacroStatement {
  std::shared_ptr<const MacroNode> macro;
};
struct CallStatement {
  ExpressionPtr call;  ///< a CallNode
  std::shared_ptr<const MacroNode> caller;
};
struct FilterStatement {
  ExpressionPtr filters;
  Body body;
};
struct ScopeStatement {  ///< {% block %} and {% generation %}
  Body body;
};
struct BreakStatement {};
struct ContinueStatement {};

struct Statement {
  std::variant<DataStatement, PrintStatement, SetStatement, SetBlockStatement, ForStatement,
               IfStatement, WithStatement, MacroStatement, CallStatement, FilterStatement,
               ScopeStatement, BreakStatement, ContinueStatement>
      node;
  int line = 1;
};

struct Tree {
  Body body;
  std::vector<std::string> names;  ///< by Symbol
  Symbol loop = 0, caller = 0, kwargs = 0, varargs = 0;
};

}  // namespace faststream::jinja
