// What is wrong with a command line, in words of ours.
#pragma once

#include <span>
#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace faststream {

/// A sentence, without a full stop, for an error of app.parse() of `arguments`, the program's name
/// not among them. What is no option comes first, as then all else may be wrong because of it.
std::string usage_sentence(const CLI::App& app, const CLI::ParseError& error,
                           std::span<const char* const> arguments);

}  // namespace faststream
