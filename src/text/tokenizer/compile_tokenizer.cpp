#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "support/base64.h"
#include "support/error.h"
#include "support/json.h"
#include "support/printable.h"
#include "support/utf8.h"
#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/compiled_tokenizer.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/tables.h"
#include "text/tokenizer/token_model.h"
#include "text/tokenizer/unicode.h"

namespace faststream {
namespace {

using nlohmann::json;

constexpr size_t kMaxTokens = size_t{1} << 22;
constexpr size_t kMaxTextBytes = size_t{1} << 30;

template <typename T>
void append_value(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

template <typename T>
std::string array_bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// A hash table of slots with linear probing, at most half full.
template <typename Slot>
class SlotTable {
 public:
  SlotTable(size_t n, const Slot& free) : free_(free) {
    slots_.assign(n == 0 ? 0 : std::bit_ceil(2 * n), free);
  }

  /// Puts `slot` at the first place from `hash` on that `fits` says yes to: one that is free, or
  /// one to be overwritten.
  template <typename Fits>
  void insert(uint64_t hash, const Slot& slot, Fits&& fits) {
    const size_t mask = slots_.size() - 1;
    size_t n = 0;
    while (!fits(slots_[(hash + n) & mask])) ++n;
    slots_[(hash + n) & mask] = slot;
    longest_probe_ = std::max(longest_probe_, n + 2);
  }

  [[nodiscard]] std::string bytes() const { return array_bytes(slots_); }
  [[nodiscard]] size_t longest_probe() const { return longest_probe_; }

 private:
  Slot free_;
  std::vector<Slot> slots_;
  size_t longest_probe_ = 1;
};

/// TableTrie's bytes for strings, each with an id.
std::string trie_bytes(const std::map<std::string_view, int32_t>& strings) {
  if (strings.empty()) return {};
  struct Range {  // of the strings below a node
    std::map<std::string_view, int32_t>::const_iterator first;
    std::map<std::string_view, int32_t>::const_iterator last;
    size_t depth;
  };
  std::vector<Range> nodes = {{strings.begin(), strings.end(), 0}};
  std::vector<uint32_t> first_child;
  std::vector<int32_t> ids;
  std::vector<uint8_t> bytes = {0};
  for (size_t i = 0; i < nodes.size(); ++i) {
    auto [first, last, depth] = nodes[i];
    first_child.push_back(static_cast<uint32_t>(nodes.size()));
    ids.push_back(-1);
    if (first != last && first->first.size() == depth) {
      ids.back() = first->second;
      ++first;
    }
    while (first != last) {
      const char byte = first->first[depth];
      auto end = first;
      while (end != last && end->first[depth] == byte) ++end;
      nodes.push_back({first, end, depth + 1});
      bytes.push_back(static_cast<uint8_t>(byte));
      first = end;
    }
  }
  first_child.push_back(static_cast<uint32_t>(nodes.size()));
  std::string section;
  append_value(section, static_cast<uint32_t>(nodes.size()));
  return section + array_bytes(first_child) + array_bytes(ids) + array_bytes(bytes);
}

class TokenizerCompiler {
 public:
  TokenizerCompiler(const TokenizerDescription& description, std::string_view where)
      : in_(description), where_(where) {}

  std::string compile() {
    check();
    read_pipeline();
    add_texts();
    if (model_type_ == "BPE") add_merges();
    if (model_type_ == "Unigram") add_scores();
    if (model_type_ == "Unigram" || model_type_ == "WordPiece") add_tries();
    add_added_tokens();
    std::string bytes = assemble();
    check_steps(bytes);
    if (model_type_ == "BPE") {
      mark_alone(bytes);
      bytes = assemble();
    }
    return bytes;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw Error(where_ + ": " + what); }

  std::string& section(TableSection name) { return sections_[static_cast<size_t>(name) - 1]; }

  [[nodiscard]] size_t n_tokens() const { return in_.vocabulary.size(); }
  [[nodiscard]] bool is_id(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < n_tokens();
  }
  [[nodiscard]] const std::string& text_of(int32_t id) const {
    return in_.vocabulary[static_cast<size_t>(id)];
  }

  void check() const {
    if (in_.vocabulary.empty()) fail("the tokenizer has no tokens");
    if (n_tokens() > kMaxTokens) {
      fail("the tokenizer has " + std::to_string(n_tokens()) + " tokens, more than 2^22");
    }
    size_t bytes = 0;
    for (size_t id = 0; id < n_tokens(); ++id) {
      bytes += in_.vocabulary[id].size();
      if (!is_valid_utf8(in_.vocabulary[id])) {
        fail("the token " + std::to_string(id) + " is not UTF-8");
      }
    }
    if (in_.roles.size() > n_tokens() || in_.n_parts < 0 ||
        static_cast<size_t>(in_.n_parts) > n_tokens() ||
        (!in_.merge_ranks.empty() && in_.merge_ranks.size() != in_.merges.size())) {
      fail("the tokenizer contradicts itself");
    }
    if (bytes > kMaxTextBytes) fail("the tokenizer's tokens have more than a gigabyte of text");
    for (const AddedTokenRule& token : in_.added_tokens) {
      if (!is_id(token.id) || text_of(token.id) != token.text) {
        fail("the added token " + in_quotes(token.text) + " has the id " +
             std::to_string(token.id) + ", which is not its own");
      }
    }
  }

  // The steps without what is large, which becomes binary sections.
  void read_pipeline() {
    pipeline_ = json::object();
    for (const char* name : {"normalizer", "pre_tokenizer", "decoder", "model"}) {
      const auto found = in_.pipeline.find(name);
      if (found != in_.pipeline.end() && !found->is_null()) pipeline_[name] = *found;
    }
    const JsonView view(pipeline_, where_);
    model_type_ = view.member("model").get<std::string>("type");
    pipeline_["model"].erase("vocab");
    pipeline_["model"].erase("merges");
    section(TableSection::charsmap) = in_.charsmap;
    if (pipeline_.contains("normalizer")) take_charsmap(pipeline_["normalizer"]);
    suffix_ = view.member("model").get<std::string>("end_of_word_suffix", "");
    prefix_ = view.member("model").get<std::string>("continuing_subword_prefix",
                                                    model_type_ == "WordPiece" ? "##" : "");
    const auto pre_tokenizer = view.find("pre_tokenizer");
    byte_level_ = model_type_ == "BPE" && pre_tokenizer && ends_in_byte_level(*pre_tokenizer) &&
                  !view.member("model").get("byte_fallback", false) && prefix_.empty() &&
                  from_byte_level(suffix_).has_value();
    if (byte_level_ && !suffix_.empty()) {
      suffix_ = *from_byte_level(suffix_);
      pipeline_["model"]["end_of_word_suffix"] = suffix_;
    }
    pipeline_["byte_level"] = byte_level_;
    if (!is_valid_utf8(suffix_)) fail("\"model.end_of_word_suffix\" is not supported");
  }

  void take_charsmap(json& step) {
    if (step.is_object() && step.contains("normalizers") && step["normalizers"].is_array()) {
      for (json& part : step["normalizers"]) take_charsmap(part);
    }
    if (!step.is_object() || !step.contains("precompiled_charsmap")) return;
    const JsonView view(step, where_ + ": normalizer");
    auto charsmap = decode_base64(view.get<std::string>("precompiled_charsmap"));
    if (!charsmap) view.member("precompiled_charsmap").fail("is not Base64");
    std::string& stored = section(TableSection::charsmap);
    if (!stored.empty() && stored != *charsmap) view.fail("is the second one with rules");
    stored = std::move(*charsmap);
    step.erase("precompiled_charsmap");
  }

  void add_texts() {
    flags_.assign(n_tokens(), 0);
    for (size_t id = 0; id < in_.roles.size(); ++id) flags_[id] = flags_of(in_.roles[id]);
    for (const AddedTokenRule& token : in_.added_tokens) {
      uint8_t& flags = flags_[static_cast<size_t>(token.id)];
      if (token.special) flags |= token.symbol ? kTokenMark : kTokenSpecial;
      if (!token.in_model) flags |= kTokenForeign | kTokenPlain;
    }
    texts_.resize(n_tokens());
    std::vector<uint32_t> ends;
    for (size_t id = 0; id < n_tokens(); ++id) {
      texts_[id] = in_.vocabulary[id];
      if (texts_[id].empty()) flags_[id] |= kTokenForeign;
      if (byte_level_ && (flags_[id] & kTokenPlain) == 0) {
        if (auto bytes = from_byte_level(texts_[id])) {
          texts_[id] = std::move(*bytes);
        } else {
          flags_[id] |= kTokenForeign | kTokenPlain;
        }
      }
      section(TableSection::token_texts) += texts_[id];
      ends.push_back(static_cast<uint32_t>(section(TableSection::token_texts).size()));
      longest_token_ = std::max(longest_token_, texts_[id].size());
    }
    section(TableSection::token_ends) = array_bytes(ends);
    for (size_t id = 0; id < n_tokens(); ++id) {
      if ((flags_[id] & kTokenForeign) == 0) ids_[texts_[id]] = static_cast<int32_t>(id);
    }
    SlotTable<TextSlot> index(ids_.size(), {.hash = 0, .id = -1});
    for (const auto& [text, id] : ids_) {
      const uint64_t hash = hash_of_text(text);
      index.insert(hash, {.hash = static_cast<uint32_t>(hash >> 32), .id = id},
                   [](const TextSlot& slot) { return slot.id < 0; });
    }
    keep(TableSection::text_index, index);
  }

  [[nodiscard]] uint8_t flags_of(TokenRole role) const {
    switch (role) {
      case TokenRole::unknown:
        return kTokenUnknown | kTokenForeign;
      case TokenRole::byte:
        return kTokenByte | kTokenForeign;
      case TokenRole::unused:
        return model_type_ == "BPE" ? kTokenUnused : kTokenForeign;
      default:
        return 0;
    }
  }

  template <typename Slot>
  void keep(TableSection name, const SlotTable<Slot>& table) {
    section(name) = table.bytes();
    longest_probe_ = std::max(longest_probe_, table.longest_probe());
  }

  [[nodiscard]] int32_t find(std::string_view text) const {
    const auto found = ids_.find(text);
    return found == ids_.end() ? TokenizerTables::kNone : found->second;
  }

  // The token of the first or the last character of a token's text.
  [[nodiscard]] int32_t edge(int32_t id, bool last) const {
    const std::string_view text = texts_[static_cast<size_t>(id)];
    if (text.empty()) return TokenizerTables::kNone;
    if (byte_level_) return find(text.substr(last ? text.size() - 1 : 0, 1));
    size_t begin = last ? text.size() - 1 : 0;
    while (last && begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0U) == 0x80U) --begin;
    return find(text.substr(begin, character_at(text, begin).size));
  }

  [[nodiscard]] int32_t rank_of(size_t merge) const {
    return in_.merge_ranks.empty() ? static_cast<int32_t>(merge) : in_.merge_ranks[merge];
  }

  void add_merges() {
    SlotTable<MergeSlot> merges(in_.merges.size(), {.left = -1, .right = -1, .rank = 0, .id = -1});
    std::unordered_set<uint64_t> seen;
    std::vector<JoinSlot> joins;
    for (size_t n = 0; n < in_.merges.size(); ++n) {
      const auto [left, right] = in_.merges[n];
      if (!is_id(left) || !is_id(right)) fail("a merge is of a token that does not exist");
      const std::string_view second = texts_[static_cast<size_t>(right)];
      const std::string merged =
          texts_[static_cast<size_t>(left)] +
          std::string(second.substr(std::min(prefix_.size(), second.size())));
      const int32_t id = find(merged);
      if (id == TokenizerTables::kNone) {
        fail("the merge of " + in_quotes(text_of(left)) + " and " + in_quotes(text_of(right)) +
             " makes a token that does not exist");
      }
      merges.insert(hash_of_pair(left, right),
                    {.left = left, .right = right, .rank = rank_of(n), .id = id},
                    [&, a = left, b = right](const MergeSlot& slot) {
                      return slot.left < 0 || (slot.left == a && slot.right == b);
                    });
      const JoinSlot join = {.left = edge(left, true), .right = edge(right, false)};
      const uint64_t pair =
          uint64_t{static_cast<uint32_t>(join.left)} << 32 | static_cast<uint32_t>(join.right);
      if (join.left >= 0 && join.right >= 0 && seen.insert(pair).second) joins.push_back(join);
    }
    keep(TableSection::merges, merges);
    SlotTable<JoinSlot> join_table(joins.size(), {.left = -1, .right = -1});
    for (const JoinSlot& join : joins) {
      join_table.insert(hash_of_pair(join.left, join.right), join,
                        [](const JoinSlot& slot) { return slot.left < 0; });
    }
    keep(TableSection::joins, join_table);
  }

  void add_scores() {
    if (in_.scores.size() > n_tokens()) fail("there are more scores than tokens");
    std::vector<double> scores(in_.scores.begin(), in_.scores.end());
    double lowest = std::numeric_limits<double>::max();
    for (size_t id = 0; id < scores.size(); ++id) {
      if ((flags_[id] & kTokenForeign) == 0) lowest = std::min(lowest, scores[id]);
    }
    scores.resize(n_tokens());
    section(TableSection::scores) = array_bytes(scores);
    pipeline_["model"]["lowest_score"] = ids_.empty() || in_.scores.empty() ? 0 : lowest;
  }

  void add_tries() {
    std::map<std::string_view, int32_t> first;
    std::map<std::string_view, int32_t> others;
    for (const auto& [text, id] : ids_) {
      first.emplace(text, id);
      if (model_type_ == "WordPiece" && text.size() > prefix_.size() && text.starts_with(prefix_)) {
        others.emplace(text.substr(prefix_.size()), id);
      }
    }
    section(TableSection::trie) = trie_bytes(first);
    section(TableSection::continuations) = trie_bytes(others);
  }

  void add_added_tokens() {
    const JsonView view(pipeline_, where_);
    Normalizers normalizers;
    if (const auto normalizer = view.find("normalizer")) {
      normalizers = make_normalizers(*normalizer, {.charsmap = section(TableSection::charsmap)});
    }
    std::vector<AddedTokenRule> tokens = in_.added_tokens;
    std::stable_sort(
        tokens.begin(), tokens.end(),
        [](const AddedTokenRule& a, const AddedTokenRule& b) { return a.text < b.text; });
    std::string& texts = section(TableSection::added_texts);
    const auto store = [&](std::string_view text) {
      const auto begin = static_cast<uint32_t>(texts.size());
      texts += text;
      return std::pair(begin, static_cast<uint32_t>(text.size()));
    };
    for (const AddedTokenRule& token : tokens) {
      const auto [text_begin, text_size] = store(token.text);
      auto [normalized_begin, normalized_size] = std::pair(text_begin, text_size);
      longest_token_ = std::max(longest_token_, token.text.size());
      if (token.normalized && !token.text.empty()) {
        NormalizedText normalized{.text = token.text};
        TokenizerBudget budget(token.text.size());
        try {
          normalize(normalizers, normalized, budget);
        } catch (const Error& error) {
          fail("the added token " + in_quotes(token.text) + ": " + error.what());
        }
        std::tie(normalized_begin, normalized_size) = store(normalized.text);
        longest_token_ = std::max(longest_token_, normalized.text.size());
      }
      const uint32_t flags =
          (token.special ? kAddedSpecial : 0) | (token.normalized ? kAddedNormalized : 0) |
          (token.lstrip ? kAddedLstrip : 0) | (token.rstrip ? kAddedRstrip : 0) |
          (token.single_word ? kAddedSingleWord : 0) | (token.symbol ? kAddedSymbol : 0);
      append_value(section(TableSection::added_tokens),
                   AddedTokenRecord{.id = token.id,
                                    .flags = flags,
                                    .text_begin = text_begin,
                                    .text_size = text_size,
                                    .normalized_begin = normalized_begin,
                                    .normalized_size = normalized_size});
    }
  }

  // What cannot be used is refused now.
  void check_steps(std::string_view bytes) {
    const TokenizerTables tables(std::as_bytes(std::span(bytes.data(), bytes.size())), where_);
    const JsonView view(pipeline_, where_);
    if (const auto pre_tokenizer = view.find("pre_tokenizer")) {
      make_pre_tokenizers(*pre_tokenizer, byte_level_);
    }
    const Decoder decoder(view.find("decoder"));
    const SymbolFinder symbols(tables);
    make_token_model(view.member("model"), tables, symbols, byte_level_);
  }

  // Which tokens' texts become those tokens, found by splitting them.
  void mark_alone(std::string_view bytes) {
    const TokenizerTables tables(std::as_bytes(std::span(bytes.data(), bytes.size())), where_);
    json merging = pipeline_["model"];
    merging["ignore_merges"] = false;
    const SymbolFinder symbols(tables);
    const auto model =
        make_token_model(JsonView(merging, where_ + ": model"), tables, symbols, byte_level_);
    TokenizerBudget budget(section(TableSection::token_texts).size());
    const auto encoder = model->start(true, budget);
    std::vector<int32_t> ids;
    for (const auto& [text, id] : ids_) {
      if (!text.ends_with(suffix_) || text.size() == suffix_.size()) continue;
      ids.clear();
      encoder->encode(text.substr(0, text.size() - suffix_.size()), ids);
      if (ids.size() == 1 && ids.front() == id) flags_[static_cast<size_t>(id)] |= kTokenAlone;
    }
  }

  std::string assemble() {
    section(TableSection::pipeline) =
        pipeline_.dump(-1, ' ', false, json::error_handler_t::replace);
    section(TableSection::token_flags) = array_bytes(flags_);
    TablesHead head{};
    std::copy(kTablesMagic.begin(), kTablesMagic.end(), head.magic.begin());
    head.version = kTablesVersion;
    head.n_tokens = static_cast<uint32_t>(n_tokens());
    head.longest_probe = static_cast<uint32_t>(longest_probe_);
    head.n_parts = static_cast<uint32_t>(in_.n_parts);
    head.longest_token = static_cast<uint32_t>(longest_token_);
    std::string bytes;
    append_value(bytes, head);
    constexpr size_t kAlignment = 8;
    const auto padded = [](size_t size) {
      return (size + kAlignment - 1) / kAlignment * kAlignment;
    };
    size_t offset = bytes.size() + kTableSections * sizeof(TablesEntry);
    for (const std::string& content : sections_) {
      append_value(bytes, TablesEntry{.offset = offset, .bytes = content.size()});
      offset = padded(offset + content.size());
    }
    for (const std::string& content : sections_) {
      bytes += content;
      bytes.resize(padded(bytes.size()));
    }
    return bytes;
  }

  const TokenizerDescription& in_;
  std::string where_;
  json pipeline_;
  std::string model_type_;
  std::string prefix_;
  std::string suffix_;  // as in texts_
  bool byte_level_ = false;
  std::vector<std::string> texts_;  // as they are stored: bytes, if byte_level_
  std::vector<uint8_t> flags_;
  std::unordered_map<std::string_view, int32_t> ids_;  // of the model's tokens, by texts_
  size_t longest_token_ = 1;
  size_t longest_probe_ = 1;
  std::array<std::string, kTableSections> sections_;
};

}  // namespace

std::string compile_tokenizer(const TokenizerDescription& description, std::string_view where) {
  return TokenizerCompiler(description, where).compile();
}

}  // namespace faststream
