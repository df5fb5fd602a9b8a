#include "program/output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "program/interrupt.h"

namespace faststream {

void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    check_interrupted();
    throw OutputError(std::string("standard output cannot be written: ") + std::strerror(errno));
  }
}

}  // namespace faststream
