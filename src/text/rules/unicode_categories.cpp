// Characters by their general category, from utf8proc's tables.
#include <utf8proc.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/error.h"
#include "support/printable.h"
#include "text/rules/regex.h"

namespace faststream::rules {
namespace {

// Long names of categories, and what they stand for: one letter for all that begin with it.
constexpr std::array<std::pair<std::string_view, std::string_view>, 20> kLongNames = {{
    {"Letter", "L"},
    {"Cased_Letter", "LC"},
    {"Uppercase_Letter", "Lu"},
    {"Lowercase_Letter", "Ll"},
    {"Titlecase_Letter", "Lt"},
    {"Modifier_Letter", "Lm"},
    {"Other_Letter", "Lo"},
    {"Mark", "M"},
    {"Number", "N"},
    {"Decimal_Number", "Nd"},
    {"digit", "Nd"},
    {"Letter_Number", "Nl"},
    {"Punctuation", "P"},
    {"punct", "P"},
    {"Symbol", "S"},
    {"Math_Symbol", "Sm"},
    {"Currency_Symbol", "Sc"},
    {"Separator", "Z"},
    {"Space_Separator", "Zs"},
    {"Other", "C"},
}};

bool is_of(std::string_view category, std::string_view name) {
  if (name == "LC") return category == "Lu" || category == "Ll" || category == "Lt";
  return category.starts_with(name);
}

}  // namespace

std::vector<CodeRange> category_ranges(std::string_view name) {
  constexpr std::string_view kLabel = "General_Category=";
  if (name.starts_with(kLabel)) name.remove_prefix(kLabel.size());
  if (name == "Any") return {{0, kLastCodePoint}};
  if (name == "ASCII") return {{0, 0x7F}};
  for (const auto& [long_name, letters] : kLongNames) {
    if (name == long_name) name = letters;
  }
  std::vector<CodeRange> ranges;
  if (!name.empty() && name.size() <= 2) {
    for (uint32_t code = 0; code <= kLastCodePoint; ++code) {
      if (!is_of(utf8proc_category_string(static_cast<utf8proc_int32_t>(code)), name)) continue;
      if (!ranges.empty() && ranges.back().last + 1 == code) {
        ranges.back().last = code;
      } else {
        ranges.push_back({code, code});
      }
    }
  }
  if (ranges.empty()) {
    throw Error("names the Unicode property " + in_quotes(name) + ", which is not supported");
  }
  return ranges;
}

}  // namespace faststream::rules
