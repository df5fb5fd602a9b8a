#include <algorithm>
#include <optional>
#include <utility>

#include "support/error.h"
#include "support/utf8.h"
#include "text/prefix_search.h"
#include "text/sentencepiece_encoder.h"
#include "text/sentencepiece_model.h"
#include "text/tokenizer.h"

namespace faststream {
namespace {

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
  SentencePieceTokenizer(SentencePieceModel model, TokenizerConfig config, std::string_view where,
                         CheckInterrupted check_interrupted)
      : model_(std::move(model)),
        config_(std::move(config)),
        check_interrupted_(std::move(check_interrupted)) {
    check_ids(where);
    fill_tokens();
  }

  [[nodiscard]] const TokenizerConfig& config() const override { return config_; }
  [[nodiscard]] int32_t vocab_size() const override {
    return static_cast<int32_t>(model_.pieces.size());
  }

  [[nodiscard]] std::vector<int32_t> encode(std::string_view text, bool special) const override {
    std::vector<int32_t> ids;
    if (special) ids = config_.prefix;
    const std::vector<int32_t> pieces = encoder_.encode(
        text,
        {.add_dummy = model_.add_dummy_prefix, .remove_extra = model_.remove_extra_whitespaces},
        check_interrupted_);
    ids.insert(ids.end(), pieces.begin(), pieces.end());
    if (special) ids.insert(ids.end(), config_.suffix.begin(), config_.suffix.end());
    return ids;
  }

  [[nodiscard]] std::vector<int32_t> encode_continuation(std::string_view text) const override {
    return encoder_.encode(text, {.add_dummy = false, .remove_extra = false}, check_interrupted_);
  }

  // After a special token a text begins anew, with a dummy prefix, as Llama's authors have it;
  // unless the template wrote a space there itself.
  [[nodiscard]] std::vector<int32_t> encode_stretches(
      std::span<const Stretch> stretches) const override {
    std::vector<int32_t> ids;
    std::string text;  // since the last special token
    bool continues = !stretches.empty() && stretches.front().continues;
    bool own_space = false;
    const auto flush = [&] {
      if (!text.empty()) encode_plain(text, continues || own_space, ids);
      text.clear();
      continues = false;
    };
    std::string joined;  // neighbouring stretches of the template
    for (size_t i = 0; i < stretches.size(); ++i) {
      if (!stretches[i].from_template) {
        if (text.empty()) own_space = false;
        text += stretches[i].text;
        continue;
      }
      joined += stretches[i].text;
      if (i + 1 < stretches.size() && stretches[i + 1].from_template) continue;
      for (size_t at = 0; at < joined.size();) {
        const std::string_view rest = std::string_view(joined).substr(at);
        const size_t length = special_->longest(rest);
        if (length == 0) {
          if (text.empty()) own_space = rest.front() == ' ' && !ids.empty();
          text += rest.front();
          ++at;
          continue;
        }
        flush();
        special_->search(rest, [&](size_t size, int32_t id) {
          if (size == length) ids.push_back(id);
        });
        at += length;
      }
      joined.clear();
    }
    flush();
    return ids;
  }

  [[nodiscard]] int64_t min_tokens(std::string_view text, int64_t enough) const override {
    return encoder_.min_tokens(text, enough);
  }

  [[nodiscard]] std::optional<int32_t> find_token(std::string_view piece) const override {
    const auto found = std::find_if(model_.pieces.begin(), model_.pieces.end(),
                                    [piece](const auto& each) { return each.text == piece; });
    if (found == model_.pieces.end()) return std::nullopt;
    return static_cast<int32_t>(found - model_.pieces.begin());
  }

  [[nodiscard]] std::string token_bytes(int32_t id) const override {
    return is_token(id) ? tokens_[static_cast<size_t>(id)].bytes : "";
  }

  /// A token where a text starts: what is seen of token_bytes(id), and whether the text has yet to
  /// start after it (control tokens, for one). The space of the dummy prefix is dropped from
  /// ordinary pieces, not from the unknown piece or a byte.
  struct Start {
    std::string bytes;
    bool still_at_start = false;
  };
  [[nodiscard]] Start start_bytes(int32_t id, bool keep_leading_space) const {
    const Token& token = tokens_[static_cast<size_t>(id)];
    const bool drop = token.begins_with_prefix && !keep_leading_space;
    Start start{.bytes = token.bytes.substr(drop ? 1 : 0)};
    // Where extra spaces are removed, any number of them goes; else the prefix's own is the only
    // one.
    start.still_at_start = start.bytes.empty() && (!drop || model_.remove_extra_whitespaces);
    return start;
  }

  [[nodiscard]] std::unique_ptr<TextStream> stream(bool at_start,
                                                   ShownSpecial shown) const override;
  /// What a special token shows, which token_bytes() does not have; empty for other tokens.
  [[nodiscard]] std::string_view control_text(int32_t id) const {
    const SentencePieceModel::Piece& piece = model_.pieces[static_cast<size_t>(id)];
    return piece.type == SentencePieceModel::PieceType::control ? piece.text : std::string_view();
  }

  [[nodiscard]] std::string decode(std::span<const int32_t> ids) const override;

 private:
  struct Token {
    std::string bytes;
    bool begins_with_prefix = false;  // with a space that the start of a text loses
    bool is_special = false;          // for chat templates, not for users' texts
  };

  // Appends the ids of a text in which no special token may come up. A user-defined piece that is
  // one would; there the text is cut in halves until every such spelling is in parts.
  void encode_plain(std::string_view text, bool continues, std::vector<int32_t>& out) const {
    const std::vector<int32_t> ids = continues ? encode_continuation(text) : encode(text, false);
    const size_t half = middle_character(text);
    const bool any_special = std::any_of(ids.begin(), ids.end(), [this](int32_t id) {
      return tokens_[static_cast<size_t>(id)].is_special;
    });
    if (half == 0 || !any_special) {
      out.insert(out.end(), ids.begin(), ids.end());
      return;
    }
    encode_plain(text.substr(0, half), continues, out);
    encode_plain(text.substr(half), true, out);
  }

  // Where a character begins nearest after the middle of `text`, else before it; 0 where there is
  // but one.
  static size_t middle_character(std::string_view text) {
    const auto begins = [text](size_t at) {
      return (static_cast<unsigned char>(text[at]) & 0xC0U) != 0x80U;
    };
    for (size_t at = (text.size() + 1) / 2; at < text.size(); ++at) {
      if (begins(at)) return at;
    }
    for (size_t at = text.size() / 2; at > 0; --at) {
      if (begins(at)) return at;
    }
    return 0;
  }

  [[nodiscard]] bool is_token(int32_t id) const { return id >= 0 && id < vocab_size(); }

  void check_ids(std::string_view where) const {
    const auto check_id = [&](int32_t id, const char* name) {
      if (id >= 0 && id < vocab_size()) return;
      throw Error(std::string(where) + ": the " + name + " token " + std::to_string(id) +
                  " is not one of the tokenizer's " + std::to_string(vocab_size()) +
                  " pieces; use the model's original tokenizer.");
    };
    if (config_.bos) check_id(*config_.bos, "BOS");
    for (const int32_t id : config_.prefix) check_id(id, "first");
    for (const int32_t id : config_.suffix) check_id(id, "last");
    for (const int32_t id : config_.between.value_or(std::vector<int32_t>())) {
      check_id(id, "middle");
    }
    for (const int32_t id : config_.eos) check_id(id, "EOS");
  }

  void fill_tokens() {
    using PieceType = SentencePieceModel::PieceType;
    const bool drops_prefix = model_.add_dummy_prefix || model_.remove_extra_whitespaces;
    tokens_.resize(model_.pieces.size());
    std::vector<PrefixSearch::Entry> special;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const SentencePieceModel::Piece& piece = model_.pieces[i];
      Token& token = tokens_[i];
      token.is_special = is_special(piece);
      if (token.is_special) special.push_back({piece.text, static_cast<int32_t>(i)});
      if (piece.type == PieceType::control) continue;
      if (piece.type == PieceType::unknown) {
        token.bytes = model_.unknown_surface;
      } else if (piece.type == PieceType::byte) {
        token.bytes = static_cast<char>(byte_of_piece(piece));
      } else {
        token.bytes = with_spaces(piece.text);
        token.begins_with_prefix = drops_prefix && piece.text.starts_with(kSpaceSymbol);
      }
    }
    special_.emplace(std::move(special));
  }

  // Some models have the marks of their chat format as user-defined pieces.
  static bool is_special(const SentencePieceModel::Piece& piece) {
    using PieceType = SentencePieceModel::PieceType;
    const std::string& text = piece.text;
    if (text.empty()) return false;
    const bool in_brackets = (text.starts_with('<') && text.ends_with('>')) ||
                             (text.starts_with('[') && text.ends_with(']'));
    return piece.type == PieceType::control ||
           (piece.type == PieceType::user_defined && text.size() > 2 && in_brackets);
  }

  SentencePieceModel model_;
  SentencePieceEncoder encoder_{model_};
  std::optional<PrefixSearch> special_;  // spellings of special tokens
  TokenizerConfig config_;
  CheckInterrupted check_interrupted_;
  std::vector<Token> tokens_;
};

/// A control token ends an incomplete character, an id outside the vocabulary changes nothing: as
/// decode() has it.
class SentencePieceStream final : public TextStream {
 public:
  SentencePieceStream(const SentencePieceTokenizer& tokenizer, bool at_start,
                      bool keep_leading_space, ShownSpecial shown)
      : tokenizer_(tokenizer),
        at_start_(at_start),
        keep_leading_space_(keep_leading_space),
        shown_(std::move(shown)) {}

  std::string push(int32_t id) override {
    if (id < 0 || id >= tokenizer_.vocab_size()) return "";
    std::string bytes;
    if (at_start_) {
      auto start = tokenizer_.start_bytes(id, keep_leading_space_);
      bytes = std::move(start.bytes);
      at_start_ = start.still_at_start;
    } else {
      bytes = tokenizer_.token_bytes(id);
    }
    if (bytes.empty()) {
      std::string done = finish();
      return shown_.shows(id) ? done.append(tokenizer_.control_text(id)) : done;
    }
    pending_ += bytes;
    return take_utf8(pending_);
  }
  std::string finish() override { return valid_utf8(std::exchange(pending_, {})); }
  [[nodiscard]] std::unique_ptr<TextStream> clone() const override {
    return std::make_unique<SentencePieceStream>(*this);
  }

 private:
  const SentencePieceTokenizer& tokenizer_;
  bool at_start_;
  bool keep_leading_space_;
  ShownSpecial shown_;
  std::string pending_;  // an incomplete character
};

std::unique_ptr<TextStream> SentencePieceTokenizer::stream(bool at_start,
                                                           ShownSpecial shown) const {
  return std::make_unique<SentencePieceStream>(*this, at_start, config_.keep_leading_space,
                                               std::move(shown));
}

std::string SentencePieceTokenizer::decode(std::span<const int32_t> ids) const {
  SentencePieceStream decoding(*this, true, false, {});
  std::string text;
  for (const int32_t id : ids) text += decoding.push(id);
  return text + decoding.finish();
}

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::span<const std::byte> model,
                                                        const TokenizerConfig& config,
                                                        std::string_view where,
                                                        CheckInterrupted check_interrupted) {
  return std::make_unique<SentencePieceTokenizer>(parse_sentencepiece_model(model, where), config,
                                                  where, std::move(check_interrupted));
}

}  // namespace faststream
