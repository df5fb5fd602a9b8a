#include "text/rules/json_text.h"

#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "text/rules/json_escapes.h"
#include "text/rules/other_texts.h"

namespace faststream::rules {
namespace {

constexpr int kMaxIndent = 20;

Expr one_of(std::string_view chars) {
  ByteSet set;
  for (const char c : chars) set.add(static_cast<uint8_t>(c));
  return bytes(set);
}

Expr string_of(Graph text) {
  return sequence(
      {literal("\""), graph(std::make_shared<const Graph>(std::move(text))), literal("\"")});
}

}  // namespace

Expr json_space() {
  static const Expr space =
      choice({literal(""), literal(" "),
              sequence({repeat(literal("\n"), 1, 2), repeat(one_of(" \t"), 0, kMaxIndent)})});
  return space;
}

Expr json_comma() {
  static const Expr comma = sequence({literal(","), json_space()});
  return comma;
}

Expr json_character() {
  static const Expr character = [] {
    const Expr hex = one_of("0123456789abcdefABCDEF");
    const Expr high = sequence({one_of("dD"), one_of("89abAB"), hex, hex});
    const Expr low = sequence({one_of("dD"), one_of("cdefCDEF"), hex, hex});
    const Expr other = choice({sequence({one_of("0123456789abcefABCEF"), hex, hex, hex}),
                               sequence({one_of("dD"), one_of("01234567"), hex, hex})});
    const Expr escape =
        sequence({literal("\\"), choice({one_of("\"\\/bfnrt"), sequence({literal("u"), other}),
                                         sequence({literal("u"), high, literal("\\u"), low})})});
    return choice({characters(complement({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}})), escape});
  }();
  return character;
}

Expr json_string(const Dfa& text, WorkBudget& budget) {
  if (text.is_nothing()) return nothing();
  return string_of(text.json_graph(budget));
}

Expr other_json_string(std::vector<std::string> texts, WorkBudget& budget) {
  return string_of(json_escaped(other_texts(std::move(texts), budget)));
}

Expr json_string(const std::string& text) { return literal(nlohmann::json(text).dump()); }

Expr json_list(char open, Expr parts, char close) {
  return sequence({literal(std::string_view(&open, 1)), json_space(), std::move(parts),
                   json_space(), literal(std::string_view(&close, 1))});
}

Expr json_value(const nlohmann::ordered_json& value, int depth) {
  constexpr double kExact = 1e15;
  if (value.is_string()) return json_string(value.get<std::string>());
  if (value.is_number_float()) {
    const auto number = value.get<double>();
    if (std::trunc(number) == number && std::abs(number) < kExact) {
      return literal(std::to_string(static_cast<int64_t>(number)));
    }
  }
  if (!value.is_structured()) return literal(value.dump());
  const char open = value.is_array() ? '[' : '{';
  const char close = value.is_array() ? ']' : '}';
  std::vector<Expr> parts;
  for (const auto& [name, part] : value.items()) {
    if (!parts.empty()) parts.push_back(json_comma());
    if (value.is_object()) {
      parts.push_back(json_string(name));
      parts.push_back(sequence({literal(":"), json_space()}));
    }
    parts.push_back(json_value(part, depth + 1));
  }
  if (parts.empty()) {
    return sequence(
        {literal(std::string_view(&open, 1)), json_space(), literal(std::string_view(&close, 1))});
  }
  return json_list(open, sequence(std::move(parts)), close);
}

}  // namespace faststream::rules
