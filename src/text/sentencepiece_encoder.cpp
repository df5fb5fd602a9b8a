#include "text/sentencepiece_encoder.h"

#include <string>

#include "support/error.h"
#include "support/utf8.h"
#include "text/word_splitter.h"

namespace faststream {

// Calls use(word) for each word of the normalized text.
template <typename Use>
void SentencePieceEncoder::for_each_word(std::string_view text, SpaceRules rules, Use&& use) const {
  std::string word;
  size_t last = 0;  // where the word's last character begins
  normalizer_.normalize(text, rules, [&](std::string_view character) {
    if (!word.empty() && !table_.can_join(std::string_view(word).substr(last), character)) {
      use(std::string_view(word));
      word.clear();
    }
    if (word.size() + character.size() > WordSplitter::kLongestWord) {
      throw Error("a text with a word of a gigabyte cannot be split into tokens; shorten it");
    }
    last = word.size();
    word += character;
  });
  if (!word.empty()) use(std::string_view(word));
}

// Bytes of characters that cannot vanish in a run of unknown ones, which becomes a single token.
size_t SentencePieceEncoder::certain_bytes(std::string_view word) const {
  if (model_.byte_fallback) return word.size();
  size_t n = 0;
  while (!word.empty()) {
    const auto size = static_cast<size_t>(utf8_character(word));
    if (table_.is_known(word.substr(0, size))) n += size;
    word.remove_prefix(size);
  }
  return n;
}

std::vector<int32_t> SentencePieceEncoder::encode(std::string_view text, SpaceRules rules) const {
  const auto splitter = model_.algorithm == SentencePieceModel::Algorithm::bpe
                            ? make_bpe_splitter(table_)
                            : make_unigram_splitter(table_);
  std::vector<int32_t> ids;
  std::vector<WordSplitter::Split> splits;
  bool after_unknown = false;
  for_each_word(text, rules, [&](std::string_view word) {
    splits.clear();
    splitter->split(word, splits);
    for (const auto& [size, id] : splits) {
      const bool is_unknown = id == table_.unknown();
      if (is_unknown && model_.byte_fallback) {
        for (const char byte : word.substr(0, size)) {
          ids.push_back(table_.of_byte(static_cast<unsigned char>(byte)));
        }
      } else if (!is_unknown || !after_unknown) {
        ids.push_back(id);
      }
      after_unknown = is_unknown;
      word.remove_prefix(size);
    }
  });
  return ids;
}

int64_t SentencePieceEncoder::min_tokens(std::string_view text) const {
  // Without a dummy space and without extra ones a text is shortest.
  const SpaceRules rules{.add_dummy = false, .remove_extra = model_.remove_extra_whitespaces};
  const size_t longest = table_.longest();
  size_t n = 0;
  for_each_word(text, rules,
                [&](std::string_view word) { n += (certain_bytes(word) + longest - 1) / longest; });
  return static_cast<int64_t>(n);
}

}  // namespace faststream
