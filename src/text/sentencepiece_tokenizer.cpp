#include <sentencepiece_processor.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <utility>

#include "support/error.h"
#include "text/sentencepiece_model.h"
#include "text/tokenizer.h"

namespace faststream {
namespace {

constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";  // U+2581

std::string with_spaces(std::string_view piece) {
  std::string text;
  for (size_t at = 0; at < piece.size();) {
    const size_t symbol = std::min(piece.find(kSpaceSymbol, at), piece.size());
    text += piece.substr(at, symbol - at);
    if (symbol < piece.size()) text += ' ';
    at = std::min(symbol + kSpaceSymbol.size(), piece.size());
  }
  return text;
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(const SentencePieceModel& model, TokenizerConfig config,
                         std::string_view where)
      : config_(std::move(config)), where_(where) {
    load(model, processor_);
    check_ids();
    fill_tokens(model);
  }

  [[nodiscard]] const TokenizerConfig& config() const override { return config_; }
  [[nodiscard]] int32_t vocab_size() const override { return static_cast<int32_t>(tokens_.size()); }

  [[nodiscard]] std::vector<int32_t> encode(std::string_view text, bool special) const override {
    std::vector<int32_t> ids;
    if (special && config_.add_bos && config_.bos) ids.push_back(*config_.bos);
    const std::vector<int32_t> pieces = split(processor_, text);
    ids.insert(ids.end(), pieces.begin(), pieces.end());
    if (special && config_.add_eos && !config_.eos.empty()) ids.push_back(config_.eos.front());
    return ids;
  }

  [[nodiscard]] std::vector<int32_t> encode_continuation(std::string_view text) const override {
    return split(continuation_processor(), text);
  }

  [[nodiscard]] std::optional<int32_t> find_token(std::string_view piece) const override {
    const int id = processor_.PieceToId(piece);  // the unknown token's for what is none
    if (processor_.IdToPiece(id) != piece) return std::nullopt;
    return id;
  }

  [[nodiscard]] std::string token_bytes(int32_t id) const override {
    return is_token(id) ? tokens_[static_cast<size_t>(id)].bytes : "";
  }

  [[nodiscard]] Start start_bytes(int32_t id) const override {
    if (!is_token(id)) return {.bytes = "", .still_at_start = true};
    const Token& token = tokens_[static_cast<size_t>(id)];
    const bool drop = token.begins_with_prefix && !config_.keep_leading_space;
    Start start{.bytes = token.bytes.substr(drop ? 1 : 0)};
    // Where extra spaces are removed, any number of them goes; else the prefix's own is the only
    // one.
    start.still_at_start = start.bytes.empty() && (!drop || removes_extra_spaces_);
    return start;
  }

  [[nodiscard]] std::string decode(std::span<const int32_t> ids) const override {
    std::vector<int> known;
    std::copy_if(ids.begin(), ids.end(), std::back_inserter(known),
                 [this](int32_t id) { return is_token(id); });
    std::string text;
    check(processor_.Decode(known, &text), "cannot turn the tokens into text");
    return text;
  }

 private:
  struct Token {
    std::string bytes;
    bool begins_with_prefix = false;  // with a space that the start of a text loses
  };

  [[nodiscard]] bool is_token(int32_t id) const { return id >= 0 && id < vocab_size(); }

  void check(const sentencepiece::util::Status& status, const char* what) const {
    if (status.ok()) return;
    throw Error(where_ + ": SentencePiece " + what + " (" + status.ToString() + ").");
  }

  [[nodiscard]] std::vector<int32_t> split(const sentencepiece::SentencePieceProcessor& processor,
                                           std::string_view text) const {
    // The library counts bytes of normalized text, up to three for one of ours, in an int.
    if (text.size() > std::numeric_limits<int32_t>::max() / 4) {
      throw Error(where_ + ": a text of more than 512 MB cannot be split into tokens; shorten it.");
    }
    std::vector<int> pieces;
    check(processor.Encode(text, &pieces), "cannot split the text into tokens");
    return {pieces.begin(), pieces.end()};
  }

  /// Splits text without a space of its own making and without dropping any that is there. Made
  /// when it is first needed: a vocabulary takes some megabytes.
  [[nodiscard]] const sentencepiece::SentencePieceProcessor& continuation_processor() const {
    if (keeps_spaces_) return processor_;
    std::call_once(continuation_made_, [this] {
      const std::string bytes = processor_.serialized_model_proto();
      SentencePieceModel model = parse_sentencepiece_model(std::as_bytes(std::span(bytes)), where_);
      model.add_dummy_prefix = false;
      model.remove_extra_whitespaces = false;
      load(model, continuation_processor_);
    });
    return continuation_processor_;
  }

  void load(const SentencePieceModel& model,
            sentencepiece::SentencePieceProcessor& processor) const {
    constexpr const char* kRefused = "cannot load the tokenizer; use the model's original one";
    try {
      check(processor.LoadFromSerializedProto(serialize_sentencepiece_model(model)), kRefused);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {  // its trie builder throws
      throw Error(where_ + ": SentencePiece " + kRefused + " (" + error.what() + ").");
    }
  }

  void check_ids() const {
    const auto check_id = [this](int32_t id, const char* name) {
      if (id >= 0 && id < processor_.GetPieceSize()) return;
      throw Error(where_ + ": the " + name + " token " + std::to_string(id) +
                  " is not one of the tokenizer's " + std::to_string(processor_.GetPieceSize()) +
                  " pieces; use the model's original tokenizer.");
    };
    if (config_.bos) check_id(*config_.bos, "BOS");
    for (const int32_t id : config_.eos) check_id(id, "EOS");
  }

  void fill_tokens(const SentencePieceModel& model) {
    const bool drops_prefix = model.add_dummy_prefix || model.remove_extra_whitespaces;
    keeps_spaces_ = !drops_prefix;
    removes_extra_spaces_ = model.remove_extra_whitespaces;
    tokens_.resize(model.pieces.size());
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const std::string& text = model.pieces[i].text;
      // A control and a normal piece may share a text; decoding goes by text and prefers the
      // former.
      const int id = processor_.PieceToId(text);
      Token& token = tokens_[i];
      if (processor_.IsControl(id)) continue;
      if (processor_.IsUnknown(id)) {
        token.bytes = model.unknown_surface;
      } else if (processor_.IsByte(id)) {
        token.bytes = static_cast<char>(std::stoi(text.substr(3, 2), nullptr, 16));  // "<0x0A>"
      } else {
        token.bytes = with_spaces(text);
        token.begins_with_prefix = drops_prefix && text.starts_with(kSpaceSymbol);
      }
    }
  }

  sentencepiece::SentencePieceProcessor processor_;
  mutable std::once_flag continuation_made_;
  mutable sentencepiece::SentencePieceProcessor continuation_processor_;
  TokenizerConfig config_;
  std::string where_;
  std::vector<Token> tokens_;
  bool removes_extra_spaces_ = false;
  bool keeps_spaces_ = false;  // a text's spaces are its own, no more and no less
};

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::span<const std::byte> model,
                                                        const TokenizerConfig& config,
                                                        std::string_view where) {
  return std::make_unique<SentencePieceTokenizer>(parse_sentencepiece_model(model, where), config,
                                                  where);
}

}  // namespace faststream
