// Byte-pair encoding (Sennrich et al., arXiv:1508.07909).
//
// Most words of a text are a token by themselves, and for most of those it is known that the merges
// lead there (kTokenAlone): one lookup. Others are cut where no merge reaches across, and each part
// is merged: a short one by looking for the earliest merge again and again, a long one with a heap.
#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "support/error.h"
#include "text/tokenizer/merge_queue.h"
#include "text/tokenizer/token_model.h"
#include "text/tokenizer/unicode.h"

namespace faststream {
namespace {

constexpr int32_t kNoToken = TokenizerTables::kNone;

struct BpeSettings {
  bool byte_level = false;
  bool ignore_merges = false;
  bool fuse_unknown = false;
  bool parts_at_last = false;  // some of what merges make are no tokens
  std::string prefix;          // of characters that do not begin a word
  std::string suffix;          // of the character that ends one
  int32_t unknown = kNoToken;
  std::vector<int32_t> fallback;           // by byte; empty without byte fallback
  std::array<int32_t, 256> first_bytes{};  // byte_level: tokens of single bytes
  std::array<int32_t, 256> last_bytes{};   // and of those that end a word
};

/// Merges neighbours among the tokens of a part, the earliest merge first, the leftmost of equals.
class BpeMerger {
 public:
  BpeMerger(const TokenizerTables& tables, bool notes_parts, TokenizerBudget& budget)
      : tables_(tables), notes_parts_(notes_parts), budget_(budget) {}

  void forget_parts() { parts_.clear(); }
  /// Of an unused token: those that it was to be merged of last.
  [[nodiscard]] std::optional<std::array<int32_t, 2>> parts(int32_t id) const {
    const auto found = parts_.find(id);
    return found == parts_.end() ? std::nullopt : std::optional(found->second);
  }

  void merge(std::vector<int32_t>& symbols, std::vector<int32_t>& ids) {
    constexpr size_t kShort = 32;
    if (symbols.size() <= kShort) {
      merge_short(symbols);
      ids.insert(ids.end(), symbols.begin(), symbols.end());
    } else {
      merge_long(symbols, ids);
    }
  }

 private:
  static constexpr int32_t kNever = std::numeric_limits<int32_t>::max();

  [[nodiscard]] BpeMerge look_up(int32_t left, int32_t right) const {
    return tables_.find_merge(left, right).value_or(BpeMerge{.rank = kNever, .id = kNoToken});
  }
  // As a merge to come.
  BpeMerge plan(int32_t left, int32_t right) {
    const BpeMerge merge = look_up(left, right);
    if (notes_parts_ && (tables_.flags(merge.id) & kTokenUnused) != 0) {
      if (!is_whole(merge.id, left, right)) return {.rank = kNever, .id = kNoToken};
      parts_[merge.id] = {left, right};
    }
    return merge;
  }
  // Whether a token's text is as long as those of its parts, so that it falls into ever shorter
  // ones; a damaged file's may not be.
  [[nodiscard]] bool is_whole(int32_t id, int32_t left, int32_t right) const {
    const size_t first = tables_.text(left).size();
    const size_t second = tables_.text(right).size();
    return first > 0 && second > 0 && tables_.text(id).size() == first + second;
  }

  void merge_short(std::vector<int32_t>& symbols) {
    pairs_.clear();
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      pairs_.push_back(plan(symbols[i], symbols[i + 1]));
    }
    while (!pairs_.empty()) {
      const auto best =
          std::min_element(pairs_.begin(), pairs_.end(),
                           [](const BpeMerge& a, const BpeMerge& b) { return a.rank < b.rank; });
      if (best->rank == kNever) return;
      const auto i = static_cast<size_t>(best - pairs_.begin());
      symbols[i] = best->id;
      symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(i + 1));
      pairs_.erase(best);
      if (i > 0) pairs_[i - 1] = plan(symbols[i - 1], symbols[i]);
      if (i < pairs_.size()) pairs_[i] = plan(symbols[i], symbols[i + 1]);
    }
  }

  // A merged symbol stays where its first part was. Of its other cells the first and the last hold
  // ~size, and all are negative.
  void merge_long(std::vector<int32_t>& symbols, std::vector<int32_t>& ids) {
    const size_t n = symbols.size();
    queue_.reset(n);
    for (size_t i = 0; i + 1 < n; ++i) queue(symbols, i, i + 1);
    for (uint64_t next = 0; queue_.pop(next);) {
      budget_.take(1);
      const auto at = static_cast<uint32_t>(next);
      if (symbols[at] < 0) continue;  // became a part of another
      const size_t right = at + size_at(symbols, at);
      if (right == n) continue;
      const BpeMerge merge = look_up(symbols[at], symbols[right]);
      if (static_cast<uint32_t>(merge.rank) == next >> 32) make(symbols, at, right, merge.id);
    }
    for (size_t i = 0; i < n; i += size_at(symbols, i)) ids.push_back(symbols[i]);
  }

  void queue(const std::vector<int32_t>& symbols, size_t left, size_t right) {
    const BpeMerge merge = plan(symbols[left], symbols[right]);
    if (merge.rank == kNever) return;
    queue_.push(uint64_t{static_cast<uint32_t>(merge.rank)} << 32 | left);
  }

  void make(std::vector<int32_t>& symbols, size_t at, size_t right, int32_t id) {
    const size_t end = right + size_at(symbols, right);
    symbols[at] = id;
    symbols[right] = -1;
    symbols[at + 1] = symbols[end - 1] = ~static_cast<int32_t>(end - at);
    if (at > 0) queue(symbols, begin_of(symbols, at - 1), at);
    if (end < symbols.size()) queue(symbols, at, end);
  }

  static size_t size_at(const std::vector<int32_t>& symbols, size_t at) {
    const bool merged = at + 1 < symbols.size() && symbols[at + 1] < 0;
    return merged ? static_cast<size_t>(~symbols[at + 1]) : 1;
  }
  // Of the symbol that ends at `last`.
  static size_t begin_of(const std::vector<int32_t>& symbols, size_t last) {
    return symbols[last] < 0 ? last + 1 - static_cast<size_t>(~symbols[last]) : last;
  }

  const TokenizerTables& tables_;
  bool notes_parts_;
  TokenizerBudget& budget_;
  std::unordered_map<int32_t, std::array<int32_t, 2>> parts_;
  std::vector<BpeMerge> pairs_;
  MergeQueue queue_;  // rank, then place
};

class BpeEncoder final : public WordEncoder {
 public:
  BpeEncoder(const TokenizerTables& tables, const SymbolFinder& symbols,
             const BpeSettings& settings, bool marks, TokenizerBudget& budget)
      : tables_(tables),
        finder_(symbols),
        settings_(settings),
        marks_(marks),
        budget_(budget),
        merger_(tables, settings.parts_at_last, budget) {}

  void encode(std::string_view word, std::vector<int32_t>& ids) override {
    if (const int32_t id = whole(word); id != kNoToken) {
      ids.push_back(id);
      return;
    }
    word_ = word;
    ids_ = &ids;
    begin_ = 0;
    fused_ = false;
    last_unknown_ = false;
    merger_.forget_parts();
    if (settings_.byte_level) {
      add_bytes();
    } else {
      add_characters();
    }
    flush(word.size());
  }

 private:
  // Words beyond this are cut where nothing joins; to look for such places costs a lookup a symbol.
  static constexpr size_t kShortWord = 32;

  /// The token that a whole word becomes, if that is known.
  int32_t whole(std::string_view word) {
    if (word.size() + settings_.suffix.size() > tables_.longest_token()) return kNoToken;
    if (settings_.ignore_merges) {  // takes no suffix into account
      if (const int32_t id = tables_.find(word); id != kNoToken) return id;
    }
    if (!settings_.suffix.empty()) {
      with_suffix_ = word;
      with_suffix_ += settings_.suffix;
      word = with_suffix_;
    }
    return alone(word);
  }
  [[nodiscard]] int32_t alone(std::string_view text) const {
    const int32_t id = tables_.find(text);
    const uint8_t wanted = marks_ ? kTokenAlone : kTokenAlone | kTokenMark;
    return id != kNoToken && (tables_.flags(id) & wanted) == kTokenAlone ? id : kNoToken;
  }

  // What stands at the ends of a word changes its tokens: such words are not cut.
  [[nodiscard]] bool is_cut() const {
    return word_.size() > kShortWord && settings_.prefix.empty() && settings_.suffix.empty() &&
           !settings_.parts_at_last;
  }

  void add_bytes() {
    const bool cut = is_cut();
    for (size_t at = 0; at < word_.size(); ++at) {
      const auto byte = static_cast<unsigned char>(word_[at]);
      const bool last = at + 1 == word_.size();
      const int32_t id = (last ? settings_.last_bytes : settings_.first_bytes)[byte];
      if (id == kNoToken) {
        add_unknown();
      } else {
        add_known(id, at, cut);
      }
    }
  }

  void add_characters() {
    const bool cut = is_cut();
    for (size_t at = 0; at < word_.size();) {
      if (const auto symbol = finder_.find(word_.substr(at), marks_); symbol.size > 0) {
        add_known(symbol.id, at, cut);
        at += symbol.size;
        continue;
      }
      const size_t size = character_at(word_, at).size;
      std::string_view text = word_.substr(at, size);
      const bool prefixed = at > 0 && !settings_.prefix.empty();
      const bool suffixed = at + size == word_.size() && !settings_.suffix.empty();
      if (prefixed || suffixed) {
        character_ = prefixed ? settings_.prefix : "";
        character_ += text;
        if (suffixed) character_ += settings_.suffix;
        text = character_;
      }
      if (const int32_t id = find_character(text); id != kNoToken) {
        add_known(id, at, cut);
      } else if (!add_fallback(text)) {
        add_unknown();
      }
      at += size;
    }
  }

  int32_t find_character(std::string_view text) {
    // The last one's, most often.
    if (text != last_text_) {
      last_id_ = tables_.find(text);
      last_text_ = text;
    }
    return last_id_;
  }

  void add_known(int32_t id, size_t at, bool cut) {
    if (pending_unknown_) {
      symbols_.push_back(settings_.unknown);
      pending_unknown_ = false;
    } else if (cut && !symbols_.empty() && after_known_ && !tables_.joins(symbols_.back(), id)) {
      flush(at);
    }
    symbols_.push_back(id);
    after_known_ = true;
  }

  bool add_fallback(std::string_view text) {
    if (settings_.fallback.empty()) return false;
    const auto token = [&](char byte) {
      return settings_.fallback[static_cast<unsigned char>(byte)];
    };
    if (std::any_of(text.begin(), text.end(), [&](char b) { return token(b) == kNoToken; })) {
      return false;
    }
    // An unknown character before them comes after them, as in the library.
    for (const char byte : text) symbols_.push_back(token(byte));
    after_known_ = false;
    fused_ = true;
    return true;
  }

  void add_unknown() {
    after_known_ = false;
    fused_ = true;
    if (settings_.unknown == kNoToken) return;
    if (pending_unknown_ && !settings_.fuse_unknown) symbols_.push_back(settings_.unknown);
    pending_unknown_ = true;
  }

  // Merges what there is, up to `end` of the word.
  void flush(size_t end) {
    if (pending_unknown_) symbols_.push_back(settings_.unknown);
    pending_unknown_ = false;
    const std::string_view part = word_.substr(begin_, end - begin_);
    budget_.take(part.size());
    const bool is_part =
        part.size() < word_.size() && !fused_ && part.size() <= tables_.longest_token();
    const int32_t id = is_part ? alone(part) : kNoToken;
    if (id != kNoToken) {
      ids_->push_back(id);
    } else if (!settings_.parts_at_last) {
      merger_.merge(symbols_, *ids_);
    } else {
      merged_.clear();
      merger_.merge(symbols_, merged_);
      for (const int32_t merged : merged_) put(merged);
    }
    symbols_.clear();
    begin_ = end;
    after_known_ = false;
    fused_ = false;
  }

  // Adds what a merged symbol is at last.
  void put(int32_t symbol) {
    if ((tables_.flags(symbol) & kTokenUnused) != 0) {
      if (const auto parts = merger_.parts(symbol)) {
        for (const int32_t part : *parts) put(part);
        return;
      }
    }
    const bool is_part = symbol >= tables_.n_tokens() - tables_.n_parts();
    const bool unknown = is_part || symbol == settings_.unknown;
    if (is_part && !settings_.fallback.empty()) {
      for (const char byte : tables_.text(symbol)) {
        ids_->push_back(settings_.fallback[static_cast<unsigned char>(byte)]);
      }
    } else if (!unknown || !last_unknown_ || !settings_.fuse_unknown) {
      ids_->push_back(unknown ? settings_.unknown : symbol);
    }
    last_unknown_ = unknown;
  }

  const TokenizerTables& tables_;
  const SymbolFinder& finder_;
  const BpeSettings& settings_;
  bool marks_;
  TokenizerBudget& budget_;
  BpeMerger merger_;
  std::string_view word_;
  std::vector<int32_t>* ids_ = nullptr;
  std::vector<int32_t> symbols_;  // of the part of the word from begin_ on
  size_t begin_ = 0;
  bool after_known_ = false;      // the last symbol is a character's token
  bool pending_unknown_ = false;  // an unknown token to be added before the next known one
  bool last_unknown_ = false;     // put() added that last
  std::vector<int32_t> merged_;
  bool fused_ = false;  // the part's symbols are not just its characters
  std::string with_suffix_;
  std::string character_;
  std::string last_text_;
  int32_t last_id_ = kNoToken;
};

class BpeModel final : public TokenModel {
 public:
  BpeModel(const JsonView& model, const TokenizerTables& tables, const SymbolFinder& symbols,
           bool byte_level)
      : tables_(tables), symbols_(symbols) {
    if (const auto dropout = model.find("dropout"); dropout && dropout->as<double>() != 0) {
      dropout->fail("makes tokens random, which is not supported");
    }
    settings_.byte_level = byte_level;
    settings_.ignore_merges = model.get("ignore_merges", false);
    settings_.fuse_unknown = model.get("fuse_unk", false);
    settings_.prefix = model.get<std::string>("continuing_subword_prefix", "");
    settings_.suffix = model.get<std::string>("end_of_word_suffix", "");
    if (model.get("byte_fallback", false)) settings_.fallback = find_byte_tokens(tables);
    if (const auto unknown = model.find("unk_token")) {
      settings_.unknown = tables.find(unknown->as<std::string>());
    }
    if (const auto unknown = model.find("unk_id")) {
      settings_.unknown = unknown->as<int32_t>(0, tables.n_tokens() - 1);
    }
    settings_.parts_at_last = model.get("parts_at_last", false);
    for (size_t byte = 0; byte_level && byte < 256; ++byte) {
      std::string text(1, static_cast<char>(byte));
      settings_.first_bytes[byte] = tables.find(text);
      settings_.last_bytes[byte] = tables.find(text + settings_.suffix);
    }
  }

  [[nodiscard]] std::unique_ptr<WordEncoder> start(bool marks,
                                                   TokenizerBudget& budget) const override {
    return std::make_unique<BpeEncoder>(tables_, symbols_, settings_, marks, budget);
  }

  [[nodiscard]] bool keeps_all_bytes() const override {
    const auto all_known = [](const auto& ids) {
      return std::find(ids.begin(), ids.end(), kNoToken) == ids.end();
    };
    if (settings_.byte_level) {
      return all_known(settings_.first_bytes) && all_known(settings_.last_bytes);
    }
    return !settings_.fallback.empty() && all_known(settings_.fallback);
  }

 private:
  const TokenizerTables& tables_;
  const SymbolFinder& symbols_;
  BpeSettings settings_;
};

}  // namespace

std::unique_ptr<const TokenModel> make_bpe_model(const JsonView& model,
                                                 const TokenizerTables& tables,
                                                 const SymbolFinder& symbols, bool byte_level) {
  return std::make_unique<BpeModel>(model, tables, symbols, byte_level);
}

}  // namespace faststream
