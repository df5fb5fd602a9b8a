// Text to token ids and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace faststream {

/// The largest token id that a model file or a checkpoint may name.
constexpr int32_t kMaxTokenId = std::numeric_limits<int32_t>::max();

/// Ids that mean something to the engine, from the model file's header under "tokenizer".
struct TokenizerConfig {
  std::string kind = "sentencepiece";
  std::optional<int32_t> bos;  ///< begins a sequence
  std::vector<int32_t> eos;    ///< any of them ends a sequence
  bool add_bos = true;         ///< encode() puts bos first (when there is one)
  bool add_eos = false;        ///< encode() puts the first eos last
  /// The text of the first piece keeps the space that SentencePiece's dummy prefix put there,
  /// instead of losing it.
  bool keep_leading_space = false;
};

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

/// Immutable once made; any number of threads may use it.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  [[nodiscard]] virtual const TokenizerConfig& config() const = 0;
  [[nodiscard]] virtual int32_t vocab_size() const = 0;

  /// Token ids of any bytes (invalid UTF-8 included; no NUL rule), with BOS and EOS as the
  /// configuration says unless `special` is false. Control pieces in the text ("<s>") are plain
  /// text. Needs some bytes of memory for each token, and about 20 for each byte of the longest
  /// word; throws Error for a word of a gigabyte.
  [[nodiscard]] virtual std::vector<int32_t> encode(std::string_view text,
                                                    bool special = true) const = 0;

  /// Token ids of a text that continues another: no BOS or EOS, no dummy prefix before it, and its
  /// spaces as they are written, also where encode() removes extra ones.
  [[nodiscard]] virtual std::vector<int32_t> encode_continuation(std::string_view text) const = 0;

  /// Token ids of all stretches as one text, without BOS and EOS of its own. A special token is
  /// found only where its whole spelling is from the template; what lies between special tokens is
  /// split as one text, however many stretches it is made of.
  [[nodiscard]] virtual std::vector<int32_t> encode_stretches(
      std::span<const Stretch> stretches) const = 0;

  /// At most as many tokens as encode() or encode_continuation() gives for `text`, in a fraction of
  /// their time and hardly any memory.
  [[nodiscard]] virtual int64_t min_tokens(std::string_view text) const = 0;

  /// The token that is spelled `piece` in the vocabulary, such as "<|im_end|>"; nothing if none is.
  [[nodiscard]] virtual std::optional<int32_t> find_token(std::string_view piece) const = 0;

  /// The bytes that a token stands for in the middle of a text: "▁the" is " the", "<0x0A>" is "\n",
  /// control tokens are empty. Ids past the vocabulary (padding rows of the output matrix) are
  /// empty.
  [[nodiscard]] virtual std::string token_bytes(int32_t id) const = 0;

  /// A token where a text starts: what is seen of token_bytes(id), and whether the text has yet to
  /// start after it (control tokens, for one).
  struct Start {
    std::string bytes;
    bool still_at_start = false;
  };
  /// SentencePiece drops the space that its dummy prefix put there from ordinary pieces, not from
  /// the unknown piece or a byte; config().keep_leading_space keeps it.
  [[nodiscard]] virtual Start start_bytes(int32_t id) const = 0;

  /// Whether `id` is one of config().eos.
  [[nodiscard]] bool is_eos(int32_t id) const;

  /// The text of ids as SentencePiece's own decode gives it, whatever keep_leading_space says. Ids
  /// outside the vocabulary are passed over.
  [[nodiscard]] virtual std::string decode(std::span<const int32_t> ids) const = 0;
};

/// `model`: a serialized SentencePiece model (copied). Throws Error, starting with `where`, when it
/// is none or when an id of `config` is not in it.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::span<const std::byte> model,
                                                        const TokenizerConfig& config,
                                                        std::string_view where);

/// Turns a stream of tokens into a stream of whole UTF-8 characters. All output together equals the
/// text of the tokens, with each invalid byte replaced by U+FFFD. A control token ends an
/// incomplete character, an id outside the vocabulary changes nothing: as decode() has it.
class Detokenizer {
 public:
  /// `at_start`: the stream begins a text, so the dummy prefix's space is dropped from its first
  /// piece (unless the configuration keeps it). False when it continues a prompt.
  Detokenizer(const Tokenizer& tokenizer, bool at_start);

  /// What can be printed after token `id`: complete characters only, perhaps none.
  std::string push(int32_t id);
  /// What is left at the end: U+FFFD for an incomplete character, or nothing.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool at_start_;
  std::string pending_;  // an incomplete character
};

}  // namespace faststream
