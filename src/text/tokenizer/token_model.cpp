#include "text/tokenizer/token_model.h"

#include <nlohmann/json.hpp>
#include <string>

#include "support/printable.h"

namespace faststream {

std::unique_ptr<const TokenModel> make_token_model(const JsonView& model,
                                                   const TokenizerTables& tables,
                                                   const SymbolFinder& symbols, bool byte_level) {
  const auto type = model.get<std::string>("type");
  if (type == "BPE") return make_bpe_model(model, tables, symbols, byte_level);
  if (type == "Unigram") return make_unigram_model(model, tables);
  if (type == "WordPiece") return make_word_piece_model(model, tables);
  if (type == "WordLevel") return make_word_level_model(model, tables);
  model.member("type").fail("is the model " + in_quotes(type) + ", which is not supported");
}

std::vector<int32_t> find_byte_tokens(const TokenizerTables& tables) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::vector<int32_t> ids;
  for (size_t byte = 0; byte < 256; ++byte) {
    ids.push_back(tables.find(std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">"));
  }
  for (int32_t id = 0; id < tables.n_tokens(); ++id) {
    if ((tables.flags(id) & kTokenByte) == 0) continue;
    if (const auto byte = byte_named(tables.text(id))) ids[*byte] = id;
  }
  return ids;
}

}  // namespace faststream
