// "%5.2f" % x, "{:>8}".format(x) and strftime().
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "support/printable.h"
#include "text/jinja/characters.h"
#include "text/jinja/failure.h"
#include "text/jinja/library.h"

namespace faststream::jinja {
namespace {

constexpr int64_t kWidest = 10'000;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Digits at the front of `text`, taken from it; `otherwise` where there are none.
int64_t take_number(std::string_view& text, int64_t otherwise) {
  int64_t number = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || !is_digit(text.front())) return otherwise;
  if (result.ec != std::errc() || number > kWidest) throw Failure("a format is too wide");
  text.remove_prefix(static_cast<size_t>(result.ptr - text.data()));
  return number;
}

struct Layout {
  std::string fill = " ";
  char align = '\0';  // '<', '>', '^', '='; none: by the type
  char sign = '-';
  bool alternate = false;
  int64_t width = 0;
  char grouping = '\0';
  int64_t precision = -1;
  char type = '\0';
};

Text pad(Text text, const Layout& layout, char default_align) {
  const auto missing = layout.width - static_cast<int64_t>(count_characters(text.view()));
  if (missing <= 0) return text;
  const char align = layout.align == '\0' ? default_align : layout.align;
  const int64_t before = align == '>' ? missing : align == '^' ? missing / 2 : 0;
  Text padded;
  for (int64_t i = 0; i < before; ++i) padded.append(layout.fill);
  padded.append(text);
  for (int64_t i = before; i < missing; ++i) padded.append(layout.fill);
  return padded;
}

std::string print_real(double value, char type, int64_t precision, bool alternate) {
  const std::array<char, 7> format = {'%',
                                      alternate ? '#' : '.',
                                      alternate ? '.' : '*',
                                      alternate ? '*' : type,
                                      alternate ? type : '\0',
                                      '\0',
                                      '\0'};
  const auto digits = static_cast<int>(precision < 0 ? 6 : precision);
  const int size = std::snprintf(nullptr, 0, format.data(), digits, value);
  std::string text(static_cast<size_t>(size) + 1, '\0');
  std::snprintf(text.data(), text.size(), format.data(), digits, value);
  text.pop_back();
  return text;
}

std::string print_integer(int64_t value, unsigned base, bool upper) {
  std::array<char, 72> buffer{};
  const uint64_t size = value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  const auto result =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), size, static_cast<int>(base));
  std::string text(buffer.data(), result.ptr);
  if (upper)
    std::transform(text.begin(), text.end(), text.begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text;
}

std::string group(const std::string& digits, char separator) {
  const size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
  std::string grouped;
  for (size_t i = 0; i < whole; ++i) {
    if (i > 0 && (whole - i) % 3 == 0) grouped += separator;
    grouped += digits[i];
  }
  return grouped + digits.substr(whole);
}

// The digits of a number without its sign, and what stands before them ("0x").
std::string digits_of(const Value& value, const Layout& layout, std::string& prefix) {
  const char type = layout.type;
  if (value.is_integer() && std::string_view("dnxXob").find(type) != std::string_view::npos) {
    const unsigned base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
    if (layout.alternate && base != 10) prefix = {'0', type};
    return print_integer(value.integer(), base, type == 'X');
  }
  const double size = std::abs(value.real());
  if (std::isnan(size)) return "nan";
  if (std::isinf(size)) return "inf";
  if (type == '%') return print_real(size * 100, 'f', layout.precision, layout.alternate) + "%";
  if (type == '\0') {
    return layout.precision < 0
               ? real_text(size)
               : print_real(size, 'g', std::max<int64_t>(layout.precision, 1), false);
  }
  return print_real(size, type == 'n' ? 'g' : type, layout.precision, layout.alternate);
}

Text format_number(const Value& value, Layout layout) {
  if (layout.type == '\0' && value.is_integer()) layout.type = 'd';
  constexpr std::string_view kOfReals = "eEfFgGn%";
  constexpr std::string_view kOfIntegers = "dnxXob";
  const bool fits = layout.type == '\0' || kOfReals.find(layout.type) != std::string_view::npos ||
                    (value.is_integer() && kOfIntegers.find(layout.type) != std::string_view::npos);
  if (!fits) {
    throw Failure(std::string("the format \"") + layout.type + "\" is none for a " +
                  std::string(value.type_name()));
  }
  std::string prefix;
  std::string digits = digits_of(value, layout, prefix);
  if (layout.grouping != '\0') digits = group(digits, layout.grouping);
  const bool negative = value.is_integer() ? value.integer() < 0 : std::signbit(value.real());
  std::string sign = negative ? "-" : layout.sign == '-' ? "" : std::string(1, layout.sign);
  sign += prefix;
  if (layout.align == '=') {
    const auto missing = layout.width - static_cast<int64_t>(sign.size() + digits.size());
    for (int64_t i = 0; i < missing; ++i) sign += layout.fill;
  }
  return pad(Text(sign + digits), layout, '>');
}

// What "%c" makes of a code point or a text of one character.
Text character_of(const Value& value) {
  const Text* text = value.text();
  if (text != nullptr && count_characters(text->view()) == 1) return *text;
  if (text != nullptr || !value.is_integer()) {
    throw Failure("the format \"c\" is for an int or one character");
  }
  const int64_t code = value.integer();
  const bool is_surrogate = code >= 0xD800 && code < 0xE000;
  if (code < 0 || code > 0x10FFFF || is_surrogate) {
    throw Failure("there is no character of number " + std::to_string(code));
  }
  return Text(encode_utf8(static_cast<char32_t>(code)));
}

Layout parse_spec(std::string_view spec) {
  Layout layout;
  const std::string_view whole = spec;
  constexpr std::string_view kAligns = "<>^=";
  const auto is_align = [&](size_t at) {
    return at < spec.size() && kAligns.find(spec[at]) != std::string_view::npos;
  };
  const size_t first = spec.empty() ? 0 : character_size(spec);
  if (first > 0 && is_align(first)) {
    layout.fill = spec.substr(0, first);
    layout.align = spec[first];
    spec.remove_prefix(first + 1);
  } else if (is_align(0)) {
    layout.align = spec[0];
    spec.remove_prefix(1);
  }
  const auto take = [&](std::string_view any_of) {
    if (spec.empty() || any_of.find(spec.front()) == std::string_view::npos) return '\0';
    const char taken = spec.front();
    spec.remove_prefix(1);
    return taken;
  };
  if (const char sign = take("+- "); sign != '\0') layout.sign = sign;
  layout.alternate = take("#") != '\0';
  if (take("0") != '\0' && layout.align == '\0') {
    layout.fill = "0";
    layout.align = '=';
  }
  layout.width = take_number(spec, 0);
  layout.grouping = take(",_");
  if (take(".") != '\0') {
    layout.precision = take_number(spec, -1);
    if (layout.precision < 0) throw Failure("a format has no digits after its point");
  }
  layout.type = take("bcdeEfFgGnosxX%");
  if (!spec.empty()) throw Failure("the format " + in_quotes(whole) + " is not valid");
  return layout;
}

// One "%..." of a format; `format` begins after the "%".
class PercentFormatter {
 public:
  PercentFormatter(Runtime& runtime, const Value& value) : runtime_(runtime), value_(value) {
    const List* list = value.list();
    tuple_ = list != nullptr && list->type == List::Type::tuple ? list : nullptr;
  }

  Text convert(std::string_view& format) {
    Value argument;
    bool named = false;
    if (format.starts_with('(')) {
      const size_t end = format.find(')');
      if (end == std::string_view::npos) throw Failure("a format's name has no end, \")\"");
      const Dict* dict = value_.dict();
      if (dict == nullptr) throw Failure("a format with names needs a dict");
      const Value* found = dict->find(format.substr(1, end - 1));
      if (found == nullptr) throw Failure("a format's name is not in its dict");
      argument = *found;
      named = used_ = true;
      format.remove_prefix(end + 1);
    }
    Layout layout;
    layout.align = '>';
    for (; !format.empty(); format.remove_prefix(1)) {
      const char flag = format.front();
      if (flag == '-') {
        layout.align = '<';
      } else if (flag == '+' || (flag == ' ' && layout.sign != '+')) {
        layout.sign = flag;
      } else if (flag == '0') {
        zeros_ = true;
      } else if (flag == '#') {
        layout.alternate = true;
      } else if (flag != ' ') {
        break;
      }
    }
    layout.width = take_number(format, 0);
    if (format.starts_with('.')) {
      format.remove_prefix(1);
      layout.precision = take_number(format, 0);
    }
    if (format.empty()) throw Failure("a format ends after \"%\"");
    const char type = format.front();
    format.remove_prefix(1);
    if (type == '%') return Text("%");
    if (!named) argument = next();
    return convert(argument, type, layout);
  }

  void check_all_used() const {
    const bool left = tuple_ != nullptr
                          ? at_ < tuple_->items.size()
                          : !used_ && value_.dict() == nullptr && value_.list() == nullptr;
    if (left) throw Failure("a format uses fewer values than it is given");
  }

 private:
  const Value& next() {
    if (tuple_ != nullptr) {
      if (at_ == tuple_->items.size()) throw Failure("a format needs more values than it is given");
      return tuple_->items[at_++];
    }
    if (std::exchange(used_, true)) throw Failure("a format needs more values than it is given");
    return value_;
  }

  Text convert(const Value& value, char type, Layout layout) {
    const bool zeros = std::exchange(zeros_, false) && layout.align != '<';
    if (type == 's' || type == 'r') {
      Text text = type == 's' ? to_text(runtime_, value) : to_repr(runtime_, value);
      if (layout.precision >= 0) {
        text = text.substr(0, character_offset(text.view(), static_cast<size_t>(layout.precision)));
      }
      return pad(std::move(text), layout, '>');
    }
    if (type == 'c') return pad(character_of(value), layout, '>');
    if (std::string_view("dixXofFeEgG").find(type) == std::string_view::npos) {
      throw Failure(std::string("the format \"%") + type + "\" is unknown");
    }
    if (!value.is_number()) {
      throw Failure(std::string("the format \"%") + type + "\" is none for a " +
                    std::string(value.type_name()));
    }
    if (zeros) {
      layout.align = '=';
      layout.fill = "0";
    }
    layout.type = type;
    if (type == 'd' || type == 'i') {
      layout.type = 'd';
      if (value.is_real()) {
        if (!(std::abs(value.real()) < 9e18)) throw Failure("a number is too large for \"%d\"");
        return format_number(Value(static_cast<int64_t>(value.real())), layout);
      }
    }
    return format_number(value, layout);
  }

  Runtime& runtime_;
  const Value& value_;
  const List* tuple_ = nullptr;  // of several values
  size_t at_ = 0;
  bool used_ = false;
  bool zeros_ = false;
};

// What "{...}" names: a number or name, then .attributes and [keys].
Value find_field(Runtime& runtime, std::string_view field, const Arguments& arguments,
                 size_t& next) {
  const size_t end = std::min(field.find_first_of(".["), field.size());
  const std::string_view first = field.substr(0, end);
  std::string_view rest = field.substr(end);
  Value value;
  if (first.empty() || std::all_of(first.begin(), first.end(), is_digit)) {
    std::string_view digits = first;
    const auto index = first.empty() ? next++ : static_cast<size_t>(take_number(digits, 0));
    if (index >= arguments.positional.size()) {
      throw Failure("a format needs more values than it is given");
    }
    value = arguments.positional[index];
  } else {
    const auto found = std::find_if(arguments.named.begin(), arguments.named.end(),
                                    [&](const auto& named) { return named.first == first; });
    if (found == arguments.named.end()) {
      throw Failure("a format's " + in_quotes(first) + " is not given");
    }
    value = found->second;
  }
  while (!rest.empty()) {
    const bool is_key = rest.front() == '[';
    rest.remove_prefix(1);
    const size_t stop = std::min(rest.find_first_of(is_key ? "]" : ".["), rest.size());
    const std::string_view name = rest.substr(0, stop);
    if (!is_key) {
      value = get_attribute(runtime, value, name);
    } else if (!name.empty() && std::all_of(name.begin(), name.end(), is_digit)) {
      std::string_view digits = name;
      value = get_item(runtime, value, Value(take_number(digits, 0)));
    } else {
      value = get_item(runtime, value, Value(name));
    }
    rest.remove_prefix(std::min(stop + (is_key ? 1 : 0), rest.size()));
  }
  return value;
}

}  // namespace

Text format_spec(Runtime& runtime, const Value& value, std::string_view spec) {
  if (spec.empty()) return to_text(runtime, value);
  const Layout layout = parse_spec(spec);
  runtime.spend_bytes(static_cast<size_t>(layout.width));
  if (value.is_integer() && layout.type == 'c') return pad(character_of(value), layout, '>');
  if (value.is_number() && layout.type != 's') return format_number(value, layout);
  if (!value.is_text() || (layout.type != '\0' && layout.type != 's')) {
    throw Failure("the format " + in_quotes(spec) + " is none for a " +
                  std::string(value.type_name()));
  }
  Text text = *value.text();
  if (layout.precision >= 0) {
    text = text.substr(0, character_offset(text.view(), static_cast<size_t>(layout.precision)));
  }
  return pad(std::move(text), layout, '<');
}

Text format_percent(Runtime& runtime, const Text& format, const Value& value) {
  PercentFormatter formatter(runtime, value);
  Text out;
  std::string_view rest = format.view();
  while (!rest.empty()) {
    const size_t at = std::min(rest.find('%'), rest.size());
    out.append(format.part(rest.substr(0, at)));
    rest.remove_prefix(at);
    if (rest.empty()) break;
    rest.remove_prefix(1);
    const Text converted = formatter.convert(rest);
    runtime.spend_bytes(converted.size());
    out.append(converted);
  }
  formatter.check_all_used();
  return out;
}

Text format_braces(Runtime& runtime, const Text& format, const Arguments& arguments) {
  Text out;
  size_t next = 0;
  std::string_view rest = format.view();
  while (!rest.empty()) {
    const size_t at = std::min(rest.find_first_of("{}"), rest.size());
    out.append(format.part(rest.substr(0, at)));
    rest.remove_prefix(at);
    if (rest.empty()) break;
    if (rest.size() > 1 && rest[1] == rest[0]) {
      out.append(format.part(rest.substr(0, 1)));
      rest.remove_prefix(2);
      continue;
    }
    const size_t end = rest.find('}');
    if (rest[0] == '}' || end == std::string_view::npos) {
      throw Failure("a format has a single brace");
    }
    std::string_view field = rest.substr(1, end - 1);
    rest.remove_prefix(end + 1);
    if (field.find('{') != std::string_view::npos) {
      throw Failure("a format in a format is not supported");
    }
    const size_t colon = std::min(field.find(':'), field.size());
    const std::string_view spec = field.substr(std::min(colon + 1, field.size()));
    field = field.substr(0, colon);
    const size_t mark = std::min(field.find('!'), field.size());
    const std::string_view conversion = field.substr(mark);
    runtime.spend_steps(1 + arguments.named.size() / 16);
    Value value = find_field(runtime, field.substr(0, mark), arguments, next);
    if (conversion == "!r") {
      value = runtime.text(to_repr(runtime, value));
    } else if (conversion == "!s") {
      value = runtime.text(to_text(runtime, value));
    } else if (!conversion.empty()) {
      throw Failure("a format's conversion is neither !r nor !s");
    }
    const Text converted = format_spec(runtime, value, spec);
    runtime.spend_bytes(converted.size());
    out.append(converted);
  }
  return out;
}

}  // namespace faststream::jinja
