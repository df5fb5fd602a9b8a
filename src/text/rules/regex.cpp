#include "text/rules/regex.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "support/error.h"
#include "support/printable.h"
#include "support/utf8.h"

namespace faststream::rules {
namespace {

constexpr int kMaxDepth = 200;  // of groups
constexpr int32_t kMaxCount = 1 << 20;

const std::vector<CodeRange> kDigits = {{'0', '9'}};
const std::vector<CodeRange> kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const std::vector<CodeRange> kSpace = {
    {'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
    {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const std::vector<CodeRange> kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

class RegexParser {
 public:
  RegexParser(std::string_view pattern, CharacterClasses& classes)
      : pattern_(pattern), classes_(classes) {
    if (pattern.size() > kMaxRegexBytes) {
      throw Error("the regular expression has more than " + std::to_string(kMaxRegexBytes) +
                  " bytes; make it smaller");
    }
    if (!is_valid_utf8(pattern)) throw Error("the regular expression is not valid UTF-8");
  }

  Expr parse() {
    Expr whole = parse_choice(0);
    if (!at_end()) fail("has a ) without its (");
    return whole;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error("the regular expression " + in_quotes(pattern_) + " " + what + " (at byte " +
                std::to_string(at_ + 1) + ")");
  }
  [[nodiscard]] bool at_end() const { return at_ == pattern_.size(); }
  [[nodiscard]] bool sees(std::string_view text) const {
    return pattern_.substr(at_).starts_with(text);
  }
  bool take(std::string_view text) {
    if (!sees(text)) return false;
    at_ += text.size();
    return true;
  }
  uint32_t take_character() {
    if (at_end()) fail("ends too early");
    const auto length = static_cast<size_t>(utf8_character(pattern_.substr(at_)));
    const uint32_t code = code_point(pattern_.substr(at_, length));
    at_ += length;
    return code;
  }

  Expr parse_choice(int depth) {
    if (depth > kMaxDepth) fail("has too many groups within each other");
    std::vector<Expr> parts = {parse_sequence(depth)};
    while (take("|")) parts.push_back(parse_sequence(depth));
    return choice(std::move(parts));
  }

  Expr parse_sequence(int depth) {
    std::vector<Expr> parts;
    std::string text;  // of literals in a row, of which there may be a million
    while (!at_end() && !sees("|") && !sees(")")) {
      Expr part = parse_quantifier(parse_atom(depth));
      if (part->kind == Node::Kind::literal) {
        text += part->text;
        continue;
      }
      if (!text.empty()) parts.push_back(literal(std::exchange(text, {})));
      parts.push_back(std::move(part));
    }
    if (!text.empty()) parts.push_back(literal(text));
    return sequence(std::move(parts));
  }

  Expr parse_quantifier(Expr atom) {
    int32_t least = 1;
    int32_t most = 1;
    if (take("*")) {
      least = 0;
      most = kUnbounded;
    } else if (take("+")) {
      most = kUnbounded;
    } else if (take("?")) {
      least = 0;
    } else if (!take_bounds(least, most)) {
      return atom;
    }
    if (atom->kind == Node::Kind::begin || atom->kind == Node::Kind::end) {
      fail("repeats an anchor");
    }
    take("?");  // lazy: the same texts
    if (sees("+")) fail("has a possessive quantifier, which is not supported");
    if (sees("*") || sees("?")) fail("repeats a repetition; put it into a group");
    return repeat(std::move(atom), least, most);
  }

  bool take_bounds(int32_t& least, int32_t& most) {
    const size_t start = at_;
    if (!take("{")) return false;
    const std::optional<int32_t> first = take_number();
    least = first.value_or(0);
    most = least;
    bool is_bound = first.has_value();
    if (is_bound && take(",")) {
      const std::optional<int32_t> second = take_number();
      most = second.value_or(kUnbounded);
    }
    is_bound = is_bound && take("}");
    if (!is_bound) {  // a brace as it is
      at_ = start;
      return false;
    }
    if (most != kUnbounded && most < least) fail("has a repetition whose bounds are in no order");
    return true;
  }

  std::optional<int32_t> take_number() {
    int32_t number = 0;
    const size_t start = at_;
    for (; !at_end() && std::isdigit(static_cast<unsigned char>(pattern_[at_])) != 0; ++at_) {
      number = number * 10 + (pattern_[at_] - '0');
      if (number > kMaxCount) fail("repeats more than " + std::to_string(kMaxCount) + " times");
    }
    if (at_ == start) return std::nullopt;
    return number;
  }

  Expr parse_atom(int depth) {
    if (take("(")) return parse_group(depth);
    if (take("[")) return classes_.of(parse_class());
    if (take("^")) return mark(Node::Kind::begin);
    if (take("$")) return mark(Node::Kind::end);
    if (take(".")) return classes_.of(complement(kLineEnds));
    if (sees("*") || sees("+") || sees("?")) fail("repeats nothing");
    if (take("\\")) {
      if (take("A")) return mark(Node::Kind::begin);
      if (take("z") || take("Z")) return mark(Node::Kind::end);
      if (sees("b") || sees("B")) fail("has a word boundary, which is not supported");
      return classes_.of(parse_escape());
    }
    const uint32_t code = take_character();
    return classes_.of({{code, code}});
  }

  Expr parse_group(int depth) {
    if (take("?")) {
      if (sees("=") || sees("!") || sees("<=") || sees("<!")) {
        fail("looks ahead or behind, which is not supported");
      }
      if (take("P<") || take("<")) {
        while (!at_end() && !sees(">")) static_cast<void>(take_character());
        if (!take(">")) fail("has a group's name without its end");
      } else if (!take(":")) {
        fail("has flags or a group of a kind that is not supported");
      }
    }
    Expr inner = parse_choice(depth + 1);
    if (!take(")")) fail("has a ( without its )");
    return inner;
  }

  uint32_t take_hex(size_t digits) {
    uint32_t code = 0;
    for (size_t i = 0; i < digits; ++i) {
      if (at_end() || std::isxdigit(static_cast<unsigned char>(pattern_[at_])) == 0) {
        fail("has an escape with too few digits");
      }
      code = code * 16 +
             static_cast<uint32_t>(std::stoi(std::string(1, pattern_[at_++]), nullptr, 16));
    }
    return code;
  }

  uint32_t take_braced_hex() {
    uint32_t code = 0;
    while (!take("}")) {
      code = code * 16 + take_hex(1);
      if (code > kLastCodePoint) fail("names a character above U+10FFFF");
    }
    return code;
  }

  // The characters that an escape stands for, after its backslash.
  std::vector<CodeRange> parse_escape() {
    if (at_end()) fail("ends with a backslash");
    const uint32_t code = take_character();
    const auto one = [](uint32_t c) { return std::vector<CodeRange>{{c, c}}; };
    switch (code) {
      case 'd':
        return kDigits;
      case 'D':
        return complement(kDigits);
      case 'w':
        return kWord;
      case 'W':
        return complement(kWord);
      case 's':
        return kSpace;
      case 'S':
        return complement(kSpace);
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 't':
        return one('\t');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case 'p':
      case 'P': {
        std::string name;
        if (!take("{")) fail("has \\p without its {");
        while (!at_end() && !sees("}")) name += pattern_[at_++];
        if (!take("}")) fail("has \\p{ without its }");
        try {
          const std::vector<CodeRange> ranges = category_ranges(name);
          return code == 'p' ? ranges : complement(ranges);
        } catch (const Error& error) {
          fail(error.what());
        }
      }
      case 'x':
        return one(take("{") ? take_braced_hex() : take_hex(2));
      case 'u':
        return one(take_utf16());
      case 'c': {
        const uint32_t letter = take_character();
        if (letter > 0x7F || std::isalpha(static_cast<int>(letter)) == 0) {
          fail("has \\c without a letter");
        }
        return one(letter % 32);
      }
      default:
        break;
    }
    if (code == '0' && (at_end() || std::isdigit(static_cast<unsigned char>(pattern_[at_])) == 0)) {
      return one(0);
    }
    if (code < 0x80 && std::isdigit(static_cast<int>(code)) != 0) {
      fail("has a back reference, which is not supported");
    }
    if (code == 'k') fail("has a back reference, which is not supported");
    if (code < 0x80 && std::isalpha(static_cast<int>(code)) != 0) {
      fail("has the unknown escape \\" + std::string(1, static_cast<char>(code)));
    }
    return one(code);
  }

  uint32_t take_utf16() {
    if (take("{")) return take_braced_hex();
    const uint32_t high = take_hex(4);
    const bool is_pair = high >= 0xD800 && high < 0xDC00 && take("\\u");
    if (!is_pair) return high;
    const uint32_t low = take_hex(4);
    return 0x10000 + ((high - 0xD800) << 10U) + (low - 0xDC00) % 0x400;
  }

  // After the [.
  std::vector<CodeRange> parse_class() {
    const bool is_negated = take("^");
    std::vector<CodeRange> ranges;
    while (!take("]")) {
      std::vector<CodeRange> from = parse_class_member();
      if (from.size() == 1 && from.front().first == from.front().last && sees("-") && !sees("-]")) {
        take("-");
        const std::vector<CodeRange> to = parse_class_member();
        if (to.size() != 1 || to.front().first != to.front().last ||
            to.front().first < from.front().first) {
          fail("has a range of characters that is none");
        }
        from.front().last = to.front().first;
      }
      classes_.budget().spend(from.size());
      ranges.insert(ranges.end(), from.begin(), from.end());
    }
    return is_negated ? complement(std::move(ranges)) : ranges;
  }

  std::vector<CodeRange> parse_class_member() {
    if (at_end()) fail("has a [ without its ]");
    if (sees("[:")) fail("has a class of the kind [:name:], which is not supported");
    if (take("\\")) {
      if (take("b")) return {{'\b', '\b'}};
      return parse_escape();
    }
    const uint32_t code = take_character();
    return {{code, code}};
  }

  std::string_view pattern_;
  CharacterClasses& classes_;
  size_t at_ = 0;
};

bool has_mark(const Expr& expr) {
  return expr->kind == Node::Kind::begin || expr->kind == Node::Kind::end ||
         std::ranges::any_of(expr->parts, has_mark);
}

// The expression with `fill` at one of its ends but where an anchor stands there.
Expr resolve(const Expr& expr, Node::Kind anchor, const Expr& fill) {
  const bool at_begin = anchor == Node::Kind::begin;
  if (expr->kind == anchor) return literal("");
  if (expr->kind == Node::Kind::choice && has_mark(expr)) {
    std::vector<Expr> parts;
    std::vector<Expr> plain;  // with `fill` in common: else what has matched would be told apart
    for (const Expr& part : expr->parts) {
      if (has_mark(part)) {
        parts.push_back(resolve(part, anchor, fill));
      } else {
        plain.push_back(part);
      }
    }
    if (!plain.empty()) parts.push_back(resolve(choice(std::move(plain)), anchor, fill));
    return choice(std::move(parts));
  }
  if (expr->kind == Node::Kind::sequence) {
    std::vector<Expr> parts = expr->parts;
    Expr& outer = at_begin ? parts.front() : parts.back();
    if (has_mark(outer)) {
      outer = resolve(outer, anchor, fill);
      return sequence(std::move(parts));
    }
  }
  return at_begin ? sequence({fill, expr}) : sequence({expr, fill});
}

}  // namespace

Expr any_character() {
  static const Expr any = characters({{0, kLastCodePoint}});
  return any;
}

Expr parse_regex(std::string_view pattern) {
  WorkBudget budget;
  CharacterClasses classes(budget);
  return parse_regex(pattern, classes);
}

Expr parse_regex(std::string_view pattern, CharacterClasses& classes, bool anywhere) {
  const Expr parsed = RegexParser(pattern, classes).parse();
  const Expr before = anywhere ? repeat(any_character(), 0, kUnbounded) : literal("");
  const Expr after = anywhere ? rest(any_character()) : literal("");
  Expr whole = resolve(resolve(parsed, Node::Kind::begin, before), Node::Kind::end, after);
  if (has_mark(whole)) {
    throw Error("the regular expression " + in_quotes(pattern) +
                " has an anchor in its middle, which is not supported; let ^ and $ be at its ends");
  }
  return whole;
}

}  // namespace faststream::rules
