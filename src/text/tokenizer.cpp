#include "text/tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "support/json.h"

namespace faststream {
namespace {

using nlohmann::json;

constexpr const char* kKind = "compiled";  // a SentencePiece model itself was another

}  // namespace

TokenizerConfig tokenizer_config_from_json(const json& json, std::string_view where) {
  const JsonView tokenizer(json, where, "convert the checkpoint again");
  TokenizerConfig config;
  if (tokenizer.get<std::string>("kind") != kKind) {
    tokenizer.member("kind").fail("is not \"compiled\", the only one that this version knows");
  }
  // Null says that there is none; a file that says nothing is damaged.
  if (!tokenizer.has("bos")) tokenizer.fail("\"bos\" is missing");
  if (const auto bos = tokenizer.find("bos")) config.bos = bos->as<int32_t>(0, kMaxTokenId);
  config.eos = tokenizer.member("eos").integers<int32_t>(0, kMaxTokenId);
  config.prefix = tokenizer.member("prefix").integers<int32_t>(0, kMaxTokenId);
  config.suffix = tokenizer.member("suffix").integers<int32_t>(0, kMaxTokenId);
  if (const auto between = tokenizer.find("between")) {
    config.between = between->integers<int32_t>(0, kMaxTokenId);
  }
  config.pair_segments = tokenizer.get("pair_segments", false);
  config.keep_leading_space = tokenizer.get<bool>("keep_leading_space");
  return config;
}

json tokenizer_config_to_json(const TokenizerConfig& config) {
  json members = {
      {"kind", kKind},           {"bos", config.bos ? json(*config.bos) : json(nullptr)},
      {"eos", config.eos},       {"prefix", config.prefix},
      {"suffix", config.suffix}, {"keep_leading_space", config.keep_leading_space}};
  if (config.between) members["between"] = *config.between;
  if (config.pair_segments) members["pair_segments"] = true;
  return members;
}

bool Tokenizer::is_eos(int32_t id) const {
  const std::vector<int32_t>& eos = config().eos;
  return std::find(eos.begin(), eos.end(), id) != eos.end();
}

std::vector<int32_t> Tokenizer::encode_parsing_special(std::string_view text) const {
  const Stretch whole{.text = text, .from_template = true};
  std::vector<int32_t> ids = encode_stretches({&whole, 1});
  const std::vector<int32_t>& prefix = config().prefix;
  const std::vector<int32_t>& suffix = config().suffix;
  if (!std::equal(prefix.begin(), prefix.end(), ids.begin(),
                  ids.begin() + static_cast<std::ptrdiff_t>(std::min(prefix.size(), ids.size())))) {
    ids.insert(ids.begin(), prefix.begin(), prefix.end());
  }
  if (ids.size() < suffix.size() || !std::equal(suffix.rbegin(), suffix.rend(), ids.rbegin())) {
    ids.insert(ids.end(), suffix.begin(), suffix.end());
  }
  return ids;
}

}  // namespace faststream
