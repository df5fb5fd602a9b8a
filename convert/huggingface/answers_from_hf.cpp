#include "convert/huggingface/answers_from_hf.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "support/error.h"
#include "support/json.h"

namespace faststream::convert {
namespace {

using nlohmann::json;

class AnswerReader {
 public:
  AnswerReader(const json& config, const json& generation_config, int64_t vocab,
               std::string_view where)
      : config_(config, std::string(where) + ": config.json"),
        generation_(generation_config, std::string(where) + ": generation_config.json"),
        last_token_(static_cast<int32_t>(vocab - 1)) {}

  AnswerRules read(const AnswerRules& otherwise) const {
    AnswerRules rules = otherwise;
    if (const auto start = token("decoder_start_token_id")) rules.start = *start;
    rules.first = token("forced_bos_token_id");
    rules.last = token("forced_eos_token_id");
    read_never(rules);
    if (const auto renormalizes = find("renormalize_logits")) {
      rules.renormalizes = !renormalizes->value().is_null() && renormalizes->as<bool>();
    }
    constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
    if (const auto n = find("num_beams")) rules.search.beams = n->as<int32_t>(1, kMost);
    if (const auto p = find("length_penalty")) rules.search.length_penalty = p->as<float>();
    if (const auto stopping = find("early_stopping")) {
      rules.search.early_stopping = early_stopping(*stopping);
    }
    // The start counts there.
    if (const auto n = find("max_length")) rules.max_tokens = n->as<int64_t>(2, kMost) - 1;
    if (const auto n = find("max_new_tokens")) rules.max_tokens = n->as<int64_t>(1, kMost);
    if (const auto n = find("min_length")) rules.min_tokens = n->as<int64_t>(0, kMost);
    rules.min_tokens = std::max<int64_t>(rules.min_tokens - 1, 0);
    if (const auto n = find("min_new_tokens")) rules.min_tokens = n->as<int64_t>(0, kMost);
    if (const auto n = find("no_repeat_ngram_size")) {
      rules.no_repeat_ngram = n->as<int32_t>(0, kMost);
    }
    return rules;
  }

 private:
  // As Transformers: config.json counts where there is no generation_config.json.
  [[nodiscard]] std::optional<JsonView> find(std::string_view key) const {
    return (generation_.value().empty() ? config_ : generation_).find(key);
  }

  // Of both files, for newer ones have it in generation_config.json alone.
  [[nodiscard]] std::optional<int32_t> token(std::string_view key) const {
    auto found = generation_.find(key);
    if (!found) found = config_.find(key);
    if (!found) return std::nullopt;
    if (!found->value().is_array()) return found->as<int32_t>(0, last_token_);
    const auto tokens = found->integers<int32_t>(0, last_token_);
    if (tokens.empty()) found->fail("is empty");
    return tokens.front();
  }

  static EarlyStopping early_stopping(const JsonView& value) {
    if (value.value().is_boolean()) {
      return value.as<bool>() ? EarlyStopping::yes : EarlyStopping::no;
    }
    if (value.value() != "never") value.fail("is not true, false or \"never\"");
    return EarlyStopping::never;
  }

  // Without those that would keep texts from ending, which Transformers passes over.
  void read_never(AnswerRules& rules) const {
    const auto list = find("bad_words_ids");
    if (!list) return;
    for (const JsonView& tokens : list->elements()) {
      std::vector<int32_t> row = tokens.integers<int32_t>(0, last_token_);
      if (row.empty()) list->fail("has an empty list");
      const auto end = token("eos_token_id");
      if (end && row == std::vector{*end}) continue;
      rules.never.push_back(std::move(row));
    }
  }

  JsonView config_;
  JsonView generation_;
  int32_t last_token_;
};

std::string language_name(std::string_view spelling) {
  for (const auto& [before, after] : {std::pair("__", "__"), std::pair(">>", "<<")}) {
    constexpr size_t kMarks = 4;  // characters of both
    if (spelling.size() > kMarks && spelling.starts_with(before) && spelling.ends_with(after)) {
      return std::string(spelling.substr(kMarks / 2, spelling.size() - kMarks));
    }
  }
  return std::string(spelling);
}

}  // namespace

AnswerRules answers_from_hf(const json& config, const json& generation_config,
                            const AnswerRules& otherwise, const TokenizerConfig& tokenizer,
                            int64_t vocab, std::string_view where) {
  AnswerRules rules = AnswerReader(config, generation_config, vocab, where).read(otherwise);
  if (rules.languages.target == TargetLanguage::first) {
    const auto is_end = [&](int32_t token) {
      return token == tokenizer.bos ||
             std::ranges::find(tokenizer.eos, token) != tokenizer.eos.end();
    };
    // mBART's first models begin answers after their language, the others after an end.
    if (!is_end(rules.start)) rules.languages.target = TargetLanguage::start;
    for (const std::vector<int32_t>* around : {&tokenizer.suffix, &tokenizer.prefix}) {
      for (const int32_t token : *around) {
        if (!is_end(token)) rules.languages.source = token;
      }
    }
  }
  // What a model file cannot say is refused here, where the file that says it can be named.
  const char* file = generation_config.empty() ? ": config.json" : ": generation_config.json";
  return answer_rules_from_json(answer_rules_to_json(rules), vocab, vocab,
                                std::string(where) + file, "correct it there");
}

std::map<std::string, int32_t, std::less<>> languages_from_hf(const Tokenizer& tokenizer,
                                                              const json& special_tokens) {
  std::set<std::string> others = {"<s>", "</s>", "<unk>", "<pad>", "<mask>"};
  for (const auto& [role, spelling] : special_tokens.items()) {
    if (spelling.is_string()) others.insert(spelling.get<std::string>());
  }
  std::map<std::string, int32_t, std::less<>> languages;
  for (int32_t token = 0; token < tokenizer.vocab_size(); ++token) {
    if (!tokenizer.token_bytes(token).empty()) continue;  // a word of a text
    Detokenizer shown(tokenizer, false, {.all = true});
    std::string spelling = shown.push(token);
    spelling += shown.finish();
    if (others.contains(spelling) || tokenizer.find_token(spelling) != token) continue;
    languages.emplace(language_name(spelling), token);
  }
  return languages;
}

}  // namespace faststream::convert
