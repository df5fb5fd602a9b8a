#include "convert/tokenizers/added_tokens.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "support/error.h"
#include "support/json.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// {"32000": {"content": "<pad>"}, ...}
void add_decoder(const json& tokenizer_config, const std::string& where,
                 std::vector<AddedToken>& tokens) {
  const auto decoder = JsonView(tokenizer_config, where).find("added_tokens_decoder");
  if (!decoder) return;
  if (!decoder->value().is_object()) decoder->fail("is not an object");
  for (const auto& [key, value] : decoder->value().items()) {
    int32_t id = -1;
    const auto [stop, status] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (status != std::errc() || stop != key.data() + key.size() || id < 0) {
      decoder->fail("names " + in_quotes(key) + ", which is no token id");
    }
    tokens.push_back({id, decoder->member(key).get<std::string>("content"), where});
  }
}

// {"<pad>": 32000, ...}
void add_encoder(const json& encoder, const std::string& where, std::vector<AddedToken>& tokens) {
  const JsonView view(encoder, where);
  for (const auto& [text, id] : encoder.items()) {
    tokens.push_back({view.member(text).as<int32_t>(0, kMaxTokenId), text, where});
  }
}

// [{"id": 32000, "content": "<pad>"}, ...]
void add_list(const json& tokenizer, const std::string& where, std::vector<AddedToken>& tokens) {
  const auto list = JsonView(tokenizer, where).find("added_tokens");
  if (!list) return;
  for (const JsonView& token : list->elements()) {
    tokens.push_back(
        {token.member("id").as<int32_t>(0, kMaxTokenId), token.get<std::string>("content"), where});
  }
}

}  // namespace

std::vector<AddedToken> added_tokens_from_hf(const json& tokenizer_config, const json& added_tokens,
                                             const json& tokenizer, const fs::path& folder) {
  std::vector<AddedToken> tokens;
  add_decoder(tokenizer_config, (folder / "tokenizer_config.json").string(), tokens);
  add_encoder(added_tokens, (folder / "added_tokens.json").string(), tokens);
  add_list(tokenizer, (folder / "tokenizer.json").string(), tokens);
  return tokens;
}

void require_added_tokens(const std::vector<AddedToken>& tokens, const Tokenizer& tokenizer) {
  for (const AddedToken& token : tokens) {
    if (tokenizer.find_token(token.text) == token.id) continue;
    throw Error(token.where + ": adds the token " + in_quotes(token.text) + " with id " +
                std::to_string(token.id) +
                ", which the tokenizer does not have, and this version cannot add tokens; name a "
                "tokenizer that has it with --tokenizer FILE");
  }
}

}  // namespace faststream::convert
