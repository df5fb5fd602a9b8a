#include "text/tokenizer/compiled_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "support/error.h"
#include "support/json.h"
#include "support/utf8.h"
#include "text/tokenizer/added_token_finder.h"
#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/tables.h"
#include "text/tokenizer/token_model.h"

namespace faststream {
namespace {

constexpr std::string_view kAgain = "convert the checkpoint again";

/// Valid UTF-8 of any bytes: a copy only where it is needed. `takes_bytes`: the bytes themselves.
class ValidText {
 public:
  ValidText(std::string_view bytes, bool takes_bytes) : text_(bytes) {
    if (takes_bytes || is_valid_utf8(bytes)) return;
    copy_ = valid_utf8(std::string(bytes));
    text_ = copy_;
  }
  ValidText(const ValidText&) = delete;
  ValidText& operator=(const ValidText&) = delete;
  [[nodiscard]] std::string_view text() const { return text_; }

 private:
  std::string copy_;
  std::string_view text_;
};

/// The characters that are complete, taken from the front of `pending`. A part of a character that
/// can be none counts as one U+FFFD, as in Rust's from_utf8_lossy and Python's "replace"; `at_end`:
/// so does an incomplete one.
std::string take_characters(std::string& pending, bool at_end) {
  std::string done;
  std::string_view rest = pending;
  while (!rest.empty()) {
    const int length = utf8_character(rest);
    if (length < 0 && !at_end) break;
    size_t size = length > 0 ? static_cast<size_t>(length) : rest.size();
    if (length == 0) {  // up to the byte that cannot follow
      size = 1;
      while (utf8_character(rest.substr(0, size)) < 0) ++size;
      if (size > 1) --size;
    }
    done += length > 0 ? rest.substr(0, size) : kReplacementCharacter;
    rest.remove_prefix(size);
  }
  pending.erase(0, pending.size() - rest.size());
  return done;
}

/// A compiled tokenizer's steps; what encodes and decodes with them is below.
struct Pipeline {
  Pipeline(const TokenizerTables& tables, const JsonView& json)
      : byte_level(json.get<bool>("byte_level")),
        decoder(json.find("decoder")),
        as_written(tables, AddedTokenFinder::Which::as_written),
        special_as_written(tables, AddedTokenFinder::Which::special_as_written),
        in_normalized(tables, AddedTokenFinder::Which::normalized),
        symbols(tables) {
    if (const auto normalizer = json.find("normalizer")) {
      normalizers = make_normalizers(
          *normalizer, {.charsmap = tables.section(TableSection::charsmap), .symbols = &symbols});
      takes_bytes = !normalizers.empty() && normalizers.front()->takes_bytes() &&
                    !as_written.looks_around() && !special_as_written.looks_around();
    }
    if (const auto pre_tokenizer = json.find("pre_tokenizer")) {
      pre_tokenizers = make_pre_tokenizers(*pre_tokenizer, byte_level);
    }
    model = make_token_model(json.member("model"), tables, symbols, byte_level);
  }
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  bool byte_level;
  bool takes_bytes = false;  // texts may be no UTF-8
  Normalizers normalizers;
  PreTokenizers pre_tokenizers;
  std::unique_ptr<const TokenModel> model;
  Decoder decoder;
  AddedTokenFinder as_written;
  AddedTokenFinder special_as_written;
  AddedTokenFinder in_normalized;
  SymbolFinder symbols;
};

/// Encodes one text.
class TextEncoding {
 public:
  /// `marks`: special tokens that are symbols are found wherever a text spells them.
  TextEncoding(const Pipeline& pipeline, size_t text_size, bool marks,
               const CheckInterrupted& check_interrupted)
      : pipeline_(pipeline),
        marks_(marks),
        budget_(text_size, &check_interrupted),
        words_(pipeline.model->start(marks, budget_)) {}

  /// `specials`: where in the text special tokens may stand; `all_special`: everywhere.
  std::vector<int32_t> encode(std::string_view text, const AddedTokenFinder::Allowed& specials,
                              bool all_special, bool continues) {
    // Where a special token is looked for in the normalized text, it cannot be told there which
    // stretch it came from: so it is looked for as it is written.
    const bool mixed = specials && !all_special;
    const AddedTokenFinder& finder = mixed ? pipeline_.special_as_written : pipeline_.as_written;
    const AddedTokenFinder::Allowed never = [](size_t, size_t) { return false; };
    const AddedTokenFinder::Allowed always = [](size_t, size_t) { return true; };
    const AddedTokenFinder::Allowed& allowed = all_special ? always : specials ? specials : never;
    finder.split(text, allowed, [&](const AddedTokenFinder::Part& part) {
      if (part.id != TokenizerTables::kNone) {
        ids_.push_back(part.id);
        return;
      }
      const bool first = part.begin == 0;
      const bool own_space =
          !ids_.empty() && text[part.begin] == ' ' && allowed(part.begin, part.begin + 1);
      add_stretch({.text = text.substr(part.begin, part.end - part.begin),
                   .at_start = first,
                   .continues = continues && first},
                  own_space, all_special ? always : never);
    });
    return std::move(ids_);
  }

 private:
  // own_space: of a template, after a special token.
  void add_stretch(const Piece& stretch, bool own_space,
                   const AddedTokenFinder::Allowed& specials) {
    if (pipeline_.normalizers.empty()) return add_normalized(stretch, specials);
    NormalizedText normalized{.text = std::string(stretch.text),
                              .at_start = stretch.at_start,
                              .continues = stretch.continues,
                              .own_space = own_space,
                              .marks = marks_};
    normalize(pipeline_.normalizers, normalized, budget_);
    add_normalized({.text = normalized.text,
                    .at_start = normalized.at_start,
                    .continues = normalized.continues},
                   specials);
  }

  void add_normalized(const Piece& text, const AddedTokenFinder::Allowed& specials) {
    pipeline_.in_normalized.split(text.text, specials, [&](const AddedTokenFinder::Part& part) {
      if (part.id != TokenizerTables::kNone) {
        ids_.push_back(part.id);
        return;
      }
      const bool first = part.begin == 0;
      split({.text = text.text.substr(part.begin, part.end - part.begin),
             .at_start = text.at_start && first,
             .continues = text.continues && first},
            0);
    });
  }

  void split(const Piece& piece, size_t step) {
    budget_.take(piece.text.size());
    budget_.check_size(piece.text.size());
    if (step < pipeline_.pre_tokenizers.size()) {
      pipeline_.pre_tokenizers[step]->split(
          piece, budget_, [this, step](const Piece& part) { split(part, step + 1); });
      return;
    }
    if (piece.text.size() > WordEncoder::kLongestWord) {
      throw Error("a text with a word of a gigabyte cannot be split into tokens; shorten it");
    }
    budget_.make(piece.text.size());
    words_->encode(piece.text, ids_);
  }

  const Pipeline& pipeline_;
  bool marks_;
  TokenizerBudget budget_;
  std::unique_ptr<WordEncoder> words_;
  std::vector<int32_t> ids_;
};

class CompiledTokenizer final : public Tokenizer {
 public:
  CompiledTokenizer(std::span<const std::byte> tables, TokenizerConfig config,
                    std::string_view where, CheckInterrupted check_interrupted)
      : CompiledTokenizer(std::string(), tables, std::move(config), where,
                          std::move(check_interrupted)) {}
  CompiledTokenizer(std::string tables, TokenizerConfig config, std::string_view where,
                    CheckInterrupted check_interrupted)
      : CompiledTokenizer(std::move(tables), {}, std::move(config), where,
                          std::move(check_interrupted)) {}
  /// `own`: the tables unless they are `others`.
  CompiledTokenizer(std::string own, std::span<const std::byte> others, TokenizerConfig config,
                    std::string_view where, CheckInterrupted check_interrupted)
      : own_tables_(std::move(own)),
        tables_(own_tables_.empty() ? others : std::as_bytes(std::span(own_tables_)), where),
        config_(std::move(config)),
        check_interrupted_(std::move(check_interrupted)),
        json_(parse_json_object(tables_.section(TableSection::pipeline),
                                std::string(where) + ": tokenizer", kAgain)),
        pipeline_(tables_, JsonView(json_, std::string(where) + ": tokenizer", kAgain)) {
    check_ids(where);
    read_added_tokens();
  }

  [[nodiscard]] const TokenizerConfig& config() const override { return config_; }
  [[nodiscard]] int32_t vocab_size() const override {
    return tables_.n_tokens() - tables_.n_parts();
  }

  [[nodiscard]] std::vector<int32_t> encode(std::string_view bytes, bool special) const override {
    const ValidText valid(bytes, pipeline_.takes_bytes);
    std::vector<int32_t> ids =
        start(valid.text(), true).encode(valid.text(), nullptr, false, false);
    if (!special) return ids;
    ids.insert(ids.begin(), config_.prefix.begin(), config_.prefix.end());
    ids.insert(ids.end(), config_.suffix.begin(), config_.suffix.end());
    return ids;
  }

  [[nodiscard]] std::vector<int32_t> encode_continuation(std::string_view bytes) const override {
    const ValidText valid(bytes, pipeline_.takes_bytes);
    return start(valid.text(), true).encode(valid.text(), nullptr, false, true);
  }

  [[nodiscard]] std::vector<int32_t> encode_stretches(
      std::span<const Stretch> stretches) const override {
    std::string text;
    std::vector<size_t> ends;  // of runs of stretches from the template and of others, in turn
    bool all_special = true;
    bool from_template = true;
    for (const Stretch& stretch : stretches) {
      if (stretch.text.empty()) continue;
      all_special = all_special && stretch.from_template;
      if (stretch.from_template != from_template) ends.push_back(text.size());
      from_template = stretch.from_template;
      text += ValidText(stretch.text, pipeline_.takes_bytes).text();
    }
    // From the template is what an even number of ends comes before.
    const auto specials = [&](size_t begin, size_t end) {
      const auto first = std::upper_bound(ends.begin(), ends.end(), begin);
      return (first - ends.begin()) % 2 == 0 && (first == ends.end() || *first >= end);
    };
    const bool continues = !stretches.empty() && stretches.front().continues;
    return start(text, false).encode(text, specials, all_special, continues);
  }

  [[nodiscard]] int64_t min_tokens(std::string_view text, int64_t /*enough*/) const override {
    return static_cast<int64_t>(text.size() / bytes_of_a_token_);
  }

  [[nodiscard]] std::optional<int32_t> find_token(std::string_view piece) const override {
    if (const auto added = added_.find(piece); added != added_.end()) return added->second;
    const auto found = [this](int32_t id) {
      return is_token(id) ? std::optional(id) : std::nullopt;
    };
    if (!is_valid_utf8(piece) || piece.empty()) return std::nullopt;
    if (pipeline_.byte_level) {
      if (const auto bytes = from_byte_level(piece)) return found(tables_.find(*bytes));
    } else if (const auto id = found(tables_.find(piece))) {
      return id;
    }
    constexpr uint8_t kNotFound = kTokenPlain | kTokenForeign;  // by their text
    for (int32_t id = 0; id < vocab_size(); ++id) {
      if ((tables_.flags(id) & kNotFound) != 0 && tables_.text(id) == piece) return id;
    }
    return std::nullopt;
  }

  [[nodiscard]] std::string token_bytes(int32_t id) const override {
    std::string bytes;
    Decoder::Stream decoding(pipeline_.decoder, false);
    if (is_printed(id, {})) decoding.push(spelling(id), tables_.flags(id), bytes);
    decoding.finish(bytes);
    return bytes;
  }

  [[nodiscard]] std::unique_ptr<TextStream> stream(bool at_start,
                                                   ShownSpecial shown) const override;

  [[nodiscard]] std::string decode(std::span<const int32_t> ids) const override {
    const auto decoding = stream_from(true, {});
    std::string text;
    for (const int32_t id : ids) text += decoding->push(id);
    return text + decoding->finish();
  }

  [[nodiscard]] bool is_token(int32_t id) const { return id >= 0 && id < vocab_size(); }
  [[nodiscard]] uint8_t flags(int32_t id) const { return tables_.flags(id); }
  [[nodiscard]] const Decoder& decoder() const { return pipeline_.decoder; }
  [[nodiscard]] bool is_printed(int32_t id, const ShownSpecial& shown) const {
    return is_token(id) && ((tables_.flags(id) & kTokenSpecial) == 0 || shown.shows(id)) &&
           !tables_.text(id).empty();
  }
  /// A token as Hugging Face's decoders get it.
  [[nodiscard]] std::string spelling(int32_t id) const {
    if (const auto found = normalized_.find(id); found != normalized_.end()) {
      return std::string(found->second);
    }
    const std::string_view text = tables_.text(id);
    if (pipeline_.byte_level && (tables_.flags(id) & kTokenPlain) == 0) return to_byte_level(text);
    return is_valid_utf8(text) ? std::string(text) : valid_utf8(std::string(text));
  }

 private:
  [[nodiscard]] TextEncoding start(std::string_view text, bool marks) const {
    return {pipeline_, text.size(), marks, check_interrupted_};
  }
  [[nodiscard]] std::unique_ptr<TextStream> stream_from(bool at_start, ShownSpecial shown) const;

  void check_ids(std::string_view where) const {
    const auto check = [&](int32_t id, const char* name) {
      if (is_token(id)) return;
      throw Error(std::string(where) + ": the " + name + " token " + std::to_string(id) +
                  " is not one of the tokenizer's " + std::to_string(vocab_size()) +
                  " tokens; use the model's original tokenizer");
    };
    if (config_.bos) check(*config_.bos, "BOS");
    for (const int32_t id : config_.eos) check(id, "EOS");
    for (const int32_t id : config_.prefix) check(id, "first");
    for (const int32_t id : config_.suffix) check(id, "last");
    for (const int32_t id : config_.between.value_or(std::vector<int32_t>())) check(id, "middle");
  }

  void read_added_tokens() {
    const TableArray<AddedTokenRecord> records(tables_.section(TableSection::added_tokens));
    const std::string_view texts = tables_.section(TableSection::added_texts);
    const auto text = [&](size_t begin, size_t size) {
      return begin > texts.size() ? std::string_view() : texts.substr(begin, size);
    };
    bool strips = false;
    for (size_t i = 0; i < records.size(); ++i) {
      const AddedTokenRecord record = records[i];
      if (!tables_.is_token(record.id)) continue;
      const std::string_view written = text(record.text_begin, record.text_size);
      const std::string_view normalized = text(record.normalized_begin, record.normalized_size);
      added_.emplace(written, record.id);
      strips = strips || (record.flags & (kAddedLstrip | kAddedRstrip)) != 0;
      if (normalized != written && is_valid_utf8(normalized)) {
        normalized_.emplace(record.id, normalized);
      }
    }
    set_bytes_of_a_token(strips);
  }

  // A text of n bytes has at least n / bytes_of_a_token_ tokens.
  void set_bytes_of_a_token(bool strips) {
    bool known = !strips && pipeline_.model->keeps_all_bytes() &&
                 std::all_of(pipeline_.pre_tokenizers.begin(), pipeline_.pre_tokenizers.end(),
                             [](const auto& step) { return step->keeps_all_bytes(); });
    size_t bytes = tables_.longest_token();
    for (const auto& step : pipeline_.normalizers) {
      known = known && step->shrinks_by().has_value();
      if (known) bytes *= *step->shrinks_by();
    }
    if (known) bytes_of_a_token_ = bytes;
  }

  std::string own_tables_;
  TokenizerTables tables_;
  TokenizerConfig config_;
  CheckInterrupted check_interrupted_;
  nlohmann::json json_;
  Pipeline pipeline_;
  std::unordered_map<std::string_view, int32_t> added_;
  std::unordered_map<int32_t, std::string_view>
      normalized_;  // added tokens that are not as written
  size_t bytes_of_a_token_ = std::numeric_limits<size_t>::max();
};

class CompiledTokenizerStream final : public TextStream {
 public:
  CompiledTokenizerStream(const CompiledTokenizer& tokenizer, bool at_start, ShownSpecial shown)
      : tokenizer_(tokenizer), decoding_(tokenizer.decoder(), at_start), shown_(std::move(shown)) {}

  std::string push(int32_t id) override {
    if (!tokenizer_.is_token(id)) return "";
    const size_t before = pending_.size();
    if (tokenizer_.is_printed(id, shown_)) {
      decoding_.push(tokenizer_.spelling(id), tokenizer_.flags(id), pending_);
    }
    return take(tokenizer_.decoder().replaces_bytes() && pending_.size() == before);
  }
  std::string finish() override {
    decoding_.finish(pending_);
    return take(true);
  }
  [[nodiscard]] std::unique_ptr<TextStream> clone() const override {
    return std::make_unique<CompiledTokenizerStream>(*this);
  }

 private:
  // What of pending_ is decided; `all`: nothing comes after it.
  std::string take(bool all) {
    if (!tokenizer_.decoder().replaces_bytes()) return take_characters(pending_, all);
    return all ? valid_utf8(std::exchange(pending_, {})) : take_utf8(pending_);
  }

  const CompiledTokenizer& tokenizer_;
  Decoder::Stream decoding_;
  ShownSpecial shown_;
  std::string pending_;  // an incomplete character
};

std::unique_ptr<TextStream> CompiledTokenizer::stream(bool at_start, ShownSpecial shown) const {
  return stream_from(at_start && !config_.keep_leading_space, std::move(shown));
}

std::unique_ptr<TextStream> CompiledTokenizer::stream_from(bool at_start,
                                                           ShownSpecial shown) const {
  return std::make_unique<CompiledTokenizerStream>(*this, at_start, std::move(shown));
}

}  // namespace

std::unique_ptr<Tokenizer> make_compiled_tokenizer(std::span<const std::byte> tables,
                                                   const TokenizerConfig& config,
                                                   std::string_view where,
                                                   CheckInterrupted check_interrupted) {
  return std::make_unique<CompiledTokenizer>(tables, config, where, std::move(check_interrupted));
}

std::unique_ptr<Tokenizer> make_compiled_tokenizer(std::string tables,
                                                   const TokenizerConfig& config,
                                                   std::string_view where,
                                                   CheckInterrupted check_interrupted) {
  return std::make_unique<CompiledTokenizer>(std::move(tables), config, where,
                                             std::move(check_interrupted));
}

}  // namespace faststream
