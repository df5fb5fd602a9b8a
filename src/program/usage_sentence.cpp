#include "program/usage_sentence.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <numeric>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

#include "support/printable.h"

namespace faststream {
namespace {

// Letters to insert, delete or replace between two words (Levenshtein's distance).
size_t distance(std::string_view from, std::string_view to) {
  std::vector<size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (const char letter : from) {
    size_t diagonal = row[0]++;
    for (size_t i = 0; i < to.size(); ++i) {
      const size_t replaced = diagonal + (letter == to[i] ? 0 : 1);
      diagonal = row[i + 1];
      row[i + 1] = std::min({replaced, row[i] + 1, row[i + 1] + 1});
    }
  }
  return row.back();
}

// What other programs that run models, and OpenAI's interface, call some of the options.
struct OtherName {
  std::string_view other;
  std::string_view ours;
};
constexpr std::array kOtherNames = std::to_array<OtherName>({
    {"api-key", "api-key-file"},
    {"beam-size", "beams"},
    {"cache-type-k", "kv"},
    {"cache-type-v", "kv"},
    {"ctx-size", "context"},
    {"draft-model", "speculate"},
    {"generation-tokens", "tokens"},
    {"interactive", "chat"},
    {"kv-cache-dtype", "kv"},
    {"max-length", "tokens"},
    {"max-model-len", "context"},
    {"max-new-tokens", "tokens"},
    {"max-num-seqs", "slots"},
    {"max-tokens", "tokens"},
    {"model-draft", "speculate"},
    {"n-gpu-layers", "device"},
    {"n-predict", "tokens"},
    {"ngl", "device"},
    {"num-beams", "beams"},
    {"outfile", "output"},
    {"outtype", "dtype"},
    {"parallel", "slots"},
    {"predict", "tokens"},
    {"quantization", "dtype"},
    {"repeat-penalty", "repetition-penalty"},
    {"reverse-prompt", "stop"},
    {"served-model-name", "model"},
    {"tensor-parallel-size", "gpus"},
});

// Letters that may be wrong in a word of so many: in short ones few, which else become any other.
size_t most_slips(size_t letters) { return std::min<size_t>(2, letters / 2); }

// How far a word is from an option's name, if it may mean that: some letters, or what one of them
// has behind the other.
std::optional<size_t> slips_between(std::string_view word, std::string_view name) {
  constexpr size_t kLeastBeginning = 3;
  const size_t slips = distance(word, name);
  if (slips <= most_slips(word.size())) return slips;
  if (std::min(word.size(), name.size()) < kLeastBeginning) return std::nullopt;
  if (word.starts_with(name) || name.starts_with(word)) return slips;
  return std::nullopt;
}

// The option that a word without its dashes means, if there is one that it may.
std::string meant_option(const CLI::App& app, std::string_view word) {
  std::string nearest;
  size_t least = std::numeric_limits<size_t>::max();
  const auto* other = std::ranges::find(kOtherNames, word, &OtherName::other);
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      if (other != kOtherNames.end() && other->ours == name) return "--" + name;
      const std::optional<size_t> slips = slips_between(word, name);
      if (!slips || *slips >= least) continue;
      least = *slips;
      nearest = "--" + name;
    }
  }
  return nearest;
}

std::string no_option(const CLI::App& app, const std::string& word) {
  const std::string meant = meant_option(app, word.substr(word.find_first_not_of('-')));
  return "there is no option " + printable(word) +
         (meant.empty() ? "" : "; did you mean " + meant + "?");
}

// An argument as "-temp", which is -t and its value, where it is a name that wants another dash.
std::optional<std::string> name_after_one_dash(const CLI::App& app,
                                               std::span<const char* const> arguments) {
  for (const std::string_view argument : arguments) {
    const std::string word(argument.substr(0, argument.find('=')));
    if (word.size() <= 2 || word[0] != '-' || word[1] == '-') continue;
    const std::string name = word.substr(1);
    const bool is_known =
        app.get_option_no_throw("--" + name) != nullptr ||
        std::ranges::find(kOtherNames, name, &OtherName::other) != kOtherNames.end();
    if (is_known && !meant_option(app, name).empty()) return word;
  }
  return std::nullopt;
}

std::string extra_argument(const CLI::App& app, const std::vector<std::string>& extras) {
  const auto option = std::ranges::find_if(extras, [](const std::string& argument) {
    return argument.size() > 1 && argument.starts_with('-');
  });
  if (option == extras.end()) {
    std::error_code unknown;
    const bool is_model = app.get_option_no_throw("--model") != nullptr &&
                          std::filesystem::is_regular_file(extras.front(), unknown);
    return "the argument " + in_quotes(extras.front()) + " belongs to no option; " +
           (is_model ? "give a model file after -m" : "put a text with spaces in quotes");
  }
  const std::string word = option->substr(0, option->find('='));
  if (word.find_first_not_of('-') == std::string::npos) return "there is no option " + word;
  return no_option(app, word);
}

// Of an option with more values than it takes, or without one.
std::string wrong_count(const CLI::App& app, const CLI::ParseError& error) {
  for (const CLI::Option* option : app.get_options()) {
    if (static_cast<int>(option->count()) > option->get_items_expected_max()) {
      return option->get_name() + " is given " + std::to_string(option->count()) +
             " times; give it once";
    }
  }
  std::string message = error.what();
  const std::string name = message.substr(0, message.find(':'));
  const CLI::Option* option = app.get_option_no_throw(name);
  if (option == nullptr) return message;
  return name + " needs a value, " + option->get_type_name();
}

// "--file excludes --prompt"
std::string exclusion(std::string message) {
  constexpr std::string_view kVerb = " excludes ";
  const size_t verb = message.find(kVerb);
  if (verb == std::string::npos) return message;
  message.replace(verb, kVerb.size(), " and ");
  return message + " do not go together; leave one of them out";
}

}  // namespace

std::string usage_sentence(const CLI::App& app, const CLI::ParseError& error,
                           std::span<const char* const> arguments) {
  if (const auto word = name_after_one_dash(app, arguments)) return no_option(app, *word);
  const std::vector<std::string> extras = app.remaining();
  if (!extras.empty()) return extra_argument(app, extras);
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    return wrong_count(app, error);
  }
  if (dynamic_cast<const CLI::ExcludesError*>(&error) != nullptr) return exclusion(error.what());
  return error.what();
}

}  // namespace faststream
