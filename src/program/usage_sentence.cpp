#include "program/usage_sentence.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <numeric>
#include <string_view>
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

// The option that is nearest to a word, if there is one that may have been meant.
std::string meant_option(const CLI::App& app, const std::string& word) {
  constexpr size_t kMostSlips = 2;
  std::string nearest;
  size_t least = kMostSlips + 1;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      const size_t slips = distance(word, "--" + name);
      if (slips < least) {
        least = slips;
        nearest = "--" + name;
      }
    }
  }
  return nearest;
}

std::string extra_argument(const CLI::App& app, const std::vector<std::string>& extras) {
  const auto option = std::ranges::find_if(extras, [](const std::string& argument) {
    return argument.size() > 1 && argument.starts_with('-');
  });
  if (option == extras.end()) {
    return "the argument " + in_quotes(extras.front()) +
           " belongs to no option; put a text with spaces in quotes";
  }
  const std::string word = option->substr(0, option->find('='));
  const std::string meant = meant_option(app, word);
  return "there is no option " + printable(word) +
         (meant.empty() ? "" : "; did you mean " + meant + "?");
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

std::string usage_sentence(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> extras = app.remaining();
  if (!extras.empty()) return extra_argument(app, extras);
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    return wrong_count(app, error);
  }
  if (dynamic_cast<const CLI::ExcludesError*>(&error) != nullptr) return exclusion(error.what());
  return error.what();
}

}  // namespace faststream
