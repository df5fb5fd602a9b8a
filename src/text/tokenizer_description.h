// A tokenizer as data, whatever file it came from.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace faststream {

/// A token that is looked for in a text before the text is split. Fields as in tokenizer.json's
/// "added_tokens" (Hugging Face's tokenizers 0.23).
struct AddedTokenRule {
  int32_t id = 0;
  std::string text;
  bool special = false;      ///< for templates, not for users' texts; not printed
  bool normalized = false;   ///< looked for in the normalized text
  bool lstrip = false;       ///< takes the white space before it
  bool rstrip = false;       ///< and after it
  bool single_word = false;  ///< only where it is not a part of a word
  bool in_model = false;     ///< the model's own vocabulary has it, so that splitting may make it
};

/// What tokenizer.json holds, with its large parts as vectors. Readers of other formats
/// (tiktoken, tekken, GGUF) say the same in its terms.
struct TokenizerDescription {
  /// The rest of tokenizer.json: "normalizer", "pre_tokenizer", "post_processor", "decoder" and
  /// "model" (its "type" and options, without "vocab" and "merges"); null or absent for none.
  nlohmann::json pipeline;
  /// By id; added tokens included. An empty text is an id that no token has.
  std::vector<std::string> vocabulary;
  std::vector<double> scores;                  ///< Unigram: of the first so many tokens; else empty
  std::vector<std::array<int32_t, 2>> merges;  ///< BPE: ids of left and right, the first first
  std::vector<AddedTokenRule> added_tokens;
};

}  // namespace faststream
