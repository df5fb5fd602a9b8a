// Text to standard output.
#pragma once

#include <string_view>

#include "support/error.h"

namespace faststream {

/// Standard output is full or closed: there is no use in going on.
class OutputError : public Error {
 public:
  using Error::Error;
};

/// Writes at once. Throws OutputError when that fails, Interrupted when Ctrl-C is why.
void print(std::string_view text);

}  // namespace faststream
