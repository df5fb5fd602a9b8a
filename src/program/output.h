// Text to standard output, and what goes beside it.
#pragma once

#include <string_view>

#include "support/error.h"

namespace faststream {

/// Standard output is full or closed: there is no use in going on.
class OutputError : public Error {
 public:
  using Error::Error;
};

/// Writes out what printf(), std::cout and the like hold back. Throws OutputError when that, or any
/// write before, failed; Interrupted when Ctrl-C is why. Every program's normal end comes here.
void flush_output();

/// Lines for the user to standard error, each with a newline at its end, whatever is in them made
/// printable().
void print_notice(std::string_view lines);

/// Writes at once. Throws as flush_output() does.
void print(std::string_view text);

}  // namespace faststream
