#include "cli/input.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "program/interrupt.h"
#include "support/error.h"

namespace faststream {
namespace {

constexpr size_t kMaxBytes = 256 << 20;

std::string read_all(int fd, const std::string& name) {
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t n = read(fd, buffer, sizeof buffer);
    check_interrupted();
    if (n < 0) throw Error(name + " cannot be read: " + std::strerror(errno));
    if (n == 0) return text;
    text.append(buffer, static_cast<size_t>(n));
    if (text.size() > kMaxBytes) throw Error(name + " is longer than 256 MB; give a shorter text");
  }
}

}  // namespace

std::string read_standard_input() { return read_all(STDIN_FILENO, "standard input"); }

std::string read_text_file(const std::string& path, const std::string& option) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             &std::fclose);
  if (!file) throw Error(option + " " + path + " cannot be opened: " + std::strerror(errno));
  return read_all(fileno(file.get()), option + " " + path);
}

}  // namespace faststream
