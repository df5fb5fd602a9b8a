#include "text/jinja/parser.h"

#include <algorithm>
#include <array>
#include <utility>

#include "support/printable.h"
#include "text/jinja/failure.h"

namespace faststream::jinja {
namespace {

using Type = Token::Type;

std::string describe(const Token& token) {
  switch (token.type) {
    case Type::end:
      return "the end of the template";
    case Type::variable_end:
      return "\"}}\"";
    case Type::block_end:
      return "\"%}\"";
    default:
      return in_quotes(token.text);
  }
}

}  // namespace

NestingGuard::NestingGuard(Parser& parser) : parser_(parser) {
  constexpr int kMaxNesting = 100;
  if (parser_.nesting_ == kMaxNesting) {
    throw Failure("the template is nested more than " + std::to_string(kMaxNesting) + " deep");
  }
  ++parser_.nesting_;
}

Parser::Parser(std::string_view source, int& line) : line_(line), tokens_(tokenize(source, line)) {}

Tree Parser::parse() {
  line_ = current().line;
  Tree tree;
  tree.loop = symbol("loop");
  tree.caller = symbol("caller");
  tree.kwargs = symbol("kwargs");
  tree.varargs = symbol("varargs");
  tree.body = parse_body({});
  tree.names = std::move(names_);
  return tree;
}

// Tokens.
// ------------------------------------------------------------------------------------------

const Token& Parser::ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }

void Parser::skip(size_t n) {
  at_ = std::min(at_ + n, tokens_.size() - 1);
  line_ = current().line;
}

bool Parser::take_op(std::string_view spelling) {
  if (!current().is_op(spelling)) return false;
  skip();
  return true;
}

bool Parser::take_name(std::string_view spelling) {
  if (!current().is_name(spelling)) return false;
  skip();
  return true;
}

void Parser::expect_op(std::string_view spelling) {
  if (!take_op(spelling)) {
    throw Failure("\"" + std::string(spelling) + "\" is expected before " + describe(current()));
  }
}

void Parser::expect_name(std::string_view spelling) {
  if (!take_name(spelling)) {
    throw Failure("\"" + std::string(spelling) + "\" is expected before " + describe(current()));
  }
}

void Parser::expect(Type type, const char* what) {
  if (current().type != type) {
    throw Failure(std::string(what) + " is expected before " + describe(current()));
  }
  skip();
}

std::string Parser::expect_any_name() {
  std::string name = current().text;
  expect(Type::name, "a name");
  return name;
}

void Parser::fail_unexpected() const { throw Failure(describe(current()) + " is not expected"); }

Symbol Parser::symbol(const std::string& name) {
  const auto [found, is_new] = symbols_.emplace(name, names_.size());
  if (is_new) names_.push_back(name);
  return found->second;
}

// Statements.
// --------------------------------------------------------------------------------------

// Up to a tag that is one of `ends`, whose name is then the current token; the whole template where
// there are none.
Body Parser::parse_body(std::initializer_list<std::string_view> ends) {
  const NestingGuard guard(*this);
  Body body;
  for (;;) {
    const int line = line_;
    switch (current().type) {
      case Type::data:
        body.push_back({.node = DataStatement{current().text}, .line = line});
        skip();
        break;
      case Type::variable_begin: {
        skip();
        PrintStatement print;
        print.values.push_back(parse_tuple());
        body.push_back({.node = std::move(print), .line = line});
        expect(Type::variable_end, "\"}}\"");
        break;
      }
      case Type::block_begin:
        skip();
        if (std::any_of(ends.begin(), ends.end(),
                        [this](std::string_view end) { return current().is_name(end); })) {
          return body;
        }
        parse_tag(body);
        expect(Type::block_end, "\"%}\"");
        break;
      default:
        if (ends.size() == 0) return body;
        throw Failure("the template ends where {% " + std::string(*(ends.end() - 1)) +
                      " %} is expected");
    }
  }
}

void Parser::parse_tag(Body& body) {
  using Parse = Statement (Parser::*)();
  static const std::unordered_map<std::string_view, Parse> known_tags = {
      {"set", &Parser::parse_set},
      {"for", &Parser::parse_for},
      {"if", &Parser::parse_if},
      {"with", &Parser::parse_with},
      {"macro", &Parser::parse_macro},
      {"call", &Parser::parse_call_block},
      {"filter", &Parser::parse_filter_block},
      {"block", &Parser::parse_block},
      {"generation", &Parser::parse_block},
      {"print", &Parser::parse_print},
      {"break", &Parser::parse_loop_control},
      {"continue", &Parser::parse_loop_control}};
  const Token& tag = current();
  if (tag.type != Type::name) throw Failure("a tag's name is expected before " + describe(tag));
  const auto found = known_tags.find(tag.text);
  if (found != known_tags.end()) {
    const int line = line_;
    Statement statement = (this->*found->second)();
    statement.line = line;
    body.push_back(std::move(statement));
    return;
  }
  constexpr std::array<std::string_view, 5> kReaders = {"include", "import", "from", "extends",
                                                        "autoescape"};
  const bool known = std::find(kReaders.begin(), kReaders.end(), tag.text) != kReaders.end();
  throw Failure("the tag " + in_quotes(tag.text) +
                (known ? " is not supported" : " is unknown or stands where it does not belong"));
}

// After a tag's own part.
Body Parser::parse_block_body(std::initializer_list<std::string_view> ends) {
  (void)take_op(":");
  expect(Type::block_end, "\"%}\"");
  return parse_body(ends);
}

// The same, and the tag that ends it.
Body Parser::parse_enclosed(std::string_view end) {
  Body body = parse_block_body({end});
  skip();
  return body;
}

Statement Parser::parse_set() {
  skip();
  Target target = parse_target(true);
  check_no_loop(target);
  if (take_op("=")) {
    return {.node = SetStatement{.target = std::move(target), .value = parse_tuple()}};
  }
  ExpressionPtr filters = parse_filters(nullptr);
  return {.node = SetBlockStatement{.target = std::move(target),
                                    .filters = std::move(filters),
                                    .body = parse_enclosed("endset")}};
}

Statement Parser::parse_for() {
  skip();
  ForStatement loop;
  ++n_for_tags_;
  loop.target = parse_target(false);
  check_no_loop(loop.target);
  expect_name("in");
  loop.iterable = parse_tuple(false);
  if (take_name("if")) loop.condition = parse_expression();
  loop.recursive = take_name("recursive");
  ++n_loops_;
  loop.body = parse_block_body({"else", "endfor"});
  --n_loops_;
  const bool has_else = current().is_name("else");
  skip();
  if (has_else) loop.otherwise = parse_enclosed("endfor");
  --n_for_tags_;
  return {.node = std::move(loop)};
}

Statement Parser::parse_if() {
  IfStatement branches;
  ++n_conditions_;
  do {
    skip();  // "if" or "elif"
    ExpressionPtr condition = parse_tuple(false);
    branches.branches.emplace_back(std::move(condition),
                                   parse_block_body({"elif", "else", "endif"}));
  } while (current().is_name("elif"));
  const bool has_else = current().is_name("else");
  skip();
  if (has_else) branches.otherwise = parse_enclosed("endif");
  --n_conditions_;
  return {.node = std::move(branches)};
}

Statement Parser::parse_with() {
  skip();
  WithStatement with;
  while (current().type != Type::block_end) {
    if (!with.values.empty()) expect_op(",");
    Target target = parse_target(false);
    expect_op("=");
    with.values.emplace_back(std::move(target), parse_expression());
  }
  with.body = parse_enclosed("endwith");
  return {.node = std::move(with)};
}

Signature Parser::parse_signature() {
  Signature signature;
  expect_op("(");
  while (!current().is_op(")")) {
    if (!signature.names.empty()) expect_op(",");
    signature.names.push_back(symbol(expect_any_name()));
    if (take_op("=")) {
      signature.defaults.push_back(parse_expression());
    } else if (!signature.defaults.empty()) {
      throw Failure("a parameter without a default follows one that has one");
    }
  }
  skip();
  return signature;
}

std::shared_ptr<MacroNode> Parser::start_macro(std::string name) {
  auto macro = std::make_shared<MacroNode>();
  macro->symbol = symbol(name);
  macro->name = std::move(name);
  return macro;
}

void Parser::parse_macro_body(MacroNode& macro, std::string_view end) {
  macros_.push_back(&macro);
  const int outer_loops = std::exchange(n_loops_, 0);
  macro.body = parse_enclosed(end);
  n_loops_ = outer_loops;
  macros_.pop_back();
}

Statement Parser::parse_macro() {
  skip();
  const std::shared_ptr<MacroNode> macro = start_macro(expect_any_name());
  macro->signature = parse_signature();
  parse_macro_body(*macro, "endmacro");
  return {.node = MacroStatement{macro}};
}

Statement Parser::parse_call_block() {
  skip();
  const std::shared_ptr<MacroNode> caller = start_macro("caller");
  if (current().is_op("(")) caller->signature = parse_signature();
  CallStatement statement{.call = parse_expression(), .caller = caller};
  if (!std::holds_alternative<CallNode>(statement.call->node)) {
    throw Failure("a call is expected after \"call\"");
  }
  parse_macro_body(*caller, "endcall");
  return {.node = std::move(statement)};
}

Statement Parser::parse_filter_block() {
  skip();
  FilterStatement block;
  block.filters = parse_filters(parse_filter(nullptr));
  block.body = parse_enclosed("endfilter");
  return {.node = std::move(block)};
}

Statement Parser::parse_block() {
  const bool is_generation = current().is_name("generation");
  skip();
  if (is_generation) return {.node = ScopeStatement{parse_enclosed("endgeneration")}};
  const std::string name = expect_any_name();
  (void)take_name("scoped");
  Statement block{.node = ScopeStatement{parse_enclosed("endblock")}};
  (void)take_name(name);
  return block;
}

Statement Parser::parse_print() {
  skip();
  PrintStatement print;
  while (current().type != Type::block_end) {
    if (!print.values.empty()) expect_op(",");
    print.values.push_back(parse_expression());
  }
  return {.node = std::move(print)};
}

Statement Parser::parse_loop_control() {
  const bool is_break = current().is_name("break");
  if (n_loops_ == 0) throw Failure(in_quotes(current().text) + " stands outside of a loop");
  skip();
  if (is_break) return {.node = BreakStatement{}};
  return {.node = ContinueStatement{}};
}

// Names, or attributes of namespaces, with commas between them; parentheses as in Python.
Target Parser::parse_target(bool with_attributes) {
  const NestingGuard guard(*this);
  Target target = parse_single_target(with_attributes);
  if (!current().is_op(",")) return target;
  Target all;
  all.is_tuple = true;
  all.parts.push_back(std::move(target));
  while (take_op(",")) {
    if (current().type != Type::name && !current().is_op("(")) break;
    if (current().is_name("in")) break;
    all.parts.push_back(parse_single_target(with_attributes));
  }
  return all;
}

Target Parser::parse_single_target(bool with_attributes) {
  if (take_op("(")) {
    Target target = parse_target(with_attributes);
    expect_op(")");
    return target;
  }
  Target target;
  const std::string name = expect_any_name();
  constexpr std::array<std::string_view, 6> kConstants = {"true", "false", "none",
                                                          "True", "False", "None"};
  if (std::find(kConstants.begin(), kConstants.end(), name) != kConstants.end()) {
    throw Failure(in_quotes(name) + " cannot be assigned to");
  }
  target.symbol = symbol(name);
  if (with_attributes && take_op(".")) target.attribute = expect_any_name();
  return target;
}

// Within "for" the name is the loop's, also for what Jinja refuses: all of the tag and its blocks.
void Parser::check_no_loop(const Target& target) const {
  for (const Target& part : target.parts) check_no_loop(part);
  const bool is_loop =
      !target.is_tuple && target.attribute.empty() && names_[target.symbol] == "loop";
  if (is_loop && n_for_tags_ > 0) {
    throw Failure("\"loop\" cannot be assigned to within a for-loop");
  }
}

}  // namespace faststream::jinja
