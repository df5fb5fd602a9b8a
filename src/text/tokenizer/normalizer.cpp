#include "text/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "support/error.h"
#include "support/printable.h"
#include "support/utf8.h"
#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/charsmap.h"
#include "text/tokenizer/tables.h"
#include "text/tokenizer/unicode.h"
#include "text/tokenizer_description.h"

namespace faststream {
namespace {

template <typename Use>
void for_each_character(std::string_view text, Use&& use) {
  for (size_t at = 0; at < text.size();) {
    const Character c = character_at(text, at);
    use(c.code, text.substr(at, c.size));
    at += c.size;
  }
}

/// Keeps the characters that `keep` says yes to.
template <typename Keep>
void filter(NormalizedText& text, Keep&& keep) {
  std::string kept;
  kept.reserve(text.text.size());
  bool first = true;
  for_each_character(text.text, [&](uint32_t code, std::string_view character) {
    if (keep(code)) {
      kept += character;
    } else if (first) {
      text.at_start = false;
    }
    first = false;
  });
  text.text = std::move(kept);
}

class FormNormalizer final : public Normalizer {
 public:
  explicit FormNormalizer(NormalForm form) : form_(form) {}
  void normalize(NormalizedText& text, TokenizerBudget& /*budget*/) const override {
    if (!is_ascii(text.text)) text.text = normal_form(text.text, form_);
  }
  // Canonical composition makes 3 bytes of 9 at best, and a compatibility mapping 1 of 4.
  [[nodiscard]] std::optional<size_t> shrinks_by() const override { return 4; }

 private:
  NormalForm form_;
};

void lower_case(std::string& text) {
  if (is_ascii(text)) {
    for (char& c : text) {
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c | 0x20);
    }
    return;
  }
  std::string lower;
  lower.reserve(text.size());
  for_each_character(text,
                     [&](uint32_t code, std::string_view) { append_lower_case(lower, code); });
  text = std::move(lower);
}

class LowercaseNormalizer final : public Normalizer {
 public:
  void normalize(NormalizedText& text, TokenizerBudget& /*budget*/) const override {
    lower_case(text.text);
  }
};

class StripNormalizer final : public Normalizer {
 public:
  explicit StripNormalizer(const JsonView& description)
      : left_(description.get<bool>("strip_left")), right_(description.get<bool>("strip_right")) {}

  void normalize(NormalizedText& text, TokenizerBudget& /*budget*/) const override {
    const std::string_view all = text.text;
    size_t begin = 0;
    size_t kept_to = 0;  // where the last character that is no space ends
    bool before = true;
    for (size_t at = 0; at < all.size();) {
      const Character c = character_at(all, at);
      const bool space = is_whitespace(c.code);
      at += c.size;
      if (!space) kept_to = at;
      before = before && space;
      if (before) begin = at;
    }
    if (!left_ || text.continues) begin = 0;
    const size_t end = right_ ? std::max(kept_to, begin) : all.size();
    text.at_start = text.at_start && begin == 0;
    text.text = all.substr(begin, end - begin);
  }

 private:
  bool left_;
  bool right_;
};

class StripAccentsNormalizer final : public Normalizer {
 public:
  void normalize(NormalizedText& text, TokenizerBudget& /*budget*/) const override {
    if (!is_ascii(text.text)) filter(text, [](uint32_t code) { return !is_mark(code); });
  }
};

class NmtNormalizer final : public Normalizer {
 public:
  void normalize(NormalizedText& text, TokenizerBudget& /*budget*/) const override {
    filter(text, [](uint32_t code) {
      return !((code >= 0x01 && code <= 0x08) || code == 0x0B || (code >= 0x0E && code <= 0x1F) ||
               code == 0x7F || code == 0x8F || code == 0x9F);
    });
    std::string spaced;
    spaced.reserve(text.text.size());
    for_each_character(text.text, [&](uint32_t code, std::string_view character) {
      const bool space = code == 0x09 || code == 0x0A || code == 0x0C || code == 0x0D ||
                         code == 0x1680 || (code >= 0x200B && code <= 0x200F) || code == 0x2028 ||
                         code == 0x2029 || code == 0x2581 || code == 0xFEFF || code == 0xFFFD;
      spaced += space ? " " : character;
    });
    text.text = std::move(spaced);
  }
};

class ReplaceNormalizer final : public Normalizer {
 public:
  explicit ReplaceNormalizer(const JsonView& description)
      : pattern_(description.member("pattern")),
        content_(description.get<std::string>("content")) {}
  void normalize(NormalizedText& text, TokenizerBudget& budget) const override {
    if (content_.empty() && text.at_start) {
      pattern_.find_all(text.text, budget, [&](size_t begin, size_t end) {
        if (begin == 0 && end > 0) text.at_start = false;
      });
    }
    text.text = replace_all(text.text, pattern_, content_, budget);
  }
  [[nodiscard]] std::optional<size_t> shrinks_by() const override {
    if (pattern_.longest() <= content_.size()) return 1;
    return std::nullopt;
  }

 private:
  TextOrPattern pattern_;
  std::string content_;
};

class PrependNormalizer final : public Normalizer {
 public:
  explicit PrependNormalizer(const JsonView& description)
      : prepend_(description.get<std::string>("prepend")) {}
  void normalize(NormalizedText& text, TokenizerBudget& /*budget*/) const override {
    if (!text.text.empty() && !text.continues) text.text.insert(0, prepend_);
  }
  [[nodiscard]] std::optional<size_t> shrinks_by() const override { return 1; }

 private:
  std::string prepend_;
};

class ByteLevelNormalizer final : public Normalizer {
 public:
  void normalize(NormalizedText& text, TokenizerBudget& /*budget*/) const override {
    text.text = to_byte_level(text.text);
  }
  [[nodiscard]] std::optional<size_t> shrinks_by() const override { return 1; }
};

// As the blocks are listed in BERT's own tokenizer, and here.
bool is_chinese(uint32_t code) {
  constexpr std::array<std::pair<uint32_t, uint32_t>, 8> kBlocks = {{{0x4E00, 0x9FFF},
                                                                     {0x3400, 0x4DBF},
                                                                     {0x20000, 0x2A6DF},
                                                                     {0x2A700, 0x2B73F},
                                                                     {0x2B740, 0x2B81F},
                                                                     {0x2B920, 0x2CEAF},
                                                                     {0xF900, 0xFAFF},
                                                                     {0x2F800, 0x2FA1F}}};
  return std::any_of(kBlocks.begin(), kBlocks.end(), [code](const auto& block) {
    return code >= block.first && code <= block.second;
  });
}

class BertNormalizer final : public Normalizer {
 public:
  explicit BertNormalizer(const JsonView& description)
      : clean_(description.get<bool>("clean_text")),
        chinese_(description.get<bool>("handle_chinese_chars")),
        lower_(description.get<bool>("lowercase")),
        accents_(description.get<bool>("strip_accents", lower_)) {}

  void normalize(NormalizedText& text, TokenizerBudget& /*budget*/) const override {
    if (clean_) clean(text);
    if (chinese_ && !is_ascii(text.text)) {
      std::string spaced;
      for_each_character(text.text, [&](uint32_t code, std::string_view character) {
        if (is_chinese(code)) {
          spaced += ' ';
          spaced += character;
          spaced += ' ';
        } else {
          spaced += character;
        }
      });
      text.text = std::move(spaced);
    }
    if (accents_ && !is_ascii(text.text)) {
      text.text = normal_form(text.text, NormalForm::nfd);
      filter(text, [](uint32_t code) { return !is_nonspacing_mark(code); });
    }
    if (lower_) lower_case(text.text);
  }

 private:
  static void clean(NormalizedText& text) {
    filter(text, [](uint32_t code) {
      return code != 0 && code != 0xFFFD &&
             (code == '\t' || code == '\n' || code == '\r' || !is_other(code));
    });
    std::string spaced;
    spaced.reserve(text.text.size());
    for_each_character(text.text, [&](uint32_t code, std::string_view character) {
      spaced += is_whitespace(code) ? " " : character;
    });
    text.text = std::move(spaced);
  }

  bool clean_;
  bool chinese_;
  bool lower_;
  bool accents_;
};

/// SentencePiece's rules as Hugging Face applies them: to a grapheme of up to 5 bytes the rule for
/// its shortest beginning, and else to each of its characters.
class PrecompiledNormalizer final : public Normalizer {
 public:
  PrecompiledNormalizer(const JsonView& description, std::string_view charsmap) : rules_(charsmap) {
    if (rules_.empty()) description.fail("has no normalization rules in \"precompiled_charsmap\"");
  }

  void normalize(NormalizedText& text, TokenizerBudget& budget) const override {
    const std::string_view all = text.text;
    std::string mapped;
    mapped.reserve(all.size());
    for (size_t at = 0; at < all.size();) {
      const size_t size = grapheme_size(all.substr(at));
      const std::string_view grapheme = all.substr(at, size);
      at += size;
      constexpr size_t kLongestWhole = 5;
      if (size <= kLongestWhole) {
        if (const auto rule = find(grapheme)) {
          mapped += *rule;
          budget.check_size(mapped.size());
          continue;
        }
      }
      for_each_character(grapheme, [&](uint32_t, std::string_view character) {
        mapped += find(character).value_or(character);
      });
      budget.check_size(mapped.size());
    }
    if (!all.empty() && mapped.empty()) text.at_start = false;
    text.text = std::move(mapped);
  }

 private:
  static size_t grapheme_size(std::string_view text) {
    Character c = character_at(text, 0);
    size_t size = c.size;
    utf8proc_int32_t state = 0;
    while (size < text.size()) {
      const Character next = character_at(text, size);
      if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(c.code),
                                           static_cast<utf8proc_int32_t>(next.code), &state) != 0) {
        break;
      }
      size += next.size;
      c = next;
    }
    return size;
  }

  [[nodiscard]] std::optional<std::string_view> find(std::string_view text) const {
    std::optional<std::string_view> rule;
    rules_.search(text.substr(0, text.find('\0')), [&](size_t, std::string_view output) {
      rule = output;
      return false;
    });
    return rule;
  }

  Charsmap rules_;
};

/// A text as SentencePiece's normalizer.cc (0.1.97 to 0.2.0) writes it: symbols stay as they are,
/// else the rule for the longest beginning counts; then the space before a text, and what becomes
/// of others. Rules are for bytes as they were written: U+FFFD for those that are no character is
/// not subject to them.
class SentencePieceNormalizer final : public Normalizer {
 public:
  SentencePieceNormalizer(const JsonView& description, const NormalizerTables& tables)
      : rules_(tables.charsmap),
        symbols_(tables.symbols),
        adds_space_(description.get<bool>("add_dummy_prefix")),
        at_end_(description.get<bool>("treat_whitespace_as_suffix")),
        removes_(description.get<bool>("remove_extra_whitespaces")),
        space_(description.get<bool>("escape_whitespaces") ? kSpaceSymbol : " ") {}

  void normalize(NormalizedText& text, TokenizerBudget& budget) const override {
    const bool continues = text.continues || text.own_space;
    const bool removes = removes_ && !continues;
    const bool adds_space = adds_space_ && !continues;
    std::string_view rest = text.text;
    if (removes) skip_spaces(rest, text.marks);
    std::string made;
    if (!rest.empty()) {
      made.reserve(rest.size() + rest.size() / 2);
      if (adds_space && !at_end_) made = space_;
      bool after_space = removes;
      while (!rest.empty()) {
        std::string_view output = take(rest, text.marks);
        while (after_space && output.starts_with(' ')) output.remove_prefix(1);
        if (output.empty()) continue;
        after_space = removes && output.ends_with(' ');
        add(output, made);
        budget.check_size(made.size());
      }
      while (removes && made.ends_with(space_)) made.resize(made.size() - space_.size());
      if (adds_space && at_end_) made += space_;
    }
    text.text = std::move(made);
  }
  [[nodiscard]] bool takes_bytes() const override { return true; }
  [[nodiscard]] std::optional<size_t> shrinks_by() const override {
    if (removes_ || !rules_.empty()) return std::nullopt;
    return 1;
  }

 private:
  // What the first characters of `rest` become, which are taken from it.
  std::string_view take(std::string_view& rest, bool marks) const {
    std::string_view output;
    size_t size = symbols_ == nullptr ? 0 : symbols_->find(rest, marks).size;
    if (size > 0) {
      output = rest.substr(0, size);
    } else {
      rules_.search(rest, [&](size_t length, std::string_view replacement) {
        size = length;
        output = replacement;
        return true;
      });
    }
    if (size == 0) {
      const int length = utf8_character(rest);
      size = length > 0 ? static_cast<size_t>(length) : 1;
      output = length > 0 ? rest.substr(0, size) : kReplacementCharacter;
    }
    rest.remove_prefix(size);
    return output;
  }

  void skip_spaces(std::string_view& rest, bool marks) const {
    while (!rest.empty()) {
      std::string_view after = rest;
      if (take(after, marks) != " ") return;
      rest = after;
    }
  }

  void add(std::string_view output, std::string& made) const {
    for (const char c : output) {
      if (c == ' ') {
        made += space_;
      } else {
        made += c;
      }
    }
  }

  Charsmap rules_;
  const SymbolFinder* symbols_;
  bool adds_space_;
  bool at_end_;  // that space comes after the text
  bool removes_;
  std::string_view space_;
};

}  // namespace

TextOrPattern::TextOrPattern(const JsonView& description) {
  if (const auto text = description.find("String")) {
    text_ = text->as<std::string>();
    if (text_.empty()) text->fail("is empty");
    return;
  }
  const JsonView regex = description.member("Regex");
  try {
    pattern_ = std::make_unique<const Pattern>(regex.as<std::string>(), "tokenizer");
  } catch (const Error& error) {
    regex.fail(std::string("is not supported (") + error.what() + ")");
  }
}

void TextOrPattern::find_all(std::string_view text, TokenizerBudget& budget,
                             const Pattern::OnMatch& on_match) const {
  if (pattern_) return pattern_->find_all(text, budget, on_match);
  for (size_t at = text.find(text_); at != std::string_view::npos;
       at = text.find(text_, at + text_.size())) {
    on_match(at, at + text_.size());
  }
}

std::string replace_all(std::string_view text, const TextOrPattern& pattern,
                        std::string_view content, TokenizerBudget& budget) {
  std::string replaced;
  replaced.reserve(text.size() + text.size() / 2);
  size_t done = 0;
  pattern.find_all(text, budget, [&](size_t begin, size_t end) {
    replaced += text.substr(done, begin - done);
    replaced += content;
    budget.check_size(replaced.size());
    done = end;
  });
  replaced += text.substr(done);
  return replaced;
}

void normalize(const Normalizers& steps, NormalizedText& text, TokenizerBudget& budget) {
  for (const auto& step : steps) {
    budget.take(text.text.size());
    step->normalize(text, budget);
    budget.check_size(text.text.size());
  }
}

Normalizers make_normalizers(const JsonView& normalizer, const NormalizerTables& tables) {
  Normalizers steps;
  const auto type = normalizer.get<std::string>("type");
  const auto add = [&](auto step) { steps.push_back(std::move(step)); };
  if (type == "Sequence") {
    for (const JsonView& step : normalizer.member("normalizers").elements()) {
      for (auto& part : make_normalizers(step, tables)) add(std::move(part));
    }
  } else if (type == "NFC") {
    add(std::make_unique<FormNormalizer>(NormalForm::nfc));
  } else if (type == "NFD") {
    add(std::make_unique<FormNormalizer>(NormalForm::nfd));
  } else if (type == "NFKC") {
    add(std::make_unique<FormNormalizer>(NormalForm::nfkc));
  } else if (type == "NFKD") {
    add(std::make_unique<FormNormalizer>(NormalForm::nfkd));
  } else if (type == "Lowercase") {
    add(std::make_unique<LowercaseNormalizer>());
  } else if (type == "Strip") {
    add(std::make_unique<StripNormalizer>(normalizer));
  } else if (type == "StripAccents") {
    add(std::make_unique<StripAccentsNormalizer>());
  } else if (type == "Nmt") {
    add(std::make_unique<NmtNormalizer>());
  } else if (type == "Replace") {
    add(std::make_unique<ReplaceNormalizer>(normalizer));
  } else if (type == "Prepend") {
    add(std::make_unique<PrependNormalizer>(normalizer));
  } else if (type == "ByteLevel") {
    add(std::make_unique<ByteLevelNormalizer>());
  } else if (type == "BertNormalizer" || type == "Bert") {
    add(std::make_unique<BertNormalizer>(normalizer));
  } else if (type == "Precompiled") {
    add(std::make_unique<PrecompiledNormalizer>(normalizer, tables.charsmap));
  } else if (type == "SentencePiece") {
    add(std::make_unique<SentencePieceNormalizer>(normalizer, tables));
  } else {
    normalizer.member("type").fail("is the normalizer " + in_quotes(type) +
                                   ", which is not supported");
  }
  return steps;
}

}  // namespace faststream
