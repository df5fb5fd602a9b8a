// Tokens that a Hugging Face checkpoint adds to those of its tokenizer model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace faststream::convert {

struct AddedToken {
  int32_t id = 0;
  std::string text;
  std::string where;  ///< the file that adds it
};

/// What the files of `folder` add, as Transformers collects it: "added_tokens_decoder" of
/// tokenizer_config.json, all of added_tokens.json, and "added_tokens" of tokenizer.json; each may
/// be an empty object. Throws Error, naming the file, when one of them is not as it should be.
std::vector<AddedToken> added_tokens_from_hf(const nlohmann::json& tokenizer_config,
                                             const nlohmann::json& added_tokens,
                                             const nlohmann::json& tokenizer,
                                             const std::filesystem::path& folder);

/// Throws Error, naming token and file, unless `tokenizer` has every token under its id already.
/// Text with such a token would be split wrongly, and the token's own text lost in answers.
void require_added_tokens(const std::vector<AddedToken>& tokens, const Tokenizer& tokenizer);

}  // namespace faststream::convert
