#include <algorithm>
#include <array>
#include <utility>

#include "support/printable.h"
#include "text/jinja/failure.h"
#include "text/jinja/library.h"
#include "text/jinja/parser.h"

namespace faststream::jinja {
namespace {

using Type = Token::Type;

// A tree is walked, and taken down, by functions that call themselves.
constexpr int kDeepestExpression = 200;

int deepest(const ExpressionPtr& node) { return node == nullptr ? 0 : node->depth; }

template <typename... Nodes>
int deepest(const ExpressionPtr& first, const Nodes&... others) {
  return std::max(deepest(first), deepest(others...));
}

int deepest(const std::vector<ExpressionPtr>& nodes) {
  int depth = 0;
  for (const ExpressionPtr& node : nodes) depth = std::max(depth, deepest(node));
  return depth;
}

int deepest(const CallArguments& arguments) {
  int depth = std::max(deepest(arguments.positional), deepest(arguments.list, arguments.dict));
  for (const auto& [name, node] : arguments.named) depth = std::max(depth, deepest(node));
  return depth;
}

// Of the nodes directly below one.
int deepest(const ConstantNode& /*node*/) { return 0; }
int deepest(const NameNode& /*node*/) { return 0; }
int deepest(const AttributeNode& node) { return deepest(node.object); }
int deepest(const ItemNode& node) { return deepest(node.object, node.key); }
int deepest(const SliceNode& node) {
  return deepest(node.object, node.start, node.stop, node.step);
}
int deepest(const CallNode& node) {
  return std::max(deepest(node.callee), deepest(node.arguments));
}
int deepest(const FilterNode& node) {
  return std::max(deepest(node.input), deepest(node.arguments));
}
int deepest(const TestNode& node) { return std::max(deepest(node.input), deepest(node.arguments)); }
int deepest(const ListNode& node) { return deepest(node.items); }
int deepest(const DictNode& node) {
  int depth = 0;
  for (const auto& [key, value] : node.entries) depth = std::max(depth, deepest(key, value));
  return depth;
}
int deepest(const ConcatNode& node) { return deepest(node.parts); }
int deepest(const CompareNode& node) {
  int depth = deepest(node.first);
  for (const auto& [op, operand] : node.rest) depth = std::max(depth, deepest(operand));
  return depth;
}
int deepest(const ConditionalNode& node) {
  return deepest(node.condition, node.then, node.otherwise);
}
int deepest(const LogicNode& node) { return deepest(node.operands); }
int deepest(const NotNode& node) { return deepest(node.operand); }
int deepest(const SignNode& node) { return deepest(node.operand); }
int deepest(const BinaryNode& node) { return deepest(node.left, node.right); }

template <typename Node>
ExpressionPtr make(Node node, int line) {
  const int depth = deepest(node) + 1;
  if (depth > kDeepestExpression) {
    throw Failure("an expression has more than " + std::to_string(kDeepestExpression) +
                  " operators in one another; use {% set %} for parts of it");
  }
  return std::make_unique<Expression>(
      Expression{.node = std::move(node), .line = line, .depth = depth});
}

template <typename Op, size_t n>
std::optional<Op> find_op(const Token& token,
                          const std::array<std::pair<std::string_view, Op>, n>& ops) {
  if (token.type != Type::op) return std::nullopt;
  const auto found =
      std::find_if(ops.begin(), ops.end(), [&](const auto& op) { return op.first == token.text; });
  return found == ops.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace

ExpressionPtr Parser::parse_expression() { return parse_conditional(); }

bool Parser::ends_tuple() const {
  return current().type == Type::variable_end || current().type == Type::block_end ||
         current().is_op(")") || current().is_name("recursive");
}

// An expression, or several with commas between them. `in_parentheses`: there may be none.
ExpressionPtr Parser::parse_tuple(bool with_conditional, bool in_parentheses) {
  const int line = line_;
  ListNode tuple;
  bool has_comma = false;
  while (!ends_tuple()) {
    tuple.items.push_back(with_conditional ? parse_expression() : parse_or());
    if (!take_op(",")) break;
    has_comma = true;
  }
  if (!has_comma && !tuple.items.empty()) return std::move(tuple.items.front());
  if (!has_comma && !in_parentheses) fail_unexpected();
  tuple.is_tuple = true;
  return make(std::move(tuple), line);
}

ExpressionPtr Parser::parse_conditional() {
  const NestingGuard guard(*this);
  ExpressionPtr node = parse_or();
  while (current().is_name("if")) {
    const int line = line_;
    skip();
    ConditionalNode choice;
    choice.then = std::move(node);
    choice.condition = parse_or();
    if (take_name("else")) choice.otherwise = parse_conditional();
    node = make(std::move(choice), line);
  }
  return node;
}

ExpressionPtr Parser::parse_logic(bool is_and) {
  const auto parse_operand = [&] { return is_and ? parse_not() : parse_logic(true); };
  const int line = line_;
  ExpressionPtr first = parse_operand();
  const std::string_view keyword = is_and ? "and" : "or";
  if (!current().is_name(keyword)) return first;
  LogicNode logic;
  logic.is_and = is_and;
  logic.operands.push_back(std::move(first));
  while (take_name(keyword)) logic.operands.push_back(parse_operand());
  return make(std::move(logic), line);
}

ExpressionPtr Parser::parse_not() {
  if (!current().is_name("not")) return parse_compare();
  const NestingGuard guard(*this);
  const int line = line_;
  skip();
  return make(NotNode{parse_not()}, line);
}

ExpressionPtr Parser::parse_compare() {
  constexpr std::array<std::pair<std::string_view, CompareOp>, 6> kOps = {
      {{"==", CompareOp::equal},
       {"!=", CompareOp::not_equal},
       {"<", CompareOp::less},
       {"<=", CompareOp::less_equal},
       {">", CompareOp::greater},
       {">=", CompareOp::greater_equal}}};
  const int line = line_;
  CompareNode compare;
  compare.first = parse_sum();
  for (;;) {
    auto op = find_op(current(), kOps);
    if (current().is_name("in")) op = CompareOp::in;
    if (current().is_name("not") && ahead().is_name("in")) op = CompareOp::not_in;
    if (!op) break;
    skip(*op == CompareOp::not_in ? 2 : 1);
    compare.rest.emplace_back(*op, parse_sum());
  }
  if (compare.rest.empty()) return std::move(compare.first);
  return make(std::move(compare), line);
}

template <typename Operators, typename ParseOperand>
ExpressionPtr Parser::parse_chain(const Operators& operators, ParseOperand&& parse_operand) {
  ExpressionPtr node = parse_operand();
  while (const auto op = find_op(current(), operators)) {
    const int line = line_;
    skip();
    ExpressionPtr right = parse_operand();
    node = make(BinaryNode{.op = *op, .left = std::move(node), .right = std::move(right)}, line);
  }
  return node;
}

ExpressionPtr Parser::parse_sum() {
  constexpr std::array<std::pair<std::string_view, BinaryOp>, 2> kOps = {
      {{"+", BinaryOp::add}, {"-", BinaryOp::subtract}}};
  return parse_chain(kOps, [this] { return parse_concat(); });
}

ExpressionPtr Parser::parse_concat() {
  const int line = line_;
  ConcatNode concat;
  concat.parts.push_back(parse_product());
  while (take_op("~")) concat.parts.push_back(parse_product());
  if (concat.parts.size() == 1) return std::move(concat.parts.front());
  return make(std::move(concat), line);
}

ExpressionPtr Parser::parse_product() {
  constexpr std::array<std::pair<std::string_view, BinaryOp>, 4> kOps = {
      {{"*", BinaryOp::multiply},
       {"/", BinaryOp::divide},
       {"//", BinaryOp::floor_divide},
       {"%", BinaryOp::modulo}}};
  return parse_chain(kOps, [this] { return parse_power(); });
}

ExpressionPtr Parser::parse_power() {
  constexpr std::array<std::pair<std::string_view, BinaryOp>, 1> kOps = {{{"**", BinaryOp::power}}};
  return parse_chain(kOps, [this] { return parse_unary(true); });
}

ExpressionPtr Parser::parse_unary(bool with_filters) {
  const NestingGuard guard(*this);
  const int line = line_;
  ExpressionPtr node;
  if (current().is_op("-") || current().is_op("+")) {
    const bool negative = current().is_op("-");
    skip();
    node = make(SignNode{.negative = negative, .operand = parse_unary(false)}, line);
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filters ? parse_filters_and_tests(std::move(node)) : std::move(node);
}

ExpressionPtr Parser::parse_primary() {
  const int line = line_;
  const Token& token = current();
  switch (token.type) {
    case Type::name:
      return parse_name();
    case Type::string: {
      std::string text;
      for (; current().type == Type::string; skip()) text += current().text;
      return make(ConstantNode{Value(Text(std::move(text)))}, line);
    }
    case Type::integer:
      skip();
      return make(ConstantNode{Value(token.number)}, line);
    case Type::real:
      skip();
      return make(ConstantNode{Value(token.real)}, line);
    default:
      break;
  }
  if (take_op("(")) {
    ExpressionPtr node = parse_tuple(true, true);
    expect_op(")");
    return node;
  }
  if (token.is_op("[")) return parse_list();
  if (token.is_op("{")) return parse_dict();
  fail_unexpected();
}

ExpressionPtr Parser::parse_name() {
  const int line = line_;
  const std::string name = expect_any_name();
  if (name == "true" || name == "True") return make(ConstantNode{Value(true)}, line);
  if (name == "false" || name == "False") return make(ConstantNode{Value(false)}, line);
  if (name == "none" || name == "None") return make(ConstantNode{}, line);
  if (!macros_.empty()) {
    MacroNode& macro = *macros_.back();
    macro.takes_caller = macro.takes_caller || name == "caller";
    macro.takes_kwargs = macro.takes_kwargs || name == "kwargs";
    macro.takes_varargs = macro.takes_varargs || name == "varargs";
  }
  return make(NameNode{symbol(name)}, line);
}

ExpressionPtr Parser::parse_list() {
  const int line = line_;
  skip();
  ListNode list;
  while (!current().is_op("]")) {
    if (!list.items.empty()) expect_op(",");
    if (current().is_op("]")) break;
    list.items.push_back(parse_expression());
  }
  skip();
  return make(std::move(list), line);
}

ExpressionPtr Parser::parse_dict() {
  const int line = line_;
  skip();
  DictNode dict;
  while (!current().is_op("}")) {
    if (!dict.entries.empty()) expect_op(",");
    if (current().is_op("}")) break;
    ExpressionPtr key = parse_expression();
    expect_op(":");
    dict.entries.emplace_back(std::move(key), parse_expression());
  }
  skip();
  return make(std::move(dict), line);
}

ExpressionPtr Parser::parse_postfix(ExpressionPtr node) {
  for (;;) {
    const int line = line_;
    if (current().is_op(".") || current().is_op("[")) {
      node = parse_subscript(std::move(node));
    } else if (current().is_op("(")) {
      CallNode call;
      call.callee = std::move(node);
      call.arguments = parse_arguments();
      node = make(std::move(call), line);
    } else {
      return node;
    }
  }
}

ExpressionPtr Parser::parse_filters_and_tests(ExpressionPtr node) {
  for (;;) {
    if (current().is_op("|")) {
      node = parse_filters(std::move(node));
    } else if (current().is_name("is")) {
      node = parse_test(std::move(node));
    } else if (current().is_op("(")) {
      const int line = line_;
      CallNode call;
      call.callee = std::move(node);
      call.arguments = parse_arguments();
      node = make(std::move(call), line);
    } else {
      return node;
    }
  }
}

std::string Parser::parse_dotted_name() {
  std::string name = expect_any_name();
  while (take_op(".")) name += "." + expect_any_name();
  return name;
}

// A filter's name and arguments, after the "|".
ExpressionPtr Parser::parse_filter(ExpressionPtr input) {
  const int line = line_;
  FilterNode node;
  node.input = std::move(input);
  node.name = parse_dotted_name();
  node.filter = find_filter(node.name);
  // A template may ask first whether there is one.
  if (node.filter == nullptr && n_conditions_ == 0) throw no_filter(node.name);
  if (current().is_op("(")) node.arguments = parse_arguments();
  return make(std::move(node), line);
}

ExpressionPtr Parser::parse_filters(ExpressionPtr input) {
  while (take_op("|")) {
    input = parse_filter(std::move(input));
  }
  return input;
}

ExpressionPtr Parser::parse_test(ExpressionPtr input) {
  const int line = line_;
  skip();
  const bool negated = take_name("not");
  TestNode node;
  node.input = std::move(input);
  node.name = parse_dotted_name();
  node.test = find_test(node.name);
  if (node.test == nullptr && n_conditions_ == 0) throw no_test(node.name);
  const Token& next = current();
  const bool is_operator = next.is_name("else") || next.is_name("or") || next.is_name("and");
  if (next.is_op("(")) {
    node.arguments = parse_arguments();
  } else if (next.is_name("is")) {
    throw Failure("tests cannot be chained with \"is\"");
  } else if (!is_operator &&
             (next.type == Type::name || next.type == Type::string || next.type == Type::integer ||
              next.type == Type::real || next.is_op("[") || next.is_op("{"))) {
    node.arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  ExpressionPtr test = make(std::move(node), line);
  return negated ? make(NotNode{std::move(test)}, line) : std::move(test);
}

ExpressionPtr Parser::parse_subscript(ExpressionPtr object) {
  const int line = line_;
  if (take_op(".")) {
    if (current().type == Type::integer) {
      ExpressionPtr index = make(ConstantNode{Value(current().number)}, line);
      skip();
      return make(ItemNode{.object = std::move(object), .key = std::move(index)}, line);
    }
    return make(AttributeNode{.object = std::move(object), .name = expect_any_name()}, line);
  }
  skip();  // "["
  std::array<ExpressionPtr, 3> bounds;
  if (!current().is_op(":")) {
    bounds[0] = parse_tuple();
    if (take_op("]")) {
      return make(ItemNode{.object = std::move(object), .key = std::move(bounds[0])}, line);
    }
  }
  expect_op(":");
  if (!current().is_op(":") && !current().is_op("]")) bounds[1] = parse_expression();
  if (take_op(":") && !current().is_op("]")) bounds[2] = parse_expression();
  expect_op("]");
  return make(SliceNode{.object = std::move(object),
                        .start = std::move(bounds[0]),
                        .stop = std::move(bounds[1]),
                        .step = std::move(bounds[2])},
              line);
}

CallArguments Parser::parse_arguments() {
  CallArguments arguments;
  const auto ensure = [](bool in_order) {
    if (!in_order) throw Failure("a call's arguments are in the wrong order");
  };
  expect_op("(");
  for (bool first = true; !current().is_op(")"); first = false) {
    if (!first) expect_op(",");
    if (current().is_op(")")) break;
    if (take_op("*")) {
      ensure(arguments.list == nullptr && arguments.dict == nullptr);
      arguments.list = parse_expression();
    } else if (take_op("**")) {
      ensure(arguments.dict == nullptr);
      arguments.dict = parse_expression();
    } else if (current().type == Type::name && ahead().is_op("=")) {
      ensure(arguments.dict == nullptr);
      std::string name = current().text;
      skip(2);
      arguments.named.emplace_back(std::move(name), parse_expression());
    } else {
      ensure(arguments.list == nullptr && arguments.dict == nullptr && arguments.named.empty());
      arguments.positional.push_back(parse_expression());
    }
  }
  skip();
  return arguments;
}

}  // namespace faststream::jinja
