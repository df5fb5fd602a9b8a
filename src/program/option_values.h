// Checks of what options take.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>
#include <sstream>
#include <string>

#include "support/error.h"
#include "support/utf8.h"

namespace faststream {

/// Accepts decimal whole numbers from `least` to `most`, nothing else. (CLI11 alone lets numbers
/// that are too large or negative wrap around.)
template <typename Integer>
CLI::Validator whole_number(Integer least, Integer most = std::numeric_limits<Integer>::max()) {
  const auto check = [least, most](const std::string& text) {
    Integer value{};
    const char* end = text.data() + text.size();
    const auto [stop, status] = std::from_chars(text.data(), end, value);
    if (status == std::errc() && stop == end && value >= least && value <= most)
      return std::string();
    return text + " is not a whole number from " + std::to_string(least) + " to " +
           std::to_string(most);
  };
  return CLI::Validator(check, "", "");
}

/// Accepts numbers from `least` to `most`. (CLI11's own range has NaN in it.)
inline CLI::Validator number(double least, double most) {
  const auto check = [least, most](const std::string& text) {
    double value{};
    const char* end = text.data() + text.size();
    const auto [stop, status] = std::from_chars(text.data(), end, value);
    if (status == std::errc() && stop == end && value >= least && value <= most)
      return std::string();
    std::ostringstream message;
    message << text << " is not a number from " << least << " to " << most;
    return message.str();
  };
  return CLI::Validator(check, "", "");
}

/// Accepts texts that are UTF-8.
inline CLI::Validator utf8_text() {
  const auto check = [](const std::string& text) {
    return std::string(
        is_valid_utf8(text) ? "" : "is not UTF-8 text; convert it, with iconv for example");
  };
  return CLI::Validator(check, "", "");
}

/// Accepts texts but an empty one.
inline CLI::Validator some_text() {
  const auto check = [](const std::string& text) {
    return std::string(text.empty() ? "is empty; it takes a text" : "");
  };
  return CLI::Validator(check, "", "");
}

/// Accepts what may name a file: any text but an empty one.
inline CLI::Validator named_file() {
  const auto check = [](const std::string& file) {
    return std::string(file.empty() ? "is empty; it takes the name of a file" : "");
  };
  return CLI::Validator(check, "", "");
}

/// Accepts names of files but "-", which other options take for a stream.
inline CLI::Validator output_file() {
  const auto check = [](const std::string& file) {
    return std::string(file == "-" ? "- is not standard output here, but would be a file of that "
                                     "name; write ./- if that is meant"
                                   : "");
  };
  return CLI::Validator(check, "", "");
}

/// Accepts texts for which `read` does not throw UsageError.
template <typename Read>
CLI::Validator accepted_by(Read read) {
  const auto check = [read](const std::string& text) {
    try {
      (void)read(text);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  return CLI::Validator(check, "", "");
}

}  // namespace faststream
