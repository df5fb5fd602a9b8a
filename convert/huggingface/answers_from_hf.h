// How a model with an encoder answers, in the words of Hugging Face's Transformers.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/answer_rules.h"
#include "text/tokenizer.h"

namespace faststream::convert {

/// What generation_config.json says, or where that is empty config.json, and else `otherwise`, what
/// is so in the model's family. Where that has the target's language be a token of the answer, the
/// source's is the one that the tokenizer puts around a text besides its ends. vocab: the
/// decoder's. Throws Error, starting with `where`.
AnswerRules answers_from_hf(const nlohmann::json& config, const nlohmann::json& generation_config,
                            const AnswerRules& otherwise, const TokenizerConfig& tokenizer,
                            int64_t vocab, std::string_view where);

/// What those files ask of a model's answers and its model file will not say: the names of
/// settings, such as "typical_p".
std::vector<std::string> untaken_from_hf(const nlohmann::json& config,
                                         const nlohmann::json& generation_config, bool has_encoder);

/// The languages of a model that is told them by tokens, for LanguageRules: the special tokens of
/// its sources' tokenizer that have no other role, "__fr__" as "fr" and ">>fra<<" as "fra".
/// special_tokens: the spellings of those that have one, {"mask_token": "<mask>", ...};
/// Transformers' defaults count as named there.
std::map<std::string, int32_t, std::less<>> languages_from_hf(const Tokenizer& tokenizer,
                                                              const nlohmann::json& special_tokens);

}  // namespace faststream::convert
