// WordPiece (Schuster and Nakajima, 2012; BERT): the longest token again and again; and WordLevel:
// words are tokens.
#include <nlohmann/json.hpp>
#include <string>

#include "support/error.h"
#include "text/tokenizer/token_model.h"
#include "text/tokenizer/unicode.h"

namespace faststream {
namespace {

void add_unknown_word(int32_t unknown, std::vector<int32_t>& ids) {
  if (unknown == TokenizerTables::kNone) {
    throw Error(
        "the text has a word that the tokenizer does not know, and it has no token for unknown "
        "ones; use the model's original tokenizer");
  }
  ids.push_back(unknown);
}

struct WordPieceSettings {
  TableTrie first;
  TableTrie others;  // without their prefix
  int32_t unknown = TokenizerTables::kNone;
  int64_t longest = 0;  // characters of a word that is not unknown
};

class WordPieceEncoder final : public WordEncoder {
 public:
  explicit WordPieceEncoder(const WordPieceSettings& settings) : settings_(settings) {}

  void encode(std::string_view word, std::vector<int32_t>& ids) override {
    const size_t before = ids.size();
    bool known = count_characters(word) <= settings_.longest;
    for (size_t at = 0; known && at < word.size();) {
      size_t longest = 0;
      int32_t id = TokenizerTables::kNone;
      const TableTrie& trie = at == 0 ? settings_.first : settings_.others;
      trie.search(word.substr(at), [&](size_t length, int32_t token) {
        longest = length;
        id = token;
      });
      known = longest > 0;
      if (known) ids.push_back(id);
      at += longest;
    }
    if (known) return;
    ids.resize(before);
    add_unknown_word(settings_.unknown, ids);
  }

 private:
  static int64_t count_characters(std::string_view word) {
    int64_t n = 0;
    for (const char byte : word) n += (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U ? 1 : 0;
    return n;
  }

  const WordPieceSettings& settings_;
};

class WordPieceModel final : public TokenModel {
 public:
  WordPieceModel(const JsonView& model, const TokenizerTables& tables) {
    settings_.first = TableTrie(tables.section(TableSection::trie));
    settings_.others = TableTrie(tables.section(TableSection::continuations));
    settings_.unknown = tables.find(model.get<std::string>("unk_token"));
    settings_.longest = model.member("max_input_chars_per_word").as<int64_t>(0, kMaxCharacters);
  }
  [[nodiscard]] std::unique_ptr<WordEncoder> start(bool /*marks*/,
                                                   TokenizerBudget& /*budget*/) const override {
    return std::make_unique<WordPieceEncoder>(settings_);
  }
  [[nodiscard]] bool keeps_all_bytes() const override { return false; }

 private:
  static constexpr int64_t kMaxCharacters = int64_t{1} << 30;

  WordPieceSettings settings_;
};

class WordLevelEncoder final : public WordEncoder {
 public:
  WordLevelEncoder(const TokenizerTables& tables, int32_t unknown)
      : tables_(tables), unknown_(unknown) {}
  void encode(std::string_view word, std::vector<int32_t>& ids) override {
    const int32_t id = tables_.find(word);
    if (id == TokenizerTables::kNone) return add_unknown_word(unknown_, ids);
    ids.push_back(id);
  }

 private:
  const TokenizerTables& tables_;
  int32_t unknown_;
};

class WordLevelModel final : public TokenModel {
 public:
  WordLevelModel(const JsonView& model, const TokenizerTables& tables)
      : tables_(tables), unknown_(tables.find(model.get<std::string>("unk_token"))) {}
  [[nodiscard]] std::unique_ptr<WordEncoder> start(bool /*marks*/,
                                                   TokenizerBudget& /*budget*/) const override {
    return std::make_unique<WordLevelEncoder>(tables_, unknown_);
  }
  [[nodiscard]] bool keeps_all_bytes() const override { return false; }

 private:
  const TokenizerTables& tables_;
  int32_t unknown_;
};

}  // namespace

std::unique_ptr<const TokenModel> make_word_piece_model(const JsonView& model,
                                                        const TokenizerTables& tables) {
  return std::make_unique<WordPieceModel>(model, tables);
}

std::unique_ptr<const TokenModel> make_word_level_model(const JsonView& model,
                                                        const TokenizerTables& tables) {
  return std::make_unique<WordLevelModel>(model, tables);
}

}  // namespace faststream
