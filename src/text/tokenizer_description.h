// A tokenizer as data, whatever file it came from.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
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
  /// Found as a text is split: the normalizer leaves it as it is, BPE never parts or merges it, and
  /// it is printed. In the templates' texts it is looked for beforehand if it is special.
  bool symbol = false;
};

/// How SentencePiece, and many since, write a space in a token: "▁" (U+2581).
constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";

/// What a token of the vocabulary is.
enum class TokenRole : uint8_t {
  text,     ///< what a text is split into
  unknown,  ///< what the model does not know becomes it
  byte,     ///< stands for a byte, which its text, such as "<0x0A>", names
  unused,   ///< BPE: merged like others, falls into its parts at last; else never made of a text
};

/// What tokenizer.json holds, with its large parts as vectors. Readers of other formats
/// (tiktoken, tekken, GGUF) say the same in its terms.
struct TokenizerDescription {
  /// The rest of tokenizer.json: "normalizer", "pre_tokenizer", "post_processor", "decoder" and
  /// "model" (its "type" and options, without "vocab" and "merges"); null or absent for none.
  nlohmann::json pipeline;
  /// By id; added tokens included. An empty text is an id that no token has.
  std::vector<std::string> vocabulary;
  std::vector<TokenRole> roles;                ///< by id; of those without one: text
  std::vector<double> scores;                  ///< Unigram: of the first so many tokens; else empty
  std::vector<std::array<int32_t, 2>> merges;  ///< BPE: ids of left and right, the first first
  std::vector<int32_t> merge_ranks;  ///< as many, the lowest first and the leftmost of equals; or
                                     ///< none: in their order
  /// BPE: so many at the end of the vocabulary are no tokens but characters that merges begin with.
  int32_t n_parts = 0;
  std::string charsmap;  ///< SentencePiece's rules, where the pipeline has none in Base64
  std::vector<AddedTokenRule> added_tokens;
};

}  // namespace faststream
