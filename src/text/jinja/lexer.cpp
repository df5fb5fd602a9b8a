#include "text/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

#include "support/printable.h"
#include "support/utf8.h"
#include "text/jinja/characters.h"
#include "text/jinja/failure.h"

namespace faststream::jinja {
namespace {

using Type = Token::Type;

bool is_ascii_digit(char c) { return c >= '0' && c <= '9'; }

// Line ends as "\n", and the last one dropped.
std::string normalize(std::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      text += source[i];
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

// A string literal's text, as Python's unicode_escape has it.
std::string unescape(std::string_view literal) {
  std::string text;
  const auto take_code = [&](size_t digits, const char* what) {
    unsigned code = 0;
    const char* begin = literal.data();
    const char* end = begin + std::min(digits, literal.size());
    const auto [stop, error] = std::from_chars(begin, end, code, 16);
    if (literal.size() < digits || stop != end || error != std::errc()) {
      throw Failure(std::string("a string has a broken ") + what + " escape");
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      throw Failure("a string has an escape that is no character");
    }
    literal.remove_prefix(digits);
    text += encode_utf8(code);
  };
  while (!literal.empty()) {
    if (literal.front() != '\\' || literal.size() == 1) {
      text += literal.front();
      literal.remove_prefix(1);
      continue;
    }
    const char next = literal[1];
    literal.remove_prefix(2);
    constexpr std::string_view kNames = "\\'\"abfnrtv";
    constexpr std::string_view kCodes = "\\'\"\a\b\f\n\r\t\v";
    if (const size_t at = kNames.find(next); at != std::string_view::npos) {
      text += kCodes[at];
    } else if (next == '\n') {
      continue;
    } else if (next == 'x') {
      take_code(2, "\\x");
    } else if (next == 'u') {
      take_code(4, "\\u");
    } else if (next == 'U') {
      take_code(8, "\\U");
    } else if (next == 'N') {
      throw Failure("a string has a \\N escape, which is not supported; write the character");
    } else if (next >= '0' && next <= '7') {
      auto code = static_cast<char32_t>(next - '0');
      for (int i = 0; i < 2 && !literal.empty() && literal[0] >= '0' && literal[0] <= '7'; ++i) {
        code = code * 8 + static_cast<char32_t>(literal[0] - '0');
        literal.remove_prefix(1);
      }
      text += encode_utf8(code);
    } else {
      text += '\\';
      text += next;
    }
  }
  return text;
}

class Lexer {
 public:
  Lexer(std::string_view source, int& line) : source_(normalize(source)), line_(line) {}

  std::vector<Token> run() {
    line_ = 1;
    while (at_ < source_.size()) read_data();
    add(Type::end);
    return std::move(tokens_);
  }

 private:
  [[nodiscard]] std::string_view rest() const { return std::string_view(source_).substr(at_); }

  void add(Type type, std::string_view text = {}) {
    tokens_.push_back({.type = type, .line = line_, .text = std::string(text)});
  }
  void advance(size_t size) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(at_ + size),
                                         '\n'));
    if (size > 0) line_starting_ = source_[at_ + size - 1] == '\n';
    at_ += size;
  }
  void skip_space() { advance(rest().size() - strip_left(rest()).size()); }

  /// Adds the text before a tag, of `size` bytes, with what the tag's `sign` leaves of it.
  void add_data(size_t size, char sign, bool may_strip_line) {
    std::string_view data = rest().substr(0, size);
    if (sign == '-') {
      data = strip_right(data);
    } else if (sign != '+' && may_strip_line) {
      const size_t line_start = data.rfind('\n') + 1;  // 0 where there is none
      if ((line_start > 0 || line_starting_) && strip_left(data.substr(line_start)).empty()) {
        data = data.substr(0, line_start);
      }
    }
    if (!data.empty()) add(Type::data, data);
    advance(size);
  }

  static char sign_of(std::string_view tag) {
    return tag.size() > 2 && (tag[2] == '-' || tag[2] == '+') ? tag[2] : ' ';
  }

  /// Text up to a tag, and the tag.
  void read_data() {
    const std::string_view text = rest();
    size_t begin = 0;
    for (;; ++begin) {
      begin = text.find('{', begin);
      if (begin == std::string_view::npos || begin + 1 == text.size()) {
        add_data(text.size(), '+', false);
        return;
      }
      const char second = text[begin + 1];
      if (second == '{' || second == '%' || second == '#') break;
    }
    const std::string_view tag = text.substr(begin);
    const char sign = sign_of(tag);
    add_data(begin, sign, tag[1] != '{');
    const size_t opening = sign == ' ' ? 2 : 3;
    if (tag[1] == '#') {
      read_comment(opening);
    } else if (tag[1] == '{') {
      add(Type::variable_begin);
      advance(opening);
      read_expression(Type::variable_end, "}}");
    } else if (const size_t raw = raw_tag(tag, "raw"); raw > 0) {
      advance(raw);
      if (source_[at_ - 3] == '-') skip_space();
      read_raw();
    } else {
      add(Type::block_begin);
      advance(opening);
      read_expression(Type::block_end, "%}");
    }
  }

  void read_comment(size_t opening) {
    if (rest().size() == opening) return advance(opening);  // the end, as Jinja2 has it
    const size_t end = rest().find("#}", opening);
    if (end == std::string_view::npos) throw Failure("a comment has no end, \"#}\"");
    const char sign = end > opening ? rest()[end - 1] : ' ';
    advance(end + 2);
    end_tag(sign);
  }

  /// What follows a block, comment or raw text that ended with `sign`.
  void end_tag(char sign) {
    if (sign == '-') {
      skip_space();
    } else if (sign != '+' && rest().starts_with('\n')) {
      advance(1);
    }
  }

  /// The size of a tag like {%- raw -%} that `text` begins with; 0 if it does not.
  static size_t raw_tag(std::string_view text, std::string_view name) {
    if (!text.starts_with("{%")) return 0;
    std::string_view inner = text.substr(sign_of(text) == ' ' ? 2 : 3);
    inner = strip_left(inner);
    if (!inner.starts_with(name)) return 0;
    inner = strip_left(inner.substr(name.size()));
    const bool signed_end = inner.starts_with("-%}") || (name != "raw" && inner.starts_with("+%}"));
    if (!signed_end && !inner.starts_with("%}")) return 0;
    return text.size() - inner.size() + (signed_end ? 3 : 2);
  }

  void read_raw() {
    if (rest().empty()) return;  // as Jinja2 has it
    for (size_t end = 0;; ++end) {
      end = rest().find("{%", end);
      if (end == std::string_view::npos) throw Failure("a raw block has no end, {% endraw %}");
      const size_t size = raw_tag(rest().substr(end), "endraw");
      if (size == 0) continue;
      add_data(end, sign_of(rest().substr(end)), true);
      const char sign = rest()[size - 3];
      advance(size);
      return end_tag(sign);
    }
  }

  /// Tokens up to `closing`, and that.
  void read_expression(Type closing_type, std::string_view closing) {
    std::string open;  // the brackets that are to be closed
    for (;;) {
      skip_space();
      if (rest().empty()) throw Failure("the template ends in a tag");
      const char sign = rest().front();
      const bool is_signed = (sign == '-' || (sign == '+' && closing_type == Type::block_end)) &&
                             rest().substr(1).starts_with(closing);
      if (open.empty() && (is_signed || rest().starts_with(closing))) {
        add(closing_type);
        advance(is_signed ? 3 : 2);
        if (closing_type == Type::block_end) return end_tag(is_signed ? sign : ' ');
        if (is_signed) skip_space();
        return;
      }
      read_token(open);
    }
  }

  void read_token(std::string& open) {
    const char first = rest().front();
    if (is_ascii_digit(first)) return read_number();
    if (first == '\'' || first == '"') return read_string(first);
    if (const size_t size = name_size(); size > 0) {
      add(Type::name, rest().substr(0, size));
      return advance(size);
    }
    constexpr std::array<std::string_view, 26> kOperators = {
        "==", "!=", ">=", "<=", "//", "**", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    const auto* const found =
        std::find_if(kOperators.begin(), kOperators.end(),
                     [this](std::string_view spelling) { return rest().starts_with(spelling); });
    if (found == kOperators.end()) {
      throw Failure("the character " + in_quotes(rest().substr(0, character_size(rest()))) +
                    " is not expected here");
    }
    balance(first, open);
    add(Type::op, *found);
    advance(found->size());
  }

  static void balance(char bracket, std::string& open) {
    constexpr std::string_view kOpening = "([{";
    constexpr std::string_view kClosing = ")]}";
    if (const size_t at = kOpening.find(bracket); at != std::string_view::npos) {
      open += kClosing[at];
    } else if (kClosing.find(bracket) != std::string_view::npos) {
      if (open.empty()) throw Failure(std::string("\"") + bracket + "\" closes nothing");
      if (open.back() != bracket) {
        throw Failure(std::string("\"") + bracket + "\" stands where \"" + open.back() +
                      "\" is expected");
      }
      open.pop_back();
    }
  }

  [[nodiscard]] size_t name_size() const {
    const std::string_view text = rest();
    if (!begins_name(code_point(text))) return 0;
    size_t size = 0;
    while (size < text.size() && continues_name(code_point(text.substr(size)))) {
      size += character_size(text.substr(size));
    }
    return size;
  }

  void read_string(char quote) {
    const std::string_view text = rest();
    size_t end = 1;
    while (end < text.size() && text[end] != quote) end += text[end] == '\\' ? 2 : 1;
    if (end >= text.size()) throw Failure("a string has no end");
    add(Type::string, unescape(text.substr(1, end - 1)));
    advance(end + 1);
  }

  /// Digits with single underscores between them, from `from` on.
  [[nodiscard]] size_t digits_end(size_t from, bool (*takes)(char) = &is_ascii_digit) const {
    const std::string_view text = rest();
    size_t end = from;
    while (end < text.size() &&
           (takes(text[end]) ||
            (text[end] == '_' && end > from && end + 1 < text.size() && takes(text[end + 1])))) {
      ++end;
    }
    return end;
  }

  [[nodiscard]] std::string without_underscores(size_t size) const {
    std::string digits(rest().substr(0, size));
    std::erase(digits, '_');
    return digits;
  }

  void read_number() {
    const std::string_view text = rest();
    const auto at = [&](size_t i) { return i < text.size() ? text[i] : '\0'; };
    const char prefix = static_cast<char>(std::tolower(static_cast<unsigned char>(at(1))));
    if (text[0] == '0' && (prefix == 'x' || prefix == 'o' || prefix == 'b')) {
      const auto hex = [](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; };
      const auto octal = [](char c) { return c >= '0' && c <= '7'; };
      const auto binary = [](char c) { return c == '0' || c == '1'; };
      const size_t size = prefix == 'x'   ? digits_end(2, +hex)
                          : prefix == 'o' ? digits_end(2, +octal)
                                          : digits_end(2, +binary);
      if (size > 2) return add_integer(size, 2, prefix == 'x' ? 16 : prefix == 'o' ? 8 : 2);
    }
    const size_t whole = digits_end(0);
    size_t end = whole;
    // "a.0.5" takes elements; it has no number 0.5.
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    if (!after_dot && at(end) == '.' && is_ascii_digit(at(end + 1))) end = digits_end(end + 1);
    if (!after_dot && (at(end) == 'e' || at(end) == 'E')) {
      const size_t sign = at(end + 1) == '+' || at(end + 1) == '-' ? 1 : 0;
      if (is_ascii_digit(at(end + 1 + sign))) end = digits_end(end + 1 + sign);
    }
    if (end == whole) return add_integer(whole, 0, 10);
    const std::string digits = without_underscores(end);
    add(Type::real, digits);
    const auto result =
        std::from_chars(digits.data(), digits.data() + digits.size(), tokens_.back().real);
    if (result.ec == std::errc::result_out_of_range) {
      tokens_.back().real = digits.find("e-") == std::string::npos ? HUGE_VAL : 0;
    }
    advance(end);
  }

  void add_integer(size_t size, size_t prefix, int base) {
    const std::string digits = without_underscores(size).substr(prefix);
    if (base == 10 && digits.size() > 1 && digits[0] == '0' &&
        digits.find_first_not_of('0') != std::string::npos) {
      throw Failure("a whole number begins with 0");
    }
    add(Type::integer, digits);
    const auto result =
        std::from_chars(digits.data(), digits.data() + digits.size(), tokens_.back().number, base);
    if (result.ec != std::errc()) throw Failure("a whole number has more than 64 bits");
    advance(size);
  }

  std::string source_;
  size_t at_ = 0;
  int& line_;
  bool line_starting_ = true;  // what is before at_ ends a line
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, int& line) {
  return Lexer(source, line).run();
}

}  // namespace faststream::jinja
