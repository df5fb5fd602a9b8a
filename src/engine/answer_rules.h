// How the texts of a model with an encoder begin and end, and what its makers recommend for them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/beam_params.h"
#include "model_file/model_file.h"

namespace faststream {

struct GenerationRules;
struct Request;

/// Where the token of the language that is translated into goes.
enum class TargetLanguage {
  none,    ///< the model has one language, or is told in words
  first,   ///< it is the answer's first token
  start,   ///< the answer begins after it
  source,  ///< it begins the source
};

/// The languages of a model that translates.
struct LanguageRules {
  /// The token of the source's language that the tokenizer puts before or after a text unless
  /// another is asked for; none: the model is not told.
  std::optional<int32_t> source;
  TargetLanguage target = TargetLanguage::none;
  /// Of each language, by the name that users give it, its token: of the vocabulary of sources, and
  /// where answers have it, too, of both.
  std::map<std::string, int32_t, std::less<>> tokens = {};
};

/// A model file's header under "answers".
struct AnswerRules {
  int32_t start = 0;                        ///< the token after which an answer begins
  std::optional<int32_t> first;             ///< the answer's first token, whatever its logit
  std::optional<int32_t> last;              ///< likewise the last one that there is room for
  std::vector<std::vector<int32_t>> never;  ///< tokens in a row that no answer has
  /// Beams' scores are log-probabilities again after all that forbids or changes tokens.
  bool renormalizes = false;
  BeamParams search;            ///< recommended
  int64_t max_tokens = -1;      ///< likewise
  int64_t min_tokens = 0;       ///< likewise
  int32_t no_repeat_ngram = 0;  ///< likewise
  LanguageRules languages;
};

/// Throws Error, starting with `where` and ending with `advice`, when a member is missing, unknown,
/// of the wrong type or out of range. vocab: the decoder's; prompt_vocab: that of sources.
AnswerRules answer_rules_from_json(const nlohmann::json& json, int64_t vocab, int64_t prompt_vocab,
                                   std::string_view where,
                                   std::string_view advice = "convert the checkpoint again");
nlohmann::json answer_rules_to_json(const AnswerRules& rules);

/// The token of a language. Throws UsageError, naming some that there are, when there is none.
int32_t language_token(const LanguageRules& rules, std::string_view name);

/// Takes a language off the start of a text for a model whose sources begin with it, as Marian's
/// users write it: ">>fra<< Good morning." Returns its name; nothing where there is none.
std::optional<std::string> take_target_language(const LanguageRules& rules, std::string& text);

/// Makes the prompt of `rules` the source, and the prompt what the model's answers begin with, in
/// the languages that the request asks for. Throws UsageError when the model does not have them.
void read_as_source(const AnswerRules& answers, const Request& request, GenerationRules& rules);

}  // namespace faststream
