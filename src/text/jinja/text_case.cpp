#include "text/jinja/text_case.h"

#include <utility>

#include "text/jinja/characters.h"
#include "text/jinja/text_methods.h"

namespace faststream::jinja {
namespace {

constexpr std::string_view kSigma = "\u03A3";

// Whether the letter at `at` ends a word (Unicode's Final_Sigma): there is a letter before it, and
// none after it.
bool ends_word(std::string_view text, size_t at) {
  const size_t size = character_size(text.substr(at));
  bool follows = false;
  for (size_t before = at; before > 0;) {
    before = start_of_character(text, before);
    const char32_t code = code_point(text.substr(before));
    if (is_case_ignorable(code)) continue;
    follows = is_cased(code);
    break;
  }
  if (!follows) return false;
  for (std::string_view rest = text.substr(at + size); !rest.empty();
       rest.remove_prefix(character_size(rest))) {
    const char32_t code = code_point(rest);
    if (!is_case_ignorable(code)) return !is_cased(code);
  }
  return true;
}

// `character`: a view into `text`.
std::string lower_in(const Text& text, std::string_view character) {
  if (character != kSigma) return to_lower(character);
  const auto at = static_cast<size_t>(character.data() - text.bytes().data());
  return ends_word(text.view(), at) ? "\u03C2" : "\u03C3";
}

}  // namespace

Text upper(const Text& text) {
  return map_characters(text, [](std::string_view c) { return to_upper(c); });
}
Text lower(const Text& text) {
  return map_characters(text, [&](std::string_view c) { return lower_in(text, c); });
}

Text capitalize(const Text& text) {
  bool first = true;
  return map_characters(text, [&](std::string_view character) {
    return std::exchange(first, false) ? to_title(character) : lower_in(text, character);
  });
}

Text title(const Text& text) {
  bool after_letter = false;
  return map_characters(text, [&](std::string_view character) {
    std::string changed = after_letter ? lower_in(text, character) : to_title(character);
    after_letter = is_cased(code_point(character));
    return changed;
  });
}

}  // namespace faststream::jinja
