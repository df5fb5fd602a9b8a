#include "text/tokenizer.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "support/error.h"

namespace faststream {
namespace {

using nlohmann::json;

[[noreturn]] void refuse(std::string_view where, const std::string& what) {
  throw Error(std::string(where) + ": the tokenizer's " + what + "; convert the checkpoint again.");
}

const json& member(const json& object, const char* name, std::string_view where) {
  const auto found = object.find(name);
  if (found == object.end()) refuse(where, std::string("\"") + name + "\" is missing");
  return *found;
}

bool flag(const json& object, const char* name, std::string_view where) {
  const json& value = member(object, name, where);
  if (!value.is_boolean()) {
    refuse(where, std::string("\"") + name + "\" is not true or false");
  }
  return value.get<bool>();
}

int32_t token_id(const json& value, const char* name, std::string_view where) {
  constexpr auto kLargest = std::numeric_limits<int32_t>::max();
  // Positive numbers parse as unsigned; a number made in memory may be signed.
  if (value.is_number_unsigned() ? value.get<uint64_t>() > kLargest
                                 : !value.is_number_integer() || value.get<int64_t>() < 0 ||
                                       value.get<int64_t>() > kLargest) {
    refuse(where, std::string("\"") + name + "\" is not a token id (0 to 2147483647)");
  }
  return value.get<int32_t>();
}

}  // namespace

TokenizerConfig tokenizer_config_from_json(const json& tokenizer, std::string_view where) {
  if (!tokenizer.is_object()) {
    throw Error(std::string(where) +
                ": \"tokenizer\" is not a JSON object; convert the checkpoint again.");
  }
  TokenizerConfig config;
  const json& kind = member(tokenizer, "kind", where);
  if (!kind.is_string() || kind.get_ref<const std::string&>() != config.kind) {
    refuse(where, "\"kind\" is not \"sentencepiece\", the only one this version knows");
  }
  const json& bos = member(tokenizer, "bos", where);
  if (!bos.is_null()) config.bos = token_id(bos, "bos", where);
  const json& eos = member(tokenizer, "eos", where);
  if (!eos.is_array()) refuse(where, "\"eos\" is not an array of token ids");
  for (const json& id : eos) config.eos.push_back(token_id(id, "eos", where));
  config.add_bos = flag(tokenizer, "add_bos", where);
  config.add_eos = flag(tokenizer, "add_eos", where);
  config.keep_leading_space = flag(tokenizer, "keep_leading_space", where);
  return config;
}

json tokenizer_config_to_json(const TokenizerConfig& config) {
  return {{"kind", config.kind},       {"bos", config.bos ? json(*config.bos) : json(nullptr)},
          {"eos", config.eos},         {"add_bos", config.add_bos},
          {"add_eos", config.add_eos}, {"keep_leading_space", config.keep_leading_space}};
}

bool Tokenizer::is_eos(int32_t id) const {
  const std::vector<int32_t>& eos = config().eos;
  return std::find(eos.begin(), eos.end(), id) != eos.end();
}

}  // namespace faststream
