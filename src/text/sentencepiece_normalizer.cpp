#include "text/sentencepiece_normalizer.h"

#include "support/utf8.h"

namespace faststream {

SentencePieceNormalizer::Step SentencePieceNormalizer::next(std::string_view text) const {
  if (const size_t length = user_defined_.longest(text); length > 0) {
    return {text.substr(0, length), length};
  }
  Step step;
  rules_.search(text, [&](size_t length, std::string_view output) {
    step = {output, length};
    return true;
  });
  if (step.consumed > 0) return step;
  const int length = utf8_character(text);
  if (length <= 0) return {kReplacementCharacter, 1};
  return {text.substr(0, static_cast<size_t>(length)), static_cast<size_t>(length)};
}

void SentencePieceNormalizer::normalize(
    std::string_view text, SpaceRules rules,
    const std::function<bool(std::string_view character)>& put) const {
  if (rules.remove_extra) {
    while (!text.empty()) {
      const Step step = next(text);
      if (step.output != " ") break;
      text.remove_prefix(step.consumed);
    }
  }
  if (text.empty()) return;

  // Where extra spaces are removed, those at the end are: they wait until something follows.
  const std::string_view space = model_.escape_whitespaces ? kSpaceSymbol : " ";
  size_t waiting = 0;
  const auto put_character = [&](std::string_view character) {
    if (character == " ") character = space;
    if (rules.remove_extra && character == space) {
      ++waiting;
      return true;
    }
    for (; waiting > 0; --waiting) {
      if (!put(space)) return false;
    }
    return put(character);
  };

  const bool as_suffix = model_.whitespace_as_suffix;
  if (rules.add_dummy && !as_suffix && !put_character(space)) return;
  bool after_space = rules.remove_extra;
  while (!text.empty()) {
    const Step step = next(text);
    text.remove_prefix(step.consumed);
    std::string_view output = step.output;
    while (after_space && output.starts_with(' ')) output.remove_prefix(1);
    if (output.empty()) continue;
    after_space = rules.remove_extra && output.ends_with(' ');
    while (!output.empty()) {
      const auto length = static_cast<size_t>(utf8_character(output));
      if (!put_character(output.substr(0, length))) return;
      output.remove_prefix(length);
    }
  }
  if (rules.add_dummy && as_suffix) put(space);
}

}  // namespace faststream
