// Walks a template's tree.
#pragma once

#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/library.h"

namespace faststream::jinja {

/// Names with their values, in a block and those around it.
struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<Symbol, Value>> variables = {};
  bool captured = false;  ///< a macro was defined in it or within, and may outlive it
};

/// One rendering of one template.
class Interpreter {
 public:
  /// All must outlive it. `line` is kept at the place that is evaluated.
  Interpreter(const Tree& tree, Runtime& runtime, int& line);

  /// What the template prints with these variables, which go before functions of the same name.
  /// Throws Failure and Refusal.
  Text render(const Dict& variables);

 private:
  friend class Macro;
  friend class LoopObject;

  enum class Flow { on, broken, continued };

  // Statements; interpreter.cpp.
  Flow run(const Body& body);
  Flow run_in_scope(const Body& body);
  Flow execute(const DataStatement& data);
  Flow execute(const PrintStatement& print);
  Flow execute(const SetStatement& set);
  Flow execute(const SetBlockStatement& set);
  Flow execute(const ForStatement& loop);
  Flow execute(const IfStatement& branches);
  Flow execute(const WithStatement& with);
  Flow execute(const MacroStatement& definition);
  Flow execute(const CallStatement& call);
  Flow execute(const FilterStatement& filter);
  Flow execute(const ScopeStatement& scope);
  Flow execute(const BreakStatement& statement);
  Flow execute(const ContinueStatement& statement);
  Flow run_loop(const ForStatement& loop, const Value& iterable, int depth);
  Text capture(const Body& body);
  Text run_macro(const MacroNode& macro, Scope* closure, Arguments arguments);

  // Names.
  Scope* open_scope(Scope* parent);
  void close_scope();
  void assign(const Target& target, Value value);
  void assign(Symbol symbol, Value value);
  [[nodiscard]] Value look_up(Symbol symbol);
  Value make_macro(const std::shared_ptr<const MacroNode>& macro);

  // Expressions; evaluate.cpp.
  Value evaluate(const Expression& expression);
  Value evaluate(const ConstantNode& node);
  Value evaluate(const NameNode& node);
  Value evaluate(const AttributeNode& node);
  Value evaluate(const ItemNode& node);
  Value evaluate(const SliceNode& node);
  Value evaluate(const CallNode& node);
  Value evaluate(const FilterNode& node);
  Value evaluate(const TestNode& node);
  Value evaluate(const ListNode& node);
  Value evaluate(const DictNode& node);
  Value evaluate(const ConcatNode& node);
  Value evaluate(const CompareNode& node);
  Value evaluate(const ConditionalNode& node);
  Value evaluate(const LogicNode& node);
  Value evaluate(const NotNode& node);
  Value evaluate(const SignNode& node);
  Value evaluate(const BinaryNode& node);
  Value evaluate_optional(const ExpressionPtr& expression);
  Value evaluate_call(const CallNode& node, const Value* caller);
  Value apply_filters(const Expression& filters, const Value& input);
  Arguments evaluate_arguments(const CallArguments& arguments);

  const Tree& tree_;
  Runtime& runtime_;
  int& line_;
  Text* out_ = nullptr;
  Scope* scope_ = nullptr;
  const Value* block_ = nullptr;  // what a filter block encloses
  std::deque<Scope> scopes_;      // all that were ever needed at once
  std::vector<Scope*> free_scopes_;
};

}  // namespace faststream::jinja
