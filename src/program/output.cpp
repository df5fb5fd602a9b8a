#include "program/output.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "program/interrupt.h"
#include "support/io.h"
#include "support/printable.h"

namespace faststream {
namespace {

// reason: of errno; 0 where an earlier write failed, and what it was is not known any more.
[[noreturn]] void fail(int reason) {
  check_interrupted();
  throw OutputError("standard output cannot be written" +
                    (reason == 0 ? "" : std::string(": ") + std::strerror(reason)));
}

}  // namespace

void flush_output() {
  errno = 0;
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) fail(errno);
}

void print_notice(std::string_view lines) {
  while (!lines.empty()) {
    const size_t end = std::min(lines.find('\n'), lines.size());
    const std::string line = printable(lines.substr(0, end)) + '\n';
    std::fwrite(line.data(), 1, line.size(), stderr);
    lines.remove_prefix(std::min(end + 1, lines.size()));
  }
}

void print(std::string_view text) {
  flush_output();
  while (!text.empty()) {
    const ssize_t n = write_waiting(STDOUT_FILENO, text);
    if (n < 0 && errno == EINTR && !interrupted()) continue;
    if (n < 0) fail(errno);
    text.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace faststream
