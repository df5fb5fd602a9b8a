#include "text/sentencepiece_encoder.h"

#include <string>

#include "support/error.h"
#include "text/word_splitter.h"

namespace faststream {

// Calls use(word) for each word of the normalized text.
template <typename Use>
void SentencePieceEncoder::for_each_word(std::string_view text, SpaceRules rules,
                                         const CheckInterrupted& check_interrupted,
                                         Use&& use) const {
  TokenizerBudget budget(text.size(), &check_interrupted);
  std::string word;
  size_t last = 0;  // where the word's last character begins
  normalizer_.normalize(text, rules, [&](std::string_view character) {
    if (!word.empty() && !table_.can_join(std::string_view(word).substr(last), character)) {
      budget.take(word.size());
      budget.make(word.size());
      use(std::string_view(word));
      word.clear();
    }
    if (word.size() + character.size() > WordSplitter::kLongestWord) {
      throw Error("a text with a word of a gigabyte cannot be split into tokens; shorten it");
    }
    last = word.size();
    word += character;
    budget.check_size(word.size());
    return true;
  });
  if (!word.empty()) use(std::string_view(word));
}

std::vector<int32_t> SentencePieceEncoder::encode(std::string_view text, SpaceRules rules,
                                                  const CheckInterrupted& check_interrupted) const {
  const auto splitter = model_.algorithm == SentencePieceModel::Algorithm::bpe
                            ? make_bpe_splitter(table_)
                            : make_unigram_splitter(table_);
  std::vector<int32_t> ids;
  std::vector<WordSplitter::Split> splits;
  bool after_unknown = false;
  for_each_word(text, rules, check_interrupted, [&](std::string_view word) {
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

// A word of n bytes has at least n / longest tokens; but for a run of unknown characters, which
// becomes a single one.
int64_t SentencePieceEncoder::min_tokens(std::string_view text, int64_t enough) const {
  // Without a dummy space and without extra ones a text is shortest.
  const SpaceRules rules{.add_dummy = false, .remove_extra = model_.remove_extra_whitespaces};
  const auto longest = static_cast<int64_t>(table_.longest());
  int64_t n = 0;        // of the words before this one
  int64_t n_bytes = 0;  // of this word, in characters that are certain to be in tokens
  std::string last;     // character of this word
  const auto n_of_word = [&] { return (n_bytes + longest - 1) / longest; };
  normalizer_.normalize(text, rules, [&](std::string_view character) {
    if (!last.empty() && !table_.can_join(last, character)) {
      n += n_of_word();
      n_bytes = 0;
    }
    last = character;
    if (model_.byte_fallback || table_.is_known(character)) {
      n_bytes += static_cast<int64_t>(character.size());
    }
    return n + n_of_word() <= enough;
  });
  return n + n_of_word();
}

}  // namespace faststream
