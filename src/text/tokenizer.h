// Text to token ids and back.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/check_interrupted.h"

namespace faststream {

/// The largest token id that a model file or a checkpoint may name.
constexpr int32_t kMaxTokenId = std::numeric_limits<int32_t>::max();

/// For Tokenizer::min_tokens(): never enough.
constexpr int64_t kCountAll = std::numeric_limits<int64_t>::max();

/// Ids that mean something to the engine, from the model file's header under "tokenizer".
struct TokenizerConfig {
  std::optional<int32_t> bos;   ///< begins a sequence
  std::vector<int32_t> eos;     ///< any of them ends a sequence
  std::vector<int32_t> prefix;  ///< what encode() puts before a text: BOS, most often
  std::vector<int32_t> suffix;  ///< and after it
  /// What encoding a pair of texts puts between them; absent: pairs have no rule.
  std::optional<std::vector<int32_t>> between = {};
  bool pair_segments = false;  ///< the second text, and what follows it, is segment 1
  /// The text of the first token keeps the space that the dummy prefix put there, instead of losing
  /// it.
  bool keep_leading_space = false;

  /// Whether encode() begins with bos.
  [[nodiscard]] bool adds_bos() const { return bos && !prefix.empty() && prefix.front() == *bos; }
};

/// In a model file, the name of the tensor that is a tokenizer, and of the header's member about
/// it: the model's, or of sources where their vocabulary is another.
inline constexpr const char* kTokenizer = "tokenizer";
inline constexpr const char* kEncoderTokenizer = "encoder.tokenizer";

/// Throws Error, starting with `where`, when a member is missing, of the wrong type or out of
/// range.
TokenizerConfig tokenizer_config_from_json(const nlohmann::json& json, std::string_view where);
nlohmann::json tokenizer_config_to_json(const TokenizerConfig& config);

/// A stretch of a conversation as a chat template wrote it.
struct Stretch {
  std::string_view text;
  bool from_template = false;  ///< spellings of special tokens in it become those tokens
  bool continues = false;      ///< of the first one: as encode_continuation() has it
};

/// The special tokens whose spellings are in a text; the others are passed over.
struct ShownSpecial {
  bool all = false;
  std::vector<int32_t> some = {};

  [[nodiscard]] bool shows(int32_t token) const {
    return all || std::find(some.begin(), some.end(), token) != some.end();
  }
};

/// The text of a stream of tokens, as it becomes certain. For one text.
class TextStream {
 public:
  virtual ~TextStream() = default;
  /// What can be printed after token `id`: complete characters only, perhaps none.
  virtual std::string push(int32_t id) = 0;
  /// What is left at the end: U+FFFD for an incomplete character, for one.
  virtual std::string finish() = 0;
  /// A stream that goes on from here by itself.
  [[nodiscard]] virtual std::unique_ptr<TextStream> clone() const = 0;
};

/// Immutable once made; any number of threads may use it.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  [[nodiscard]] virtual const TokenizerConfig& config() const = 0;
  [[nodiscard]] virtual int32_t vocab_size() const = 0;

  /// Token ids of any bytes (each that is no part of a UTF-8 character counts as U+FFFD; no NUL
  /// rule), between the configuration's prefix and suffix unless `special` is false. Spellings of
  /// special tokens in the text ("<s>") are plain text. Needs some bytes of memory for each token,
  /// and about 20 for each byte of the longest word; throws Error for a word of a gigabyte, where
  /// the tokenizer's rules take too long or make too much of the text (tokenizer/budget.h), and
  /// where it has no token for a character.
  [[nodiscard]] virtual std::vector<int32_t> encode(std::string_view text,
                                                    bool special = true) const = 0;

  /// encode(text), but spellings of special tokens in the text become these tokens. A text that
  /// begins with the configuration's prefix itself gets no second one, nor a second suffix.
  [[nodiscard]] std::vector<int32_t> encode_parsing_special(std::string_view text) const;

  /// Token ids of a text that continues another: no prefix or suffix, no dummy prefix before it,
  /// and its spaces as they are written, also where encode() removes extra ones.
  [[nodiscard]] virtual std::vector<int32_t> encode_continuation(std::string_view text) const = 0;

  /// Token ids of all stretches as one text, without BOS and EOS of its own. A special token is
  /// found only where its whole spelling is from the template; what lies between special tokens is
  /// split as one text, however many stretches it is made of.
  [[nodiscard]] virtual std::vector<int32_t> encode_stretches(
      std::span<const Stretch> stretches) const = 0;

  /// At most as many tokens as encode() or encode_continuation() gives for `text`, in a fraction of
  /// their time and hardly any memory. Counts no further once there are more than `enough`.
  [[nodiscard]] virtual int64_t min_tokens(std::string_view text, int64_t enough) const = 0;

  /// The token that is spelled `piece` in the vocabulary, such as "<|im_end|>"; nothing if none is.
  [[nodiscard]] virtual std::optional<int32_t> find_token(std::string_view piece) const = 0;

  /// The bytes that a token stands for in the middle of a text: "▁the" is " the", "<0x0A>" is "\n",
  /// control tokens are empty. Ids past the vocabulary (padding rows of the output matrix) are
  /// empty.
  [[nodiscard]] virtual std::string token_bytes(int32_t id) const = 0;

  /// Decodes token by token. `at_start`: the stream begins a text, so that a dummy prefix's space
  /// is dropped (unless the configuration keeps it). False when it continues a prompt.
  [[nodiscard]] virtual std::unique_ptr<TextStream> stream(bool at_start,
                                                           ShownSpecial shown) const = 0;

  /// Whether `id` is one of config().eos.
  [[nodiscard]] bool is_eos(int32_t id) const;

  /// The text of ids as SentencePiece's own decode gives it, whatever keep_leading_space says, or
  /// Hugging Face's without special tokens. Ids outside the vocabulary are passed over.
  [[nodiscard]] virtual std::string decode(std::span<const int32_t> ids) const = 0;
};

/// Turns a stream of tokens into a stream of whole UTF-8 characters: all output together is the
/// tokens' text as decode() has it, but for the special ones that are shown.
class Detokenizer {
 public:
  /// As Tokenizer::stream() has them.
  Detokenizer(const Tokenizer& tokenizer, bool at_start, ShownSpecial shown = {})
      : stream_(tokenizer.stream(at_start, std::move(shown))) {}
  Detokenizer(const Detokenizer& other) : stream_(other.stream_->clone()) {}
  Detokenizer(Detokenizer&&) noexcept = default;
  Detokenizer& operator=(const Detokenizer& other) { return *this = Detokenizer(other); }
  Detokenizer& operator=(Detokenizer&&) noexcept = default;
  ~Detokenizer() = default;

  std::string push(int32_t id) { return stream_->push(id); }
  std::string finish() { return stream_->finish(); }

 private:
  std::unique_ptr<TextStream> stream_;
};

}  // namespace faststream
