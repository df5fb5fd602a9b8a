#include "convert/huggingface/answers_from_hf.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/request_settings.h"
#include "support/error.h"
#include "support/json.h"

namespace faststream::convert {
namespace {

using nlohmann::json;

constexpr std::string_view kAdvice = "correct it there";

// What Transformers calls settings of a request (engine/request_settings.h).
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kRequestSettings = {
    {{"num_beams", "beams"},
     {"length_penalty", "length_penalty"},
     {"early_stopping", "early_stopping"},
     {"no_repeat_ngram_size", "no_repeat_ngram"}}};

// A setting that no model file can say, or none of a model without an encoder.
struct UntakenSetting {
  std::string_view name;
  json harmless;             // the value with which it asks for nothing; null says so too
  bool of_encoders = false;  // those are told it
};

const std::vector<UntakenSetting>& untaken_settings() {
  static const std::vector<UntakenSetting> settings = {
      {"num_beam_groups", 1},
      {"diversity_penalty", 0},
      {"typical_p", 1},
      {"epsilon_cutoff", 0},
      {"eta_cutoff", 0},
      {"penalty_alpha", 0},
      {"guidance_scale", 1},
      {"encoder_no_repeat_ngram_size", 0},
      {"encoder_repetition_penalty", 1},
      {"exponential_decay_length_penalty", nullptr},
      {"sequence_bias", nullptr},
      {"suppress_tokens", json::array()},
      {"begin_suppress_tokens", json::array()},
      {"num_beams", 1, true},
      {"no_repeat_ngram_size", 0, true},
      {"min_new_tokens", 0, true},
      {"max_new_tokens", nullptr, true},
      {"bad_words_ids", json::array(), true},
  };
  return settings;
}

// As Transformers: config.json counts where there is no generation_config.json.
const json& generation_settings(const json& config, const json& generation_config) {
  return generation_config.empty() ? config : generation_config;
}

class AnswerReader {
 public:
  AnswerReader(const json& config, const json& generation_config, int64_t vocab,
               std::string_view where)
      : config_(config, std::string(where) + ": config.json", kAdvice),
        generation_(generation_config, std::string(where) + ": generation_config.json", kAdvice),
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
    Request recommended;
    recommended.search = rules.search;
    recommended.sampling.no_repeat_ngram = rules.no_repeat_ngram;
    for (const auto& [name, key] : kRequestSettings) {
      if (const auto value = find(name)) find_request_setting(key)->read(*value, recommended);
    }
    rules.search = recommended.search;
    rules.no_repeat_ngram = recommended.sampling.no_repeat_ngram;
    // The start counts there.
    if (const auto n = find("max_length")) rules.max_tokens = n->as<int64_t>(2, kMost) - 1;
    if (const auto n = find("max_new_tokens")) rules.max_tokens = n->as<int64_t>(1, kMost);
    if (const auto n = find("min_length")) rules.min_tokens = n->as<int64_t>(0, kMost);
    rules.min_tokens = std::max<int64_t>(rules.min_tokens - 1, 0);
    if (const auto n = find("min_new_tokens")) rules.min_tokens = n->as<int64_t>(0, kMost);
    return rules;
  }

 private:
  [[nodiscard]] std::optional<JsonView> find(std::string_view key) const {
    const bool in_config =
        &generation_settings(config_.value(), generation_.value()) == &config_.value();
    return (in_config ? config_ : generation_).find(key);
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
                                std::string(where) + file, kAdvice);
}

std::vector<std::string> untaken_from_hf(const json& config, const json& generation_config,
                                         bool has_encoder) {
  const json& settings = generation_settings(config, generation_config);
  std::vector<std::string> names;
  for (const UntakenSetting& setting : untaken_settings()) {
    if (has_encoder && setting.of_encoders) continue;
    const auto found = settings.find(setting.name);
    if (found == settings.end() || found->is_null() || *found == setting.harmless) continue;
    names.emplace_back(setting.name);
  }
  return names;
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
