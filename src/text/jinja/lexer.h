// A Jinja template's tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace faststream::jinja {

struct Token {
  enum class Type {
    data,  ///< text between tags, as it is printed
    variable_begin,
    variable_end,
    block_begin,
    block_end,
    name,
    string,   ///< without its quotes and escapes
    integer,  ///< in `number`
    real,     ///< in `real`
    op,       ///< an operator or bracket; `text` is its spelling
    end,      ///< of the template
  };
  Type type = Type::end;
  int line = 1;
  std::string text = {};
  int64_t number = 0;
  double real = 0;

  [[nodiscard]] bool is(Type other, std::string_view spelling) const {
    return type == other && text == spelling;
  }
  [[nodiscard]] bool is_op(std::string_view spelling) const { return is(Type::op, spelling); }
  [[nodiscard]] bool is_name(std::string_view spelling) const { return is(Type::name, spelling); }
};

/// Splits a template as Jinja2's lexer.py (3.1) does with trim_blocks and lstrip_blocks: the
/// newline after a block or comment is dropped, and so is white space before one that begins a
/// line; "-" at a tag's edge drops all white space on that side, "+" keeps it. The last token is
/// `end`. Throws Failure, `line` being set to its place.
std::vector<Token> tokenize(std::string_view source, int& line);

}  // namespace faststream::jinja
