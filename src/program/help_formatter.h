// What --help looks like.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace faststream {

/// CLI11's, with descriptions in lines as wide as the terminal has room for, and without the lists
/// of what an option excludes, which would be longer than what it does: whoever gives two that do
/// not go together is told so.
class HelpFormatter : public CLI::Formatter {
 public:
  [[nodiscard]] std::string make_option_opts(const CLI::Option* option) const override;
  [[nodiscard]] std::string make_option_desc(const CLI::Option* option) const override;
};

/// `text`, whose words are in lines of at most `width` columns, if none is longer.
std::string in_lines(const std::string& text, size_t width);

}  // namespace faststream
