// Filters that make texts and numbers.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "support/utf8.h"
#include "text/jinja/arguments.h"
#include "text/jinja/characters.h"
#include "text/jinja/failure.h"
#include "text/jinja/filters.h"
#include "text/jinja/methods.h"
#include "text/jinja/text_case.h"
#include "text/jinja/text_methods.h"

namespace faststream::jinja {
namespace {

template <Text (*change)(const Text&)>
Value changed(Runtime& runtime, const Value& input, Arguments arguments) {
  const ArgumentReader none("this filter", std::move(arguments), {});
  const Text text = to_text(runtime, input);
  runtime.spend_steps(text.size() / 8);
  return runtime.text(change(text));
}

// Words begin after white space and "-({[<".
Text title_words(const Text& text) {
  constexpr std::string_view kBefore = "-({[<";
  Text out;
  size_t begin = 0;  // of what is not yet in lower case
  bool at_start = true;
  for (size_t at = 0; at < text.size();) {
    const size_t size = character_size(text.view().substr(at));
    if (at_start) {
      out.append(lower(text.substr(begin, at - begin)));
      out.append(upper(text.substr(at, size)));
      begin = at + size;
    }
    const char32_t code = code_point(text.view().substr(at));
    at_start = is_space(code) ||
               (code < 0x80 && kBefore.find(static_cast<char>(code)) != std::string_view::npos);
    at += size;
  }
  out.append(lower(text.substr(begin)));
  return out;
}

Value trim(Runtime& runtime, const Value& input, Arguments arguments) {
  const ArgumentReader given("trim", std::move(arguments), {"chars"});
  const Text* chars = given.get(0).is_none() ? nullptr : &given.text(0);
  const Text text = to_text(runtime, input);
  runtime.spend_steps(text.size() / 16);
  return runtime.text(strip(text, chars, true, true));
}

Value replace_filter(Runtime& runtime, const Value& input, Arguments arguments) {
  const ArgumentReader given("replace", std::move(arguments), {"old", "new", "count"});
  const int64_t most = given.get(2).is_none() ? -1 : given.integer(2);
  return replace_text(runtime, to_text(runtime, input), to_text(runtime, given.at(0)),
                      to_text(runtime, given.at(1)), most);
}

Value string_filter(Runtime& runtime, const Value& input, Arguments arguments) {
  const ArgumentReader none("string", std::move(arguments), {});
  return input.is_text() ? input : runtime.text(to_text(runtime, input));
}

Value safe(Runtime& runtime, const Value& input, Arguments arguments) {
  const ArgumentReader none("safe", std::move(arguments), {});
  Text text = to_text(runtime, input);
  text.set_markup();
  return runtime.text(std::move(text));
}

Value escape(Runtime& runtime, const Value& input, Arguments arguments) {
  const ArgumentReader none("escape", std::move(arguments), {});
  Text text = to_text(runtime, input);
  runtime.spend_bytes(4 * text.size());
  if (!text.is_markup()) text = escape_html(text);
  text.set_markup();
  return runtime.text(std::move(text));
}

Value indent(Runtime& runtime, const Value& input, Arguments arguments) {
  const ArgumentReader given("indent", std::move(arguments), {"width", "first", "blank"});
  if (!input.is_text()) {
    throw Failure("indent needs a str, not a " + std::string(input.type_name()));
  }
  Text indentation;
  if (given.get(0).is_text()) {
    indentation = given.text(0);
  } else {
    const auto width = static_cast<size_t>(std::max<int64_t>(given.integer(0, 4), 0));
    runtime.spend_bytes(width);
    indentation.append(std::string(width, ' '));
  }
  const bool blank = given.flag(2, false);
  Text with_end = *input.text();
  with_end.append("\n");
  const std::vector<Text> lines = split_lines(with_end, false);
  runtime.spend_bytes(lines.size() * (indentation.size() + sizeof(Text)));
  Text out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.append("\n");
    if (i == 0 ? given.flag(1, false) : blank || !lines[i].empty()) out.append(indentation);
    out.append(lines[i]);
  }
  return runtime.text(std::move(out));
}

Value tojson(Runtime& runtime, const Value& input, Arguments arguments) {
  const ArgumentReader given("tojson", std::move(arguments),
                             {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style{.ensure_ascii = given.flag(0, false), .sort_keys = given.flag(3, false)};
  const Value indentation = given.get(1);
  if (indentation.is_text()) {
    style.indent = *indentation.text();
  } else if (!indentation.is_none()) {
    const auto width = static_cast<size_t>(std::max<int64_t>(given.integer(1), 0));
    runtime.spend_bytes(width);
    style.indent = Text(std::string(width, ' '));
  }
  style.item_separator = Text(style.indent ? "," : ", ");
  style.key_separator = Text(": ");
  if (!given.get(2).is_none()) {
    const std::vector<Value> separators = elements(runtime, given.at(2));
    if (separators.size() != 2 || !separators[0].is_text() || !separators[1].is_text()) {
      throw Failure("tojson: its separators are not two texts");
    }
    style.item_separator = *separators[0].text();
    style.key_separator = *separators[1].text();
  }
  return runtime.text(to_json(runtime, input, style));
}

// Numbers.
// -----------------------------------------------------------------------------------------

// A number as int() and float() read it: spaces around it, single underscores in it.
std::string number_digits(std::string_view text) {
  std::string digits(strip_left(strip_right(text)));
  for (size_t i = 1; i + 1 < digits.size(); ++i) {
    if (digits[i] == '_' && digits[i - 1] != '_' && digits[i + 1] != '_') digits.erase(i, 1);
  }
  if (digits.size() > 1 && digits[0] == '+' && digits[1] != '-') digits.erase(0, 1);
  return digits;
}

std::optional<double> parse_real(std::string_view text) {
  const std::string digits = number_digits(text);
  double number = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (result.ptr != digits.data() + digits.size() || digits.empty()) return std::nullopt;
  if (result.ec == std::errc::result_out_of_range) return HUGE_VAL;
  return result.ec == std::errc() ? std::optional(number) : std::nullopt;
}

std::optional<int64_t> parse_integer(std::string_view text, int64_t base) {
  std::string digits = number_digits(text);
  const bool negative = digits.starts_with('-');
  std::string_view rest = std::string_view(digits).substr(negative ? 1 : 0);
  constexpr std::array<std::pair<int64_t, std::string_view>, 3> kPrefixes = {
      {{16, "xX"}, {8, "oO"}, {2, "bB"}}};
  for (const auto& [of_base, letters] : kPrefixes) {
    const bool has = rest.size() > 2 && rest[0] == '0' && letters.find(rest[1]) != rest.npos;
    if (!has || (base != of_base && base != 0)) continue;
    base = of_base;
    rest.remove_prefix(2);
    break;
  }
  if (base == 0) base = 10;
  if (base < 2 || base > 36) throw Failure("int has a base that is not from 2 to 36");
  if (rest.empty() || rest.front() == '-') return std::nullopt;
  const std::string whole = (negative ? "-" : "") + std::string(rest);
  int64_t number = 0;
  const auto result =
      std::from_chars(whole.data(), whole.data() + whole.size(), number, static_cast<int>(base));
  if (result.ptr != whole.data() + whole.size()) return std::nullopt;
  if (result.ec != std::errc()) throw Failure("a whole number has more than 64 bits");
  return number;
}

std::optional<int64_t> truncated(double number) {
  if (!std::isfinite(number)) return std::nullopt;
  if (std::abs(number) >= 9.2e18) throw Failure("a whole number has more than 64 bits");
  return static_cast<int64_t>(number);
}

Value int_filter(Runtime& runtime, const Value& input, Arguments arguments) {
  runtime.spend_steps(input.weight());
  const ArgumentReader given("int", std::move(arguments), {"default", "base"});
  if (input.is_undefined()) throw Failure(input.reason());
  std::optional<int64_t> number;
  if (input.is_integer()) {
    number = input.integer();
  } else if (input.is_real()) {
    number = truncated(input.real());
  } else if (const Text* text = input.text()) {
    number = parse_integer(text->view(), given.integer(1, 10));
    if (!number) {
      if (const auto real = parse_real(text->view())) number = truncated(*real);
    }
  }
  return number ? Value(*number) : given.get(0, Value(int64_t{0}));
}

Value float_filter(Runtime& runtime, const Value& input, Arguments arguments) {
  runtime.spend_steps(input.weight());
  const ArgumentReader given("float", std::move(arguments), {"default"});
  if (input.is_undefined()) throw Failure(input.reason());
  if (input.is_number()) return Value(input.real());
  if (const Text* text = input.text()) {
    if (const auto real = parse_real(text->view())) return Value(*real);
  }
  return given.get(0, Value(0.0));
}

Value abs_filter(Runtime& runtime, const Value& input, Arguments arguments) {
  const ArgumentReader none("abs", std::move(arguments), {});
  if (input.is_undefined()) throw Failure(input.reason());
  if (input.is_real()) return Value(std::abs(input.real()));
  if (!input.is_integer()) {
    throw Failure("abs needs a number, not a " + std::string(input.type_name()));
  }
  return input.integer() < 0 ? binary(runtime, BinaryOp::subtract, Value(int64_t{0}), input)
                             : Value(input.integer());
}

Value round_filter(Runtime& /*runtime*/, const Value& input, Arguments arguments) {
  const ArgumentReader given("round", std::move(arguments), {"precision", "method"});
  if (input.is_undefined()) throw Failure(input.reason());
  if (!input.is_number()) {
    throw Failure("round needs a number, not a " + std::string(input.type_name()));
  }
  const int64_t precision = given.integer(0, 0);
  const std::string method = given.has(1) ? given.text(1).bytes() : "common";
  if (precision < -300 || precision > 300) throw Failure("round has a precision that is too large");
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (method == "ceil") return Value(std::ceil(input.real() * scale) / scale);
  if (method == "floor") return Value(std::floor(input.real() * scale) / scale);
  if (method != "common") throw Failure("round's method is not common, ceil or floor");
  if (input.is_integer() && precision >= 0) return Value(input.integer());
  if (precision < 0) {
    const double rounded = std::nearbyint(input.real() * scale) / scale;
    return input.is_integer() ? Value(static_cast<int64_t>(rounded)) : Value(rounded);
  }
  if (!std::isfinite(input.real())) return input;
  // Correctly rounded decimal digits, as Python's round() takes them.
  std::array<char, 700> digits{};
  std::snprintf(digits.data(), digits.size(), "%.*f", static_cast<int>(precision), input.real());
  return Value(std::strtod(digits.data(), nullptr));
}

}  // namespace

Filter find_text_filter(std::string_view name) {
  static const std::unordered_map<std::string_view, Filter> known_filters = {
      {"abs", &abs_filter},
      {"capitalize", &changed<&capitalize>},
      {"e", &escape},
      {"escape", &escape},
      {"float", &float_filter},
      {"indent", &indent},
      {"int", &int_filter},
      {"lower", &changed<&lower>},
      {"replace", &replace_filter},
      {"round", &round_filter},
      {"safe", &safe},
      {"string", &string_filter},
      {"title", &changed<&title_words>},
      {"tojson", &tojson},
      {"trim", &trim},
      {"upper", &changed<&upper>}};
  const auto found = known_filters.find(name);
  return found == known_filters.end() ? nullptr : found->second;
}

}  // namespace faststream::jinja
