#include "program/output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "program/interrupt.h"

namespace faststream {

void flush_output() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  const int reason = errno;  // 0: an earlier write failed, and nothing is left to flush
  check_interrupted();
  throw OutputError("standard output cannot be written" +
                    (reason == 0 ? "" : std::string(": ") + std::strerror(reason)));
}

void print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  flush_output();
}

}  // namespace faststream
