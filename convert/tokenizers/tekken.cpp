#include "convert/tokenizers/tekken.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>
#include <vector>

#include "convert/tokenizers/ranked_bpe.h"
#include "support/base64.h"
#include "support/json.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 24;

// Those of files that do not list theirs (mistral-common, tokens/tokenizers/tekken.py).
constexpr std::array<std::string_view, 20> kSpecialTokens = {"<unk>",
                                                             "<s>",
                                                             "</s>",
                                                             "[INST]",
                                                             "[/INST]",
                                                             "[AVAILABLE_TOOLS]",
                                                             "[/AVAILABLE_TOOLS]",
                                                             "[TOOL_RESULTS]",
                                                             "[/TOOL_RESULTS]",
                                                             "[TOOL_CALLS]",
                                                             "[IMG]",
                                                             "<pad>",
                                                             "[IMG_BREAK]",
                                                             "[IMG_END]",
                                                             "[PREFIX]",
                                                             "[MIDDLE]",
                                                             "[SUFFIX]",
                                                             "[SYSTEM_PROMPT]",
                                                             "[/SYSTEM_PROMPT]",
                                                             "[TOOL_CONTENT]"};

std::vector<SpecialToken> read_special_tokens(const JsonView& file, int64_t count) {
  std::vector<SpecialToken> tokens;
  for (int64_t id = 0; id < count; ++id) {
    tokens.push_back({static_cast<int32_t>(id), "<SPECIAL_" + std::to_string(id) + ">"});
  }
  if (const auto listed = file.find("special_tokens")) {
    for (const JsonView& token : listed->elements()) {
      const auto rank = token.member("rank").as<int64_t>(0, count - 1);
      tokens[static_cast<size_t>(rank)].text = token.get<std::string>("token_str");
    }
  } else {
    const size_t named = std::min(tokens.size(), kSpecialTokens.size());
    for (size_t id = 0; id < named; ++id) tokens[id].text = kSpecialTokens[id];
  }
  std::unordered_set<std::string_view> texts;
  for (const SpecialToken& token : tokens) {
    if (token.text.empty() || !texts.insert(token.text).second) {
      file.fail("\"special_tokens\" names " + in_quotes(token.text) + " twice");
    }
  }
  return tokens;
}

// The bytes of the first `count` ranks.
std::vector<std::string> read_vocabulary(const JsonView& vocab, int64_t count) {
  std::vector<std::string> tokens;
  for (const JsonView& token : vocab.elements()) {
    if (static_cast<int64_t>(tokens.size()) == count) break;
    const JsonView rank = token.member("rank");
    if (rank.as<int64_t>() != static_cast<int64_t>(tokens.size())) {
      rank.fail("is not the token's place in the list");
    }
    auto bytes = decode_base64(token.get<std::string>("token_bytes"));
    if (!bytes) token.member("token_bytes").fail("is not Base64");
    tokens.push_back(std::move(*bytes));
  }
  return tokens;
}

}  // namespace

bool is_tekken(std::string_view bytes) {
  const size_t first = bytes.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && bytes[first] == '{' &&
         bytes.find("\"default_vocab_size\"") != std::string_view::npos;
}

TokenizerDescription parse_tekken(std::string_view bytes, std::string_view where) {
  const nlohmann::json json = parse_json_object(bytes, where);
  const JsonView file(json, where, kDamagedFile);
  const JsonView config = file.member("config");
  const auto n_special = config.member("default_num_special_tokens").as<int64_t>(1, kMaxTokens / 2);
  const auto n_tokens = config.member("default_vocab_size").as<int64_t>(n_special, kMaxTokens);
  const auto pattern = config.get<std::string>("pattern");
  const std::array<std::string_view, 1> patterns = {pattern};
  Pretokenizer pretokenizer;
  pretokenizer.patterns = patterns;
  pretokenizer.ignore_merges = true;
  return describe_ranked_bpe(read_vocabulary(file.member("vocab"), n_tokens - n_special),
                             static_cast<int32_t>(n_special), read_special_tokens(file, n_special),
                             pretokenizer, where);
}

}  // namespace faststream::convert
