#include "cli/beam_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <initializer_list>
#include <map>
#include <string>

#include "program/option_values.h"
#include "support/error.h"

namespace faststream {

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

void check_beam_options(std::span<const std::string> given, int32_t beams) {
  const auto refuse = [&](std::initializer_list<const char*> options, const std::string& why) {
    for (const char* option : options) {
      if (std::ranges::find(given, option) != given.end()) throw UsageError(option + why);
    }
  };
  if (beams > 1) {
    refuse({"--temp", "--top-k", "--top-p", "--min-p", "--seed"},
           " has no effect with --beams, which draw nothing; leave one of them out");
  } else {
    refuse({"--length-penalty", "--early-stopping", "--beam-groups", "--diversity-penalty"},
           " needs --beams, 2 or more");
  }
}

}  // namespace faststream
