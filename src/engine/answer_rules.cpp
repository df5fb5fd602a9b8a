#include "engine/answer_rules.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "engine/generation.h"
#include "engine/request.h"
#include "engine/request_settings.h"
#include "support/error.h"
#include "support/json.h"
#include "support/name_list.h"
#include "support/printable.h"

namespace faststream {
namespace {

using nlohmann::json;

constexpr size_t kMaxNever = 1024;       // rules
constexpr size_t kMaxNeverTokens = 256;  // of one
constexpr int kNamesShown = 5;           // of languages, in an error
constexpr int kNamesBefore = 2;          // of which come before the unknown one
constexpr std::array kTargets = {"none", "first", "start", "source"};

// The value's place in a list of names.
template <typename Names>
size_t index_in(const Names& names, const JsonView& value) {
  const auto name = value.as<std::string>();
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) value.fail("is " + in_quotes(name) + ", which is unknown");
  return static_cast<size_t>(found - names.begin());
}

// What is recommended of a request.
constexpr std::array<std::string_view, 6> kRecommended = {
    "beams", "length_penalty", "early_stopping", "max_tokens", "min_tokens", "no_repeat_ngram"};

Request read_recommended(const JsonView& view) {
  Request request;
  for (const std::string_view key : kRecommended) {
    if (const auto value = view.find(key)) find_request_setting(key)->read(*value, request);
  }
  if (request.max_tokens == 0) view.member("max_tokens").fail("is 0, which leaves no answer");
  return request;
}

LanguageRules read_languages(const JsonView& view, int64_t vocab, int64_t prompt_vocab) {
  view.allow_only({"source", "target", "tokens"});
  LanguageRules rules;
  if (const auto source = view.find("source")) rules.source = source->as<int32_t>(0, kMaxTokenId);
  if (const auto target = view.find("target")) {
    rules.target = static_cast<TargetLanguage>(index_in(kTargets, *target));
  }
  if (const auto tokens = view.find("tokens")) {
    if (!tokens->value().is_object()) tokens->fail("is not an object of names and token ids");
    const bool in_source = rules.target == TargetLanguage::source;
    const int64_t n_tokens = in_source ? prompt_vocab : std::min(vocab, prompt_vocab);
    for (const auto& [name, ignored] : tokens->value().items()) {
      const auto last_token = static_cast<int32_t>(n_tokens - 1);
      rules.tokens.emplace(name, tokens->member(name).as<int32_t>(0, last_token));
    }
  }
  return rules;
}

}  // namespace

AnswerRules answer_rules_from_json(const json& rules_json, int64_t vocab, int64_t prompt_vocab,
                                   std::string_view where, std::string_view advice) {
  const JsonView view(rules_json, where, advice);
  view.allow_only({"start", "first", "last", "never", "beams", "length_penalty", "early_stopping",
                   "max_tokens", "min_tokens", "no_repeat_ngram", "languages", "renormalizes"});
  const auto last_token = static_cast<int32_t>(vocab - 1);
  AnswerRules rules;
  rules.start = view.member("start").as<int32_t>(0, last_token);
  if (const auto first = view.find("first")) rules.first = first->as<int32_t>(0, last_token);
  if (const auto last = view.find("last")) rules.last = last->as<int32_t>(0, last_token);
  if (const auto never = view.find("never")) {
    for (const JsonView& tokens : never->elements()) {
      rules.never.push_back(tokens.integers<int32_t>(0, last_token));
      if (rules.never.back().empty() || rules.never.back().size() > kMaxNeverTokens ||
          rules.never.size() > kMaxNever) {
        never->fail("has an empty list, more than " + std::to_string(kMaxNever) +
                    " lists, or one of more than " + std::to_string(kMaxNeverTokens) + " tokens");
      }
    }
  }
  if (const auto renormalizes = view.find("renormalizes")) {
    rules.renormalizes = renormalizes->as<bool>();
  }
  const Request recommended = read_recommended(view);
  rules.search = recommended.search;
  rules.max_tokens = recommended.max_tokens;
  rules.min_tokens = recommended.min_tokens;
  rules.no_repeat_ngram = recommended.sampling.no_repeat_ngram;
  if (const auto languages = view.find("languages")) {
    rules.languages = read_languages(*languages, vocab, prompt_vocab);
  }
  return rules;
}

json answer_rules_to_json(const AnswerRules& rules) {
  json view = {{"start", rules.start}};
  if (rules.first) view["first"] = *rules.first;
  if (rules.last) view["last"] = *rules.last;
  if (!rules.never.empty()) view["never"] = rules.never;
  if (rules.renormalizes) view["renormalizes"] = true;
  const BeamParams untouched;
  Request recommended;
  recommended.search = rules.search;
  if (rules.search.beams != untouched.beams) view["beams"] = rules.search.beams;
  if (rules.search.length_penalty != untouched.length_penalty) {
    view["length_penalty"] = rules.search.length_penalty;
  }
  if (rules.search.early_stopping != untouched.early_stopping) {
    view["early_stopping"] = find_request_setting("early_stopping")->show(recommended);
  }
  if (rules.max_tokens >= 0) view["max_tokens"] = rules.max_tokens;
  if (rules.min_tokens > 0) view["min_tokens"] = rules.min_tokens;
  if (rules.no_repeat_ngram > 0) view["no_repeat_ngram"] = rules.no_repeat_ngram;
  const LanguageRules& languages = rules.languages;
  if (languages.source) view["languages"]["source"] = *languages.source;
  if (languages.target != TargetLanguage::none) {
    view["languages"]["target"] = kTargets[static_cast<size_t>(languages.target)];
  }
  if (!languages.tokens.empty()) view["languages"]["tokens"] = languages.tokens;
  return view;
}

int32_t language_token(const LanguageRules& rules, std::string_view name) {
  const auto& tokens = rules.tokens;
  if (tokens.empty()) {
    throw UsageError("the model file names no languages; leave " + in_quotes(name) +
                     " out, or convert the checkpoint again");
  }
  auto near = tokens.lower_bound(name);
  if (near != tokens.end() && near->first == name) return near->second;
  // Who gives "fr" sees "fra_Latn".
  for (int i = 0; i < kNamesBefore && near != tokens.begin(); ++i) --near;
  std::string names;
  for (int i = 0; i < kNamesShown && near != tokens.end(); ++i, ++near) {
    add_name(names, in_quotes(near->first));
  }
  throw UsageError("the model has no language " + in_quotes(name) + "; it has " + names +
                   " (faststream-convert --show lists all " + std::to_string(tokens.size()) + ")");
}

std::optional<std::string> take_target_language(const LanguageRules& rules, std::string& text) {
  constexpr std::string_view kBefore = ">>";
  constexpr std::string_view kAfter = "<<";
  if (rules.target != TargetLanguage::source || !text.starts_with(kBefore)) return std::nullopt;
  const size_t end = text.find(kAfter);
  if (end == std::string::npos) return std::nullopt;
  std::string name = text.substr(kBefore.size(), end - kBefore.size());
  text.erase(0, end + kAfter.size());
  return name;
}

void read_as_source(const AnswerRules& answers, const Request& request, GenerationRules& rules) {
  const LanguageRules& languages = answers.languages;
  rules.source = std::exchange(rules.prompt, {answers.start});
  rules.first = answers.first;
  if (!request.ignore_eos) rules.last = answers.last;
  rules.never = answers.never;
  rules.renormalizes = answers.renormalizes;
  if (request.source_language) {
    if (!languages.source) {
      throw UsageError("the model does not ask for the language of the source; leave it out");
    }
    // Where the tokenizer has put it: near the start or the end.
    const int32_t token = language_token(languages, *request.source_language);
    std::ranges::replace(rules.source, *languages.source, token);
  }
  if (!request.target_language) return;
  if (languages.target == TargetLanguage::none) {
    throw UsageError("the model is not told the language of the answer by a token; leave it out");
  }
  const int32_t token = language_token(languages, *request.target_language);
  switch (languages.target) {
    case TargetLanguage::none:
      return;
    case TargetLanguage::first:
      rules.first = token;
      return;
    case TargetLanguage::start:
      rules.prompt = {token};
      return;
    case TargetLanguage::source:
      rules.source.insert(rules.source.begin(), token);
      return;
  }
}

}  // namespace faststream
