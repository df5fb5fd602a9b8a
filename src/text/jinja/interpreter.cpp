#include "text/jinja/interpreter.h"

#include <algorithm>

#include "support/printable.h"
#include "text/jinja/failure.h"

namespace faststream::jinja {

/// A macro, or what a call block encloses, with the names around its definition.
class Macro final : public Object {
 public:
  Macro(Interpreter& interpreter, std::shared_ptr<const MacroNode> node, Scope* closure)
      : interpreter_(interpreter), node_(std::move(node)), closure_(closure) {}

  [[nodiscard]] std::string_view type_name() const override { return "macro"; }
  [[nodiscard]] bool callable() const override { return true; }
  Value call(Runtime& runtime, Arguments arguments) override {
    return runtime.text(interpreter_.run_macro(*node_, closure_, std::move(arguments)));
  }
  [[nodiscard]] std::optional<Value> attribute(Runtime& runtime, std::string_view name) override {
    if (name == "name") return runtime.text(node_->name);
    if (name == "catch_kwargs") return Value(node_->takes_kwargs);
    if (name == "catch_varargs") return Value(node_->takes_varargs);
    if (name == "caller") return Value(node_->takes_caller);
    if (name != "arguments") return std::nullopt;
    std::vector<Value> names;
    for (const Symbol symbol : node_->signature.names) {
      names.push_back(runtime.text(interpreter_.tree_.names[symbol]));
    }
    return runtime.tuple(std::move(names));
  }

 private:
  Interpreter& interpreter_;
  std::shared_ptr<const MacroNode> node_;
  Scope* closure_;
};

/// The variable "loop".
class LoopObject final : public Object {
 public:
  LoopObject(Interpreter& interpreter, const ForStatement& loop, Scope* around,
             const std::vector<Value>& items, int depth)
      : interpreter_(interpreter), loop_(loop), around_(around), items_(items), depth_(depth) {}

  void at(size_t index) { index_ = index; }

  [[nodiscard]] std::string_view type_name() const override { return "LoopContext"; }
  [[nodiscard]] bool callable() const override { return true; }
  [[nodiscard]] Text repr(Runtime& /*runtime*/) const override {
    return Text("<LoopContext " + std::to_string(index_ + 1) + "/" + std::to_string(items_.size()) +
                ">");
  }
  Value call(Runtime& runtime, Arguments arguments) override;
  [[nodiscard]] std::optional<Value> attribute(Runtime& runtime, std::string_view name) override;

 private:
  Value cycle(const Arguments& arguments) const {
    if (arguments.positional.empty()) throw Failure("loop.cycle has nothing to cycle through");
    return arguments.positional[index_ % arguments.positional.size()];
  }
  Value changed(Runtime& runtime, Arguments arguments) {
    Value now = runtime.tuple(std::move(arguments.positional));
    runtime.spend_steps(now.weight());
    if (last_ && equal(*last_, now)) return Value(false);
    last_ = std::move(now);
    return Value(true);
  }

  Interpreter& interpreter_;
  const ForStatement& loop_;
  Scope* around_;
  std::vector<Value> items_;
  int depth_;
  size_t index_ = 0;
  std::optional<Value> last_;  // what changed() was given
};

Value LoopObject::call(Runtime& runtime, Arguments arguments) {
  if (!loop_.recursive) {
    throw Failure("loop() needs a loop with \"recursive\"");
  }
  if (arguments.positional.size() != 1) throw Failure("loop() takes what to go through");
  const Runtime::Depth depth(runtime);
  Text out;
  Text* const outer = std::exchange(interpreter_.out_, &out);
  Scope* const scope = std::exchange(interpreter_.scope_, around_);
  (void)interpreter_.run_loop(loop_, arguments.positional.front(), depth_ + 1);
  interpreter_.scope_ = scope;
  interpreter_.out_ = outer;
  return runtime.text(std::move(out));
}

std::optional<Value> LoopObject::attribute(Runtime& runtime, std::string_view name) {
  const auto number = [](size_t n) { return Value(static_cast<int64_t>(n)); };
  if (name == "index") return number(index_ + 1);
  if (name == "index0") return number(index_);
  if (name == "revindex") return number(items_.size() - index_);
  if (name == "revindex0") return number(items_.size() - index_ - 1);
  if (name == "first") return Value(index_ == 0);
  if (name == "last") return Value(index_ + 1 == items_.size());
  if (name == "length") return number(items_.size());
  if (name == "depth") return Value(int64_t{depth_} + 1);
  if (name == "depth0") return Value(int64_t{depth_});
  if (name == "previtem") {
    return index_ > 0 ? items_[index_ - 1] : Value::undefined("there is no previous item");
  }
  if (name == "nextitem") {
    return index_ + 1 < items_.size() ? items_[index_ + 1]
                                      : Value::undefined("there is no next item");
  }
  if (name == "cycle") {
    return Value(runtime.make<Function>(
        "method", [this](Runtime& /*r*/, const Arguments& given) { return cycle(given); }));
  }
  if (name == "changed") {
    return Value(runtime.make<Function>(
        "method", [this](Runtime& r, Arguments given) { return changed(r, std::move(given)); }));
  }
  return std::nullopt;
}

Interpreter::Interpreter(const Tree& tree, Runtime& runtime, int& line)
    : tree_(tree), runtime_(runtime), line_(line) {}

Text Interpreter::render(const Dict& variables) {
  Text out;
  out_ = &out;
  scope_ = open_scope(nullptr);
  for (Symbol symbol = 0; symbol < tree_.names.size(); ++symbol) {
    const std::string& name = tree_.names[symbol];
    if (const Value* given = variables.find(name)) {
      scope_->variables.emplace_back(symbol, *given);
    } else if (auto global = find_global(runtime_, name)) {
      scope_->variables.emplace_back(symbol, *std::move(global));
    }
  }
  scope_ = open_scope(scope_);
  (void)run(tree_.body);
  return out;
}

// Names.
// -------------------------------------------------------------------------------------------

Scope* Interpreter::open_scope(Scope* parent) {
  if (free_scopes_.empty()) {
    runtime_.spend_bytes(sizeof(Scope));
    return &scopes_.emplace_back(Scope{.parent = parent});
  }
  Scope* scope = free_scopes_.back();
  free_scopes_.pop_back();
  scope->parent = parent;
  return scope;
}

void Interpreter::close_scope() {
  Scope* scope = std::exchange(scope_, scope_->parent);
  if (scope->captured) return;
  scope->variables.clear();
  free_scopes_.push_back(scope);
}

void Interpreter::assign(Symbol symbol, Value value) {
  runtime_.spend_steps(scope_->variables.size() / 16);
  for (auto& [known, old] : scope_->variables) {
    if (known != symbol) continue;
    old = std::move(value);
    return;
  }
  runtime_.spend_bytes(sizeof(Value));
  scope_->variables.emplace_back(symbol, std::move(value));
}

void Interpreter::assign(const Target& target, Value value) {
  if (target.is_tuple) {
    std::vector<Value> parts = elements(runtime_, value);
    if (value.is_undefined()) throw Failure(value.reason());
    if (parts.size() != target.parts.size()) {
      throw Failure(std::to_string(parts.size()) + " values cannot be given to " +
                    std::to_string(target.parts.size()) + " names");
    }
    for (size_t i = 0; i < parts.size(); ++i) assign(target.parts[i], std::move(parts[i]));
    return;
  }
  if (target.attribute.empty()) return assign(target.symbol, std::move(value));
  auto* space = dynamic_cast<Namespace*>(look_up(target.symbol).object());
  if (space == nullptr) {
    throw Failure("only a namespace's attributes can be set, and " +
                  in_quotes(tree_.names[target.symbol]) + " is none");
  }
  runtime_.spend_bytes(target.attribute.size() + sizeof(Value));
  space->set(target.attribute, std::move(value));
}

Value Interpreter::look_up(Symbol symbol) {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    runtime_.spend_steps(scope->variables.size() / 16);
    for (const auto& [known, value] : scope->variables) {
      if (known == symbol) return value;
    }
  }
  return Value::undefined(in_quotes(tree_.names[symbol]) + " is undefined");
}

// The scopes around it stay as long as the interpreter.
Value Interpreter::make_macro(const std::shared_ptr<const MacroNode>& macro) {
  for (Scope* scope = scope_; scope != nullptr && !scope->captured; scope = scope->parent) {
    scope->captured = true;
  }
  return Value(runtime_.make<Macro>(*this, macro, scope_));
}

// Statements.
// --------------------------------------------------------------------------------------

Interpreter::Flow Interpreter::run(const Body& body) {
  const Runtime::Depth depth(runtime_);
  for (const Statement& statement : body) {
    runtime_.spend_steps(1);
    line_ = statement.line;
    const Flow flow =
        std::visit([this](const auto& node) { return execute(node); }, statement.node);
    if (flow != Flow::on) return flow;
  }
  return Flow::on;
}

Interpreter::Flow Interpreter::run_in_scope(const Body& body) {
  scope_ = open_scope(scope_);
  const Flow flow = run(body);
  close_scope();
  return flow;
}

Text Interpreter::capture(const Body& body) {
  Text out;
  Text* const outer = std::exchange(out_, &out);
  (void)run_in_scope(body);
  out_ = outer;
  return out;
}

Interpreter::Flow Interpreter::execute(const DataStatement& data) {
  runtime_.spend_bytes(data.text.size());
  out_->append(data.text);
  return Flow::on;
}

Interpreter::Flow Interpreter::execute(const PrintStatement& print) {
  for (const ExpressionPtr& value : print.values) {
    const Text text = to_text(runtime_, evaluate(*value));
    runtime_.spend_bytes(text.size() + text.runs().size() * sizeof(Text::Run));
    out_->append(text);
  }
  return Flow::on;
}

Interpreter::Flow Interpreter::execute(const SetStatement& set) {
  assign(set.target, evaluate(*set.value));
  return Flow::on;
}

Interpreter::Flow Interpreter::execute(const SetBlockStatement& set) {
  Value value = runtime_.text(capture(set.body));
  if (set.filters != nullptr) value = apply_filters(*set.filters, value);
  assign(set.target, std::move(value));
  return Flow::on;
}

Interpreter::Flow Interpreter::execute(const ForStatement& loop) {
  return run_loop(loop, evaluate(*loop.iterable), 0);
}

Interpreter::Flow Interpreter::run_loop(const ForStatement& loop, const Value& iterable,
                                        int depth) {
  std::vector<Value> items = elements(runtime_, iterable);
  Scope* const around = scope_;
  if (loop.condition != nullptr) {
    std::vector<Value> wanted;
    for (Value& item : items) {
      scope_ = open_scope(around);
      runtime_.spend_steps(1);
      assign(loop.target, item);
      if (truth(evaluate(*loop.condition))) wanted.push_back(std::move(item));
      close_scope();
    }
    items = std::move(wanted);
  }
  if (items.empty()) return run_in_scope(loop.otherwise);
  runtime_.spend_bytes(items.size() * sizeof(Value));
  auto* const object = runtime_.make<LoopObject>(*this, loop, around, items, depth);
  for (size_t i = 0; i < items.size(); ++i) {
    runtime_.spend_steps(1);
    object->at(i);
    scope_ = open_scope(around);
    scope_->variables.emplace_back(tree_.loop, Value(object));
    assign(loop.target, std::move(items[i]));
    const Flow flow = run(loop.body);
    close_scope();
    if (flow == Flow::broken) break;
  }
  return Flow::on;
}

Interpreter::Flow Interpreter::execute(const IfStatement& branches) {
  for (const auto& [condition, body] : branches.branches) {
    if (truth(evaluate(*condition))) return run(body);
  }
  return run(branches.otherwise);
}

// Values are evaluated before any name is set.
Interpreter::Flow Interpreter::execute(const WithStatement& with) {
  std::vector<Value> values;
  for (const auto& [target, value] : with.values) values.push_back(evaluate(*value));
  scope_ = open_scope(scope_);
  for (size_t i = 0; i < values.size(); ++i) assign(with.values[i].first, std::move(values[i]));
  const Flow flow = run(with.body);
  close_scope();
  return flow;
}

Interpreter::Flow Interpreter::execute(const MacroStatement& definition) {
  assign(definition.macro->symbol, make_macro(definition.macro));
  return Flow::on;
}

Interpreter::Flow Interpreter::execute(const CallStatement& call) {
  const Value caller = make_macro(call.caller);
  const Text text = to_text(runtime_, evaluate_call(std::get<CallNode>(call.call->node), &caller));
  runtime_.spend_bytes(text.size());
  out_->append(text);
  return Flow::on;
}

Interpreter::Flow Interpreter::execute(const FilterStatement& filter) {
  const Value block = runtime_.text(capture(filter.body));
  const Text text = to_text(runtime_, apply_filters(*filter.filters, block));
  runtime_.spend_bytes(text.size());
  out_->append(text);
  return Flow::on;
}

Interpreter::Flow Interpreter::execute(const ScopeStatement& scope) {
  return run_in_scope(scope.body);
}

Interpreter::Flow Interpreter::execute(const BreakStatement& /*statement*/) { return Flow::broken; }

Interpreter::Flow Interpreter::execute(const ContinueStatement& /*statement*/) {
  return Flow::continued;
}

// Arguments to parameters, as Jinja's runtime.Macro binds them.
Text Interpreter::run_macro(const MacroNode& macro, Scope* closure, Arguments arguments) {
  const Runtime::Depth depth(runtime_);
  const Signature& signature = macro.signature;
  Scope* const outer = scope_;
  scope_ = open_scope(closure);
  Scope* const own = scope_;
  const auto take_named = [&](const std::string& name) -> std::optional<Value> {
    runtime_.spend_steps(arguments.named.size() / 16);
    const auto found = std::find_if(arguments.named.begin(), arguments.named.end(),
                                    [&](const auto& named) { return named.first == name; });
    if (found == arguments.named.end()) return std::nullopt;
    Value value = std::move(found->second);
    arguments.named.erase(found);
    return value;
  };
  const size_t n_names = signature.names.size();
  const size_t first_default = n_names - signature.defaults.size();
  for (size_t i = 0; i < n_names; ++i) {
    const Symbol symbol = signature.names[i];
    const std::string& name = tree_.names[symbol];
    if (i < arguments.positional.size()) {
      assign(symbol, std::move(arguments.positional[i]));
    } else if (auto named = take_named(name)) {
      assign(symbol, *std::move(named));
    } else if (i >= first_default) {
      assign(symbol, evaluate(*signature.defaults[i - first_default]));
    } else {
      assign(symbol, Value::undefined("the parameter " + in_quotes(name) + " was not given"));
    }
  }
  const std::string what = "the macro " + in_quotes(macro.name);
  if (macro.takes_caller) {
    auto caller = take_named("caller");
    assign(tree_.caller, caller ? *std::move(caller) : Value::undefined("no caller is defined"));
  }
  if (macro.takes_kwargs) {
    Dict named;
    for (auto& [name, value] : arguments.named) named.set(Value(name), std::move(value));
    assign(tree_.kwargs, Value(std::move(named)));
  } else if (!arguments.named.empty()) {
    throw Failure(what + " takes no argument named " + in_quotes(arguments.named.front().first));
  }
  std::vector<Value> rest;
  for (size_t i = n_names; i < arguments.positional.size(); ++i) {
    rest.push_back(std::move(arguments.positional[i]));
  }
  if (macro.takes_varargs) {
    assign(tree_.varargs, runtime_.tuple(std::move(rest)));
  } else if (!rest.empty()) {
    throw Failure(what + " takes at most " + std::to_string(n_names) +
                  (n_names == 1 ? " argument" : " arguments"));
  }
  Text out;
  Text* const outer_out = std::exchange(out_, &out);
  (void)run(macro.body);
  out_ = outer_out;
  scope_ = own;
  close_scope();
  scope_ = outer;
  return out;
}

}  // namespace faststream::jinja
