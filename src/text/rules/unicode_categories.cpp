// Characters by their general category, from utf8proc's tables.
#include <utf8proc.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
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

using RangesByName = std::map<std::string, std::vector<CodeRange>, std::less<>>;

// Of all categories and of all groups of them.
RangesByName find_ranges() {
  RangesByName by_name;
  for (uint32_t code = 0; code <= kLastCodePoint; ++code) {
    const std::string_view category = utf8proc_category_string(static_cast<utf8proc_int32_t>(code));
    const bool is_cased = category == "Lu" || category == "Ll" || category == "Lt";
    for (const std::string_view name : {category, category.substr(0, 1), std::string_view("LC")}) {
      if (name == "LC" && !is_cased) continue;
      std::vector<CodeRange>& ranges = by_name[std::string(name)];
      if (!ranges.empty() && ranges.back().last + 1 == code) {
        ranges.back().last = code;
      } else {
        ranges.push_back({code, code});
      }
    }
  }
  return by_name;
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
  static const RangesByName known = find_ranges();
  const auto found = known.find(name);
  if (found == known.end()) {
    throw Error("names the Unicode property " + in_quotes(name) + ", which is not supported");
  }
  return found->second;
}

}  // namespace faststream::rules
