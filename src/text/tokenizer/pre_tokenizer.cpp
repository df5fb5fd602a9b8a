#include "text/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "support/printable.h"
#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/unicode.h"

namespace faststream {
namespace {

/// What becomes of matches, by the names of tokenizer.json.
enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

Behavior behavior_from_json(const JsonView& json) {
  const auto name = json.as<std::string>();
  if (name == "Removed") return Behavior::removed;
  if (name == "Isolated") return Behavior::isolated;
  if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (name == "MergedWithNext") return Behavior::merged_with_next;
  if (name == "Contiguous") return Behavior::contiguous;
  json.fail("is " + in_quotes(name) + ", which is not supported");
}

/// Makes pieces of the ranges of a text, which come in order and cover it: matches and others.
class Splitter {
 public:
  Splitter(const Piece& whole, Behavior behavior, const OnPiece& on_piece)
      : whole_(whole), behavior_(behavior), on_piece_(on_piece) {}

  void add(size_t begin, size_t end, bool is_match) {
    const bool after_match = std::exchange(after_match_, is_match);
    switch (behavior_) {
      case Behavior::removed:
        if (!is_match) emit(begin, end);
        return;
      case Behavior::isolated:
        emit(begin, end);
        return;
      case Behavior::contiguous:
        return hold(begin, end, is_match == after_match);
      case Behavior::merged_with_previous:
        return hold(begin, end, is_match && !after_match);
      case Behavior::merged_with_next:
        return hold(begin, end, !is_match && after_match);
    }
  }
  void finish() {
    if (held_) emit(held_->first, held_->second);
  }

 private:
  // Keeps a range until it is known whether the next one belongs to it.
  void hold(size_t begin, size_t end, bool joins_last) {
    if (held_ && joins_last) {
      held_->second = end;
      return;
    }
    if (held_) emit(held_->first, held_->second);
    held_ = {begin, end};
  }

  void emit(size_t begin, size_t end) {
    if (begin == end) return;
    on_piece_({.text = whole_.text.substr(begin, end - begin),
               .at_start = whole_.at_start && begin == 0,
               .continues = whole_.continues && begin == 0});
  }

  const Piece& whole_;
  Behavior behavior_;
  const OnPiece& on_piece_;
  bool after_match_ = false;
  std::optional<std::pair<size_t, size_t>> held_;
};

/// Splits at characters that `is_match` says yes to.
template <typename IsMatch>
void split_characters(const Piece& piece, Behavior behavior, const OnPiece& on_piece,
                      IsMatch&& is_match) {
  Splitter splitter(piece, behavior, on_piece);
  size_t done = 0;
  for (size_t at = 0; at < piece.text.size();) {
    const Character c = character_at(piece.text, at);
    const size_t end = at + c.size;
    if (is_match(c.code)) {
      if (done < at) splitter.add(done, at, false);
      splitter.add(at, end, true);
      done = end;
    }
    at = end;
  }
  if (done < piece.text.size()) splitter.add(done, piece.text.size(), false);
  splitter.finish();
}

template <typename Matches>
void split_matches(const Piece& piece, Behavior behavior, bool invert, const OnPiece& on_piece,
                   Matches&& matches) {
  Splitter splitter(piece, behavior, on_piece);
  size_t done = 0;
  matches([&](size_t begin, size_t end) {
    if (done != begin) splitter.add(done, begin, invert);
    splitter.add(begin, end, !invert);
    done = end;
  });
  if (done != piece.text.size()) splitter.add(done, piece.text.size(), invert);
  splitter.finish();
}

class SplitPreTokenizer final : public PreTokenizer {
 public:
  explicit SplitPreTokenizer(const JsonView& description)
      : pattern_(description.member("pattern")),
        behavior_(behavior_from_json(description.member("behavior"))),
        invert_(description.get<bool>("invert")) {}

  void split(const Piece& piece, TokenizerBudget& budget, const OnPiece& on_piece) const override {
    split_matches(piece, behavior_, invert_, on_piece, [&](const Pattern::OnMatch& on_match) {
      pattern_.find_all(piece.text, budget, on_match);
    });
  }
  [[nodiscard]] bool keeps_all_bytes() const override { return behavior_ != Behavior::removed; }

 private:
  TextOrPattern pattern_;
  Behavior behavior_;
  bool invert_;
};

class ByteLevelPreTokenizer final : public PreTokenizer {
 public:
  ByteLevelPreTokenizer(const JsonView& description, bool keep_bytes)
      : add_space_(description.get<bool>("add_prefix_space")), keep_bytes_(keep_bytes) {
    if (description.get("use_regex", true)) pattern_.emplace(kGpt2, "tokenizer");
  }

  void split(const Piece& given, TokenizerBudget& budget, const OnPiece& on_piece) const override {
    Piece piece = given;
    std::string with_space;
    if (add_space_ && !piece.continues && !piece.text.starts_with(' ')) {
      with_space = ' ';
      with_space += piece.text;
      piece.text = with_space;
    }
    const OnPiece on_characters = [&](const Piece& part) {
      const std::string characters = to_byte_level(part.text);
      Piece written = part;
      written.text = characters;
      on_piece(written);
    };
    const OnPiece& put = keep_bytes_ ? on_piece : on_characters;
    if (!pattern_) return put(piece);
    split_matches(piece, Behavior::isolated, false, put, [&](const Pattern::OnMatch& on_match) {
      pattern_->find_all(piece.text, budget, on_match);
    });
  }

 private:
  // https://github.com/openai/gpt-2/blob/master/src/encoder.py
  static constexpr std::string_view kGpt2 =
      R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

  bool add_space_;
  bool keep_bytes_;
  std::optional<Pattern> pattern_;
};

uint32_t one_character(const JsonView& json) {
  const auto text = json.as<std::string>();
  if (text.empty() || character_at(text, 0).size != text.size()) json.fail("is not one character");
  return character_at(text, 0).code;
}

class MetaspacePreTokenizer final : public PreTokenizer {
 public:
  explicit MetaspacePreTokenizer(const JsonView& description)
      : code_(one_character(description.member("replacement"))),
        symbol_(description.get<std::string>("replacement")),
        splits_(description.get("split", true)) {
    const auto scheme = description.get<std::string>("prepend_scheme", "always");
    if (scheme != "always" && scheme != "first" && scheme != "never") {
      description.member("prepend_scheme").fail("is not always, first or never");
    }
    const bool prepends = description.get("add_prefix_space", true) && scheme != "never";
    always_ = prepends && scheme == "always";
    first_ = prepends && scheme == "first";
  }

  void split(const Piece& given, TokenizerBudget& /*budget*/,
             const OnPiece& on_piece) const override {
    std::string text;
    text.reserve(given.text.size() + symbol_.size());
    const bool has_symbol = given.text.starts_with(symbol_) || given.text.starts_with(' ');
    if (!has_symbol && !given.continues && (always_ || (first_ && given.at_start))) text = symbol_;
    for (size_t at = 0; at < given.text.size();) {
      const size_t space = std::min(given.text.find(' ', at), given.text.size());
      text += given.text.substr(at, space - at);
      if (space < given.text.size()) text += symbol_;
      at = space + 1;
    }
    Piece piece = given;
    piece.text = text;
    if (!splits_) return on_piece(piece);
    split_characters(piece, Behavior::merged_with_next, on_piece,
                     [&](uint32_t code) { return code == code_; });
  }

 private:
  uint32_t code_;
  std::string symbol_;
  bool splits_;
  bool always_ = false;
  bool first_ = false;
};

/// A rule about characters, without settings of its own.
class CharacterPreTokenizer final : public PreTokenizer {
 public:
  using IsMatch = std::function<bool(uint32_t)>;
  CharacterPreTokenizer(IsMatch is_match, Behavior behavior)
      : is_match_(std::move(is_match)), behavior_(behavior) {}
  void split(const Piece& piece, TokenizerBudget& /*budget*/,
             const OnPiece& on_piece) const override {
    split_characters(piece, behavior_, on_piece, is_match_);
  }
  [[nodiscard]] bool keeps_all_bytes() const override { return behavior_ != Behavior::removed; }

 private:
  IsMatch is_match_;
  Behavior behavior_;
};

/// \w+|[^\w\s]+
class WhitespacePreTokenizer final : public PreTokenizer {
 public:
  void split(const Piece& piece, TokenizerBudget& /*budget*/,
             const OnPiece& on_piece) const override {
    enum class Kind { space, word, other };
    const auto kind_of = [](uint32_t code) {
      return is_word(code) ? Kind::word : is_whitespace(code) ? Kind::space : Kind::other;
    };
    Splitter splitter(piece, Behavior::removed, on_piece);
    for (size_t begin = 0; begin < piece.text.size();) {
      const Character first = character_at(piece.text, begin);
      const Kind kind = kind_of(first.code);
      size_t end = begin + first.size;
      while (end < piece.text.size()) {
        const Character c = character_at(piece.text, end);
        if (kind_of(c.code) != kind) break;
        end += c.size;
      }
      splitter.add(begin, end, kind == Kind::space);
      begin = end;
    }
    splitter.finish();
  }
  [[nodiscard]] bool keeps_all_bytes() const override { return false; }
};

class FixedLengthPreTokenizer final : public PreTokenizer {
 public:
  explicit FixedLengthPreTokenizer(const JsonView& description)
      : length_(description.find("length") ? description.member("length").as<int64_t>(1, 1 << 30)
                                           : 5) {}
  void split(const Piece& piece, TokenizerBudget& /*budget*/,
             const OnPiece& on_piece) const override {
    Splitter splitter(piece, Behavior::isolated, on_piece);
    for (size_t begin = 0; begin < piece.text.size();) {
      size_t end = begin;
      for (int64_t n = 0; n < length_ && end < piece.text.size(); ++n) {
        end += character_at(piece.text, end).size;
      }
      splitter.add(begin, end, false);
      begin = end;
    }
    splitter.finish();
  }

 private:
  int64_t length_;
};

/// Runs of one script, a space and what has none being of any; Japanese counts as Han. What comes
/// before the first character with a script is lost.
class UnicodeScriptsPreTokenizer final : public PreTokenizer {
 public:
  UnicodeScriptsPreTokenizer() : pattern_(all_scripts(), "tokenizer") {}
  void split(const Piece& piece, TokenizerBudget& budget, const OnPiece& on_piece) const override {
    split_matches(piece, Behavior::removed, true, on_piece, [&](const Pattern::OnMatch& on_match) {
      pattern_.find_all(piece.text, budget, on_match);
    });
  }
  [[nodiscard]] bool keeps_all_bytes() const override { return false; }

 private:
  static std::string all_scripts();

  Pattern pattern_;
};

// The scripts of SentencePiece's table (Unicode 9).
constexpr std::string_view kScripts =
    "Adlam Ahom Anatolian_Hieroglyphs Arabic Armenian Avestan Balinese Bamum Bassa_Vah Batak "
    "Bengali Bhaiksuki Bopomofo Brahmi Braille Buginese Buhid Canadian_Aboriginal Carian "
    "Caucasian_Albanian Chakma Cham Cherokee Common Coptic Cuneiform Cypriot Cyrillic Deseret "
    "Devanagari Duployan Egyptian_Hieroglyphs Elbasan Ethiopic Georgian Glagolitic Gothic "
    "Grantha Greek Gujarati Gurmukhi Hangul Hanunoo Hatran Hebrew Imperial_Aramaic Inherited "
    "Inscriptional_Pahlavi Inscriptional_Parthian Javanese Kaithi Kannada Kayah_Li Kharoshthi "
    "Khmer Khojki Khudawadi Lao Latin Lepcha Limbu Linear_A Linear_B Lisu Lycian Lydian "
    "Mahajani Malayalam Mandaic Manichaean Marchen Meetei_Mayek Mende_Kikakui Meroitic_Cursive "
    "Meroitic_Hieroglyphs Miao Modi Mongolian Mro Multani Myanmar Nabataean New_Tai_Lue Newa "
    "Nko Ogham Ol_Chiki Old_Hungarian Old_Italic Old_North_Arabian Old_Permic Old_Persian "
    "Old_South_Arabian Old_Turkic Oriya Osage Osmanya Pahawh_Hmong Palmyrene Pau_Cin_Hau "
    "Phags_Pa Phoenician Psalter_Pahlavi Rejang Runic Samaritan Saurashtra Sharada Shavian "
    "Siddham SignWriting Sinhala Sora_Sompeng Sundanese Syloti_Nagri Syriac Tagalog Tagbanwa "
    "Tai_Le Tai_Tham Tai_Viet Takri Tamil Tangut Telugu Thaana Thai Tibetan Tifinagh Tirhuta "
    "Ugaritic Vai Warang_Citi Yi";

// Later ones, which have none there.
constexpr std::string_view kLaterScripts =
    "Chorasmian Cypro_Minoan Dives_Akuru Dogra Elymaic Gunjala_Gondi Hanifi_Rohingya "
    "Khitan_Small_Script Makasar Masaram_Gondi Medefaidrin Nandinagari Nushu "
    "Nyiakeng_Puachue_Hmong Old_Sogdian Old_Uyghur Sogdian Soyombo Tangsa Toto Unknown Vithkuqi "
    "Wancho Yezidi Zanabazar_Square";

template <typename Use>
void for_each_name(std::string_view names, Use&& use) {
  while (!names.empty()) {
    const size_t end = std::min(names.find(' '), names.size());
    use(names.substr(0, end));
    names.remove_prefix(std::min(end + 1, names.size()));
  }
}

std::string UnicodeScriptsPreTokenizer::all_scripts() {
  const auto script = [](std::string_view name) {
    return R"(\p{Script:)" + std::string(name) + "}";
  };
  std::string any = " ";
  for_each_name(kLaterScripts, [&](std::string_view name) { any += script(name); });
  const std::string han = script("Han") + script("Hiragana") + script("Katakana") + R"(\x{30FC})";
  std::string pattern = "[" + han + "][" + any + han + "]*";
  for_each_name(kScripts, [&](std::string_view name) {
    // The long vowel mark counts as Han and the space as any, though both are Common.
    const bool common = name == "Common";
    const std::string one = "[" + script(name) + (common ? R"(&&[^ \x{30FC}]])" : "]");
    const std::string more =
        common ? "(?:" + one + "|[" + any + "])*" : "[" + any + script(name) + "]*";
    pattern += "|" + one + more;
  });
  return pattern;
}

}  // namespace

PreTokenizers make_pre_tokenizers(const JsonView& pre_tokenizer, bool keep_bytes) {
  PreTokenizers steps;
  const auto type = pre_tokenizer.get<std::string>("type");
  const auto add = [&](auto step) { steps.push_back(std::move(step)); };
  const auto add_characters = [&](CharacterPreTokenizer::IsMatch is_match, Behavior behavior) {
    steps.push_back(std::make_unique<CharacterPreTokenizer>(std::move(is_match), behavior));
  };
  if (type == "Sequence") {
    const std::vector<JsonView> parts = pre_tokenizer.member("pretokenizers").elements();
    for (size_t i = 0; i < parts.size(); ++i) {
      for (auto& step : make_pre_tokenizers(parts[i], keep_bytes && i + 1 == parts.size())) {
        add(std::move(step));
      }
    }
  } else if (type == "ByteLevel") {
    add(std::make_unique<ByteLevelPreTokenizer>(pre_tokenizer, keep_bytes));
  } else if (type == "Split") {
    add(std::make_unique<SplitPreTokenizer>(pre_tokenizer));
  } else if (type == "Whitespace") {
    add(std::make_unique<WhitespacePreTokenizer>());
  } else if (type == "WhitespaceSplit") {
    add_characters(is_whitespace, Behavior::removed);
  } else if (type == "Metaspace") {
    add(std::make_unique<MetaspacePreTokenizer>(pre_tokenizer));
  } else if (type == "Digits") {
    add_characters(is_numeric, pre_tokenizer.get<bool>("individual_digits") ? Behavior::isolated
                                                                            : Behavior::contiguous);
  } else if (type == "Punctuation") {
    const auto behavior = pre_tokenizer.find("behavior");
    add_characters(is_punctuation, behavior ? behavior_from_json(*behavior) : Behavior::isolated);
  } else if (type == "BertPreTokenizer") {
    add_characters(is_whitespace, Behavior::removed);
    add_characters(is_punctuation, Behavior::isolated);
  } else if (type == "CharDelimiterSplit" || type == "Delimiter") {
    const uint32_t delimiter = one_character(pre_tokenizer.member("delimiter"));
    add_characters([delimiter](uint32_t code) { return code == delimiter; }, Behavior::removed);
  } else if (type == "UnicodeScripts") {
    add(std::make_unique<UnicodeScriptsPreTokenizer>());
  } else if (type == "FixedLength") {
    add(std::make_unique<FixedLengthPreTokenizer>(pre_tokenizer));
  } else {
    pre_tokenizer.member("type").fail("is the pre-tokenizer " + in_quotes(type) +
                                      ", which is not supported");
  }
  return steps;
}

bool ends_in_byte_level(const JsonView& pre_tokenizer) {
  const auto type = pre_tokenizer.get<std::string>("type");
  if (type != "Sequence") return type == "ByteLevel";
  const std::vector<JsonView> parts = pre_tokenizer.member("pretokenizers").elements();
  return !parts.empty() && ends_in_byte_level(parts.back());
}

}  // namespace faststream
