#include "convert/tokenizers/ranked_bpe.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "support/error.h"
#include "support/printable.h"
#include "text/tokenizer/byte_level.h"

namespace faststream::convert {
namespace {

constexpr size_t kMaxTokenBytes = 1024;  // the longest of real vocabularies have 128
constexpr size_t kMaxMerges = size_t{1} << 24;

using Ranks = std::unordered_map<std::string_view, int32_t>;

[[noreturn]] void fail(std::string_view where, const std::string& what) {
  throw Error(std::string(where) + ": " + what);
}

Ranks rank_tokens(const std::vector<std::string>& tokens, std::string_view where) {
  Ranks ranks;
  ranks.reserve(tokens.size());
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    const std::string name = "token " + std::to_string(rank) + " of the tokenizer ";
    if (tokens[rank].empty() || tokens[rank].size() > kMaxTokenBytes) {
      fail(where, name + "has " + std::to_string(tokens[rank].size()) +
                      " bytes, where 1 to 1024 make sense");
    }
    const auto [other, is_new] = ranks.emplace(tokens[rank], static_cast<int32_t>(rank));
    if (!is_new) fail(where, name + "repeats token " + std::to_string(other->second));
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    if (!ranks.contains(std::string(1, static_cast<char>(byte)))) {
      fail(where, "the tokenizer has no token for the byte " + std::to_string(byte));
    }
  }
  return ranks;
}

// Merges in ranks, those that make the token `rank`.
void add_merges(const std::string& token, const Ranks& ranks,
                std::vector<std::array<int32_t, 2>>& merges) {
  const auto begin = static_cast<std::ptrdiff_t>(merges.size());
  const std::string_view bytes = token;
  for (size_t cut = 1; cut < bytes.size(); ++cut) {
    const auto left = ranks.find(bytes.substr(0, cut));
    if (left == ranks.end()) continue;
    const auto right = ranks.find(bytes.substr(cut));
    if (right != ranks.end()) merges.push_back({left->second, right->second});
  }
  std::sort(merges.begin() + begin, merges.end());
}

}  // namespace

TokenizerDescription describe_ranked_bpe(const std::vector<std::string>& tokens, int32_t first_id,
                                         const std::vector<SpecialToken>& special_tokens,
                                         const Pretokenizer& pretokenizer, std::string_view where) {
  TokenizerDescription description;
  description.pipeline = bpe_pipeline(pretokenizer);
  description.vocabulary.resize(static_cast<size_t>(first_id));
  for (const std::string& token : tokens) description.vocabulary.push_back(to_byte_level(token));
  const Ranks ranks = rank_tokens(tokens, where);
  for (const std::string& token : tokens) {
    add_merges(token, ranks, description.merges);
    if (description.merges.size() > kMaxMerges) {
      fail(where, "the tokenizer has more than 16777216 merges; the file is damaged");
    }
  }
  for (auto& [left, right] : description.merges) {
    left += first_id;
    right += first_id;
  }
  for (const SpecialToken& token : special_tokens) {
    const auto id = static_cast<size_t>(token.id);
    if (id >= description.vocabulary.size()) description.vocabulary.resize(id + 1);
    std::string& text = description.vocabulary[id];
    if (!text.empty()) {
      fail(where, "the special token " + in_quotes(token.text) + " has the id " +
                      std::to_string(id) + " of another token");
    }
    text = token.text;
    description.added_tokens.push_back({.id = token.id, .text = token.text, .special = true});
  }
  return description;
}

}  // namespace faststream::convert
