#include "support/printable.h"
#include "text/jinja/failure.h"
#include "text/jinja/interpreter.h"

namespace faststream::jinja {

Value Interpreter::evaluate(const Expression& expression) {
  const Runtime::Depth depth(runtime_);
  runtime_.spend_steps(1);
  line_ = expression.line;
  return std::visit([this](const auto& node) { return evaluate(node); }, expression.node);
}

Value Interpreter::evaluate_optional(const ExpressionPtr& expression) {
  return expression == nullptr ? Value() : evaluate(*expression);
}

Value Interpreter::evaluate(const ConstantNode& node) { return node.value; }

Value Interpreter::evaluate(const NameNode& node) { return look_up(node.symbol); }

Value Interpreter::evaluate(const AttributeNode& node) {
  return get_attribute(runtime_, evaluate(*node.object), node.name);
}

Value Interpreter::evaluate(const ItemNode& node) {
  const Value object = evaluate(*node.object);
  return get_item(runtime_, object, evaluate(*node.key));
}

Value Interpreter::evaluate(const SliceNode& node) {
  const Value object = evaluate(*node.object);
  const Value start = evaluate_optional(node.start);
  const Value stop = evaluate_optional(node.stop);
  return slice(runtime_, object, start, stop, evaluate_optional(node.step));
}

Arguments Interpreter::evaluate_arguments(const CallArguments& arguments) {
  Arguments values;
  for (const ExpressionPtr& value : arguments.positional) {
    values.positional.push_back(evaluate(*value));
  }
  for (const auto& [name, value] : arguments.named) {
    values.named.emplace_back(name, evaluate(*value));
  }
  if (arguments.list != nullptr) {
    for (Value& value : elements(runtime_, evaluate(*arguments.list))) {
      values.positional.push_back(std::move(value));
    }
  }
  if (arguments.dict != nullptr) {
    const Value named = evaluate(*arguments.dict);
    if (named.dict() == nullptr) throw Failure("what follows \"**\" is not a dict");
    for (const auto& [name, value] : named.dict()->entries()) {
      if (!name.is_text()) throw Failure("a named argument's name is not a text");
      values.named.emplace_back(name.text()->bytes(), value);
    }
  }
  return values;
}

Value Interpreter::evaluate(const CallNode& node) { return evaluate_call(node, nullptr); }

// Methods are called without a value made of them first.
Value Interpreter::evaluate_call(const CallNode& node, const Value* caller) {
  const auto* method = std::get_if<AttributeNode>(&node.callee->node);
  Value object;
  Value callee;
  if (method != nullptr) {
    object = evaluate(*method->object);
    if (object.is_undefined()) throw Failure(object.reason());
  } else {
    callee = evaluate(*node.callee);
  }
  const int line = line_;
  Arguments arguments = evaluate_arguments(node.arguments);
  line_ = line;
  if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
  if (method != nullptr) {
    if (auto result = call_method(runtime_, object, method->name, arguments)) {
      return *std::move(result);
    }
    callee = get_attribute(runtime_, object, method->name);
  }
  return call(runtime_, callee, std::move(arguments));
}

Value Interpreter::evaluate(const FilterNode& node) {
  const Value input = node.input == nullptr ? *block_ : evaluate(*node.input);
  if (node.filter == nullptr) throw no_filter(node.name);
  Arguments arguments = evaluate_arguments(node.arguments);
  return node.filter(runtime_, input, std::move(arguments));
}

Value Interpreter::apply_filters(const Expression& filters, const Value& input) {
  const Value* const outer = std::exchange(block_, &input);
  Value value = evaluate(filters);
  block_ = outer;
  return value;
}

Value Interpreter::evaluate(const TestNode& node) {
  const Value input = evaluate(*node.input);
  if (node.test == nullptr) throw no_test(node.name);
  Arguments arguments = evaluate_arguments(node.arguments);
  return Value(node.test(runtime_, input, std::move(arguments)));
}

Value Interpreter::evaluate(const ListNode& node) {
  std::vector<Value> items;
  for (const ExpressionPtr& item : node.items) items.push_back(evaluate(*item));
  return node.is_tuple ? runtime_.tuple(std::move(items)) : runtime_.list(std::move(items));
}

Value Interpreter::evaluate(const DictNode& node) {
  Dict dict;
  for (const auto& [key, value] : node.entries) {
    Value name = evaluate(*key);
    runtime_.spend_steps(name.weight() * (name.is_text() ? 1 : dict.size() + 1));
    dict.set(std::move(name), evaluate(*value));
  }
  runtime_.spend_bytes((node.entries.size() + 1) * 2 * sizeof(Dict::Entry));
  return Value(std::move(dict));
}

Value Interpreter::evaluate(const ConcatNode& node) {
  Text joined;
  for (const ExpressionPtr& part : node.parts) joined.append(to_text(runtime_, evaluate(*part)));
  return runtime_.text(std::move(joined));
}

Value Interpreter::evaluate(const CompareNode& node) {
  Value left = evaluate(*node.first);
  for (const auto& [op, operand] : node.rest) {
    Value right = evaluate(*operand);
    if (!compare(runtime_, op, left, right)) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Value Interpreter::evaluate(const ConditionalNode& node) {
  if (truth(evaluate(*node.condition))) return evaluate(*node.then);
  if (node.otherwise != nullptr) return evaluate(*node.otherwise);
  return Value::undefined("an \"if\" without an \"else\" has no value");
}

Value Interpreter::evaluate(const LogicNode& node) {
  Value value;
  for (const ExpressionPtr& operand : node.operands) {
    value = evaluate(*operand);
    if (truth(value) != node.is_and) break;
  }
  return value;
}

Value Interpreter::evaluate(const NotNode& node) { return Value(!truth(evaluate(*node.operand))); }

Value Interpreter::evaluate(const SignNode& node) {
  const Value value = evaluate(*node.operand);
  if (value.is_undefined()) throw Failure(value.reason());
  if (!value.is_number()) {
    throw Failure("a " + std::string(value.type_name()) + " has no sign");
  }
  if (!node.negative) return value.is_real() ? value : Value(value.integer());
  if (value.is_real()) return Value(-value.real());
  return binary(runtime_, BinaryOp::subtract, Value(int64_t{0}), value);
}

Value Interpreter::evaluate(const BinaryNode& node) {
  const Value left = evaluate(*node.left);
  return binary(runtime_, node.op, left, evaluate(*node.right));
}

}  // namespace faststream::jinja
