#include "text/rules/grammar_reader.h"

#include <algorithm>
#include <cctype>

#include "support/error.h"
#include "support/printable.h"
#include "support/utf8.h"

namespace faststream::rules {

void GrammarReader::fail(const std::string& what) const {
  const auto line = 1 + std::ranges::count(text_.substr(0, at_), '\n');
  throw Error("line " + std::to_string(line) + " of the grammar " + what);
}

bool GrammarReader::take(std::string_view what) {
  if (!sees(what)) return false;
  at_ += what.size();
  return true;
}

uint32_t GrammarReader::take_character() {
  if (at_end()) fail("ends too early");
  const auto length = static_cast<size_t>(utf8_character(text_.substr(at_)));
  const uint32_t code = code_point(text_.substr(at_, length));
  at_ += length;
  return code;
}

std::string GrammarReader::take_name() {
  const size_t start = at_;
  while (!at_end() && (std::isalnum(static_cast<unsigned char>(peek())) != 0 || peek() == '-' ||
                       peek() == '_')) {
    ++at_;
  }
  return std::string(text_.substr(start, at_ - start));
}

uint32_t GrammarReader::take_escape() {
  const auto hex = [this](int digits) {
    uint32_t code = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      if (std::isxdigit(static_cast<unsigned char>(peek())) == 0) {
        fail("has an escape with too few digits");
      }
      code = code * 16 + static_cast<uint32_t>(std::stoi(std::string(1, peek()), nullptr, 16));
    }
    if (code > kLastCodePoint) fail("names a character above U+10FFFF");
    return code;
  };
  const uint32_t code = take_character();
  switch (code) {
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    case 'f':
      return '\f';
    case 'b':
      return '\b';
    case 'x':
      return hex(2);
    case 'u':
      return hex(4);
    case 'U':
      return hex(8);
    default:
      break;
  }
  const bool is_letter = code < 0x80 && std::isalnum(static_cast<int>(code)) != 0;
  if (is_letter) fail("has the unknown escape \\" + std::string(1, static_cast<char>(code)));
  return code;
}

int32_t GrammarReader::take_count() {
  if (std::isdigit(static_cast<unsigned char>(peek())) == 0) return -1;
  int32_t count = 0;
  for (; std::isdigit(static_cast<unsigned char>(peek())) != 0; ++at_) {
    count = count * 10 + (peek() - '0');
    if (count > kMaxRepeated) fail("repeats more than " + std::to_string(kMaxRepeated) + " times");
  }
  return count;
}

std::string GrammarReader::take_until(char end) {
  const size_t start = at_;
  for (; peek() != end; ++at_) {
    if (at_end() || peek() == '\n') fail("has no " + std::string(1, end) + " at the end of a text");
    if (peek() == '\\') ++at_;
    if (at_end()) fail("ends too early");
  }
  std::string found(text_.substr(start, at_ - start));
  ++at_;
  return found;
}

void GrammarReader::skip_blanks(bool lines, std::string_view comment) {
  for (;;) {
    if (sees(comment)) {
      while (!at_end() && peek() != '\n') ++at_;
    } else if (peek() == ' ' || peek() == '\t' || peek() == '\r' || (lines && peek() == '\n')) {
      ++at_;
    } else {
      return;
    }
  }
}

int32_t RuleNames::number(const std::string& name) {
  const auto [found, is_new] =
      numbers_.try_emplace(name, static_cast<int32_t>(grammar_.rules.size()));
  if (is_new) grammar_.rules.push_back({name, nullptr});
  return found->second;
}

void RuleNames::define(int32_t rule, const Expr& expr) {
  grammar_.rules[static_cast<size_t>(rule)].expr = without_left_recursion(rule, expr);
}

Grammar RuleNames::take() {
  for (const Grammar::Rule& rule : grammar_.rules) {
    if (rule.expr == nullptr) {
      throw Error("the grammar has no rule " + in_quotes(rule.name) + "; add one");
    }
  }
  return std::move(grammar_);
}

Expr without_left_recursion(int32_t rule, const Expr& expr) {
  const auto calls = [rule](const Expr& e) {
    return e->kind == Node::Kind::call && e->rule == rule;
  };
  const std::vector<Expr> alternatives =
      expr->kind == Node::Kind::choice ? expr->parts : std::vector<Expr>{expr};
  std::vector<Expr> first;
  std::vector<Expr> rest;
  for (const Expr& way : alternatives) {
    if (calls(way)) continue;  // A = A
    if (way->kind == Node::Kind::sequence && calls(way->parts.front())) {
      rest.push_back(sequence({way->parts.begin() + 1, way->parts.end()}));
    } else {
      first.push_back(way);
    }
  }
  if (rest.empty() && first.size() == alternatives.size()) return expr;
  return sequence({choice(std::move(first)), repeat(choice(std::move(rest)), 0, kUnbounded)});
}

}  // namespace faststream::rules
