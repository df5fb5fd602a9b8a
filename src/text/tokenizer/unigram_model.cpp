// The unigram language model (Kudo, arXiv:1804.10959): of all ways to split a word into tokens the
// one whose scores have the largest sum.
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "support/error.h"
#include "text/tokenizer/token_model.h"
#include "text/tokenizer/unicode.h"

namespace faststream {
namespace {

struct UnigramSettings {
  TableTrie trie;
  int32_t unknown = TokenizerTables::kNone;
  double unknown_score = 0;
  std::vector<int32_t> fallback;  // by byte; empty without byte fallback
  bool finds_unknown = true;      // what is unknown may be a token as a whole
};

/// Sums of scores are rounded to `Sum` after each token: it decides between ways that are nearly as
/// good.
template <typename Sum>
class UnigramEncoder final : public WordEncoder {
 public:
  UnigramEncoder(const TokenizerTables& tables, const UnigramSettings& settings, bool marks,
                 TokenizerBudget& budget)
      : tables_(tables), settings_(settings), left_out_(marks ? 0 : kTokenMark), budget_(budget) {}

  void encode(std::string_view word, std::vector<int32_t>& ids) override {
    find_best(word);
    turn_links(word.size());
    for (size_t begin = 0; begin < word.size();) {
      size_t end = links_[begin] & kPlace;
      // A run of unknown ones is one token.
      while ((links_[begin] & kUnknown) != 0 && end < word.size() &&
             (links_[end] & kUnknown) != 0) {
        end = links_[end] & kPlace;
      }
      const bool unknown = (links_[begin] & kUnknown) != 0;
      add(word.substr(begin, end - begin), !unknown || settings_.finds_unknown, ids);
      begin = end;
    }
  }

 private:
  static constexpr uint32_t kUnknown = 1U << 31;
  static constexpr uint32_t kPlace = kUnknown - 1;
  static constexpr uint32_t kUnreached = std::numeric_limits<uint32_t>::max();

  void find_best(std::string_view word) {
    scores_.resize(word.size() + 1);
    links_.assign(word.size() + 1, kUnreached);
    scores_[0] = 0;
    for (size_t at = 0; at < word.size();) {
      const size_t size = character_at(word, at).size;
      const Sum score_here = scores_[at];
      bool has_single = false;
      const auto reach = [&](size_t length, double score, uint32_t unknown) {
        const size_t end = at + length;
        if (links_[end] != kUnreached && !(score > scores_[end])) return;  // NaN never wins
        scores_[end] = static_cast<Sum>(score);
        links_[end] = static_cast<uint32_t>(at) | unknown;
      };
      settings_.trie.search(word.substr(at), [&](size_t length, int32_t id) {
        if (left_out_ != 0 && (tables_.flags(id) & left_out_) != 0) return;
        reach(length, score_here + tables_.score(id), id == settings_.unknown ? kUnknown : 0);
        has_single = has_single || length == size;
      });
      if (!has_single) {
        if (settings_.unknown == TokenizerTables::kNone) {
          throw Error(
              "the text has a character that the tokenizer does not know, and it has no token for "
              "unknown ones; remove the character");
        }
        reach(size, static_cast<Sum>(score_here + settings_.unknown_score), kUnknown);
      }
      at += size;
      budget_.take(size);
    }
  }

  // Of the best way: from links to where tokens begin to links to where they end.
  void turn_links(size_t at) {
    uint32_t to_end = 0;
    while (at > 0) {
      const uint32_t link = std::exchange(links_[at], to_end);
      to_end = static_cast<uint32_t>(at) | (link & kUnknown);
      at = link & kPlace;
    }
    links_[0] = to_end;
  }

  void add(std::string_view text, bool find, std::vector<int32_t>& ids) const {
    const int32_t id = find ? tables_.find(text) : TokenizerTables::kNone;
    if (id != TokenizerTables::kNone) {
      ids.push_back(id);
      return;
    }
    const auto token = [&](char byte) {
      return settings_.fallback[static_cast<unsigned char>(byte)];
    };
    const bool falls_back =
        !settings_.fallback.empty() && std::none_of(text.begin(), text.end(), [&](char byte) {
          return token(byte) == TokenizerTables::kNone;
        });
    if (!falls_back) {
      ids.push_back(settings_.unknown);
      return;
    }
    for (const char byte : text) ids.push_back(token(byte));
  }

  const TokenizerTables& tables_;
  const UnigramSettings& settings_;
  uint8_t left_out_;  // flags of tokens that are not made
  TokenizerBudget& budget_;
  std::vector<Sum> scores_;      // of the best way to each byte of the word
  std::vector<uint32_t> links_;  // where its last token begins, and whether that is unknown
};

class UnigramModel final : public TokenModel {
 public:
  UnigramModel(const JsonView& model, const TokenizerTables& tables) : tables_(tables) {
    constexpr double kPenalty = 10;  // of an unknown character, below the lowest score
    settings_.trie = TableTrie(tables.section(TableSection::trie));
    if (model.find("unk_id")) {
      settings_.unknown = model.member("unk_id").as<int32_t>(0, tables.n_tokens() - 1);
    }
    settings_.unknown_score =
        model.get<double>("unk_score", model.get<double>("lowest_score") - kPenalty);
    settings_.finds_unknown = model.get("finds_unknown", true);
    single_ = model.get("single_precision", false);
    if (model.get("byte_fallback", false)) settings_.fallback = find_byte_tokens(tables);
  }

  [[nodiscard]] std::unique_ptr<WordEncoder> start(bool marks,
                                                   TokenizerBudget& budget) const override {
    if (single_) return std::make_unique<UnigramEncoder<float>>(tables_, settings_, marks, budget);
    return std::make_unique<UnigramEncoder<double>>(tables_, settings_, marks, budget);
  }
  [[nodiscard]] bool keeps_all_bytes() const override {
    const auto& ids = settings_.fallback;
    return !ids.empty() && std::find(ids.begin(), ids.end(), TokenizerTables::kNone) == ids.end();
  }

 private:
  const TokenizerTables& tables_;
  UnigramSettings settings_;
  bool single_ = false;
};

}  // namespace

std::unique_ptr<const TokenModel> make_unigram_model(const JsonView& model,
                                                     const TokenizerTables& tables) {
  return std::make_unique<UnigramModel>(model, tables);
}

}  // namespace faststream
