#include "cli/beam_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <string>

#include "program/option_values.h"
#include "support/error.h"

namespace faststream {
namespace {

constexpr SettingSpelling kOfDraws[] = {
    {"--temp", "temperature"}, {"--top-k", "top_k"}, {"--top-p", "top_p"}, {"--min-p", "min_p"}};
constexpr SettingSpelling kOfSearches[] = {{"--length-penalty", "length_penalty"},
                                           {"--early-stopping", "early_stopping"},
                                           {"--beam-groups", "beam_groups"},
                                           {"--diversity-penalty", "diversity_penalty"}};

}  // namespace

void add_beam_options(CLI::App& app, Request& request) {
  constexpr const char* kGroup = "Beam search";
  BeamParams& search = request.search;
  app.add_option("--beams", search.beams,
                 "Pursue the K likeliest texts and print the one with the best score; 1 draws "
                 "tokens instead")
      ->group(kGroup)
      ->type_name("K")
      ->check(whole_number<int32_t>(1))
      ->capture_default_str();
  app.add_option("--length-penalty", search.length_penalty,
                 "A text's score is its log-probability over its number of tokens to this power: "
                 "more favours long texts")
      ->group(kGroup)
      ->capture_default_str();
  static const std::map<std::string, EarlyStopping> kinds = {
      {"true", EarlyStopping::yes}, {"false", EarlyStopping::no}, {"never", EarlyStopping::never}};
  app.add_option_function<std::string>(
         "--early-stopping",
         [&search](const std::string& kind) { search.early_stopping = kinds.at(kind); },
         "End when K texts are finished (true), when none of the others would be better if it "
         "ended now (false), or could become so (never) [false]")
      ->group(kGroup)
      ->type_name("WHEN")
      ->check(CLI::IsMember({"true", "false", "never"}));
  app.add_option("--beam-groups", search.groups,
                 "Beams in G groups, each kept from the tokens of those before it")
      ->group(kGroup)
      ->type_name("G")
      ->check(whole_number<int32_t>(1))
      ->capture_default_str();
  app.add_option("--diversity-penalty", search.diversity_penalty,
                 "With --beam-groups: taken from a token's log-probability for each beam of an "
                 "earlier group that took it")
      ->group(kGroup)
      ->capture_default_str();
}

std::span<const SettingSpelling> settings_without_effect(int32_t beams) {
  if (beams > 1) return kOfDraws;
  return kOfSearches;
}

void check_beam_options(std::span<const std::string> given, int32_t beams) {
  const auto refuse_if_given = [&](std::string_view option) {
    if (std::ranges::find(given, option) == given.end()) return;
    throw UsageError(std::string(option) +
                     (beams > 1
                          ? " has no effect with --beams, which draw nothing; leave one of them out"
                          : " needs --beams, 2 or more"));
  };
  for (const SettingSpelling& setting : settings_without_effect(beams)) {
    refuse_if_given(setting.option);
  }
  // A line of a batch may have a seed whatever it does, as its result tells it.
  if (beams > 1) refuse_if_given("--seed");
}

}  // namespace faststream
