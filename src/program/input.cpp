#include "program/input.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "program/interrupt.h"
#include "program/open_file.h"
#include "support/error.h"
#include "support/io.h"
#include "support/utf8.h"

namespace faststream {
namespace {

constexpr size_t kMaxBytes = 256 << 20;

std::string read_all(int fd, const std::string& name) {
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t n = wait_for_input(fd) ? read_waiting(fd, buffer) : -1;
    check_interrupted();
    if (n < 0) throw Error(name + " cannot be read: " + std::strerror(errno));
    if (n == 0) break;
    text.append(buffer, static_cast<size_t>(n));
    if (text.size() > kMaxBytes) throw Error(name + " is longer than 256 MB");
  }
  text = without_byte_order_mark(std::move(text), name);
  if (!is_valid_utf8(text)) {
    throw Error(name + " is not UTF-8 text; convert it, with iconv for example");
  }
  return text;
}

}  // namespace

std::string without_byte_order_mark(std::string text, const std::string& name) {
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) {
    throw Error(name + " is UTF-16 text; convert it to UTF-8, with iconv for example");
  }
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  return text;
}

std::string read_standard_input() { return read_all(STDIN_FILENO, "standard input"); }

std::string read_text_file(const std::string& path, const std::string& option) {
  if (path == "-") return read_standard_input();
  const std::string name = option + " " + path;
  const int fd = open_file(path, name, O_RDONLY);
  const auto close_file = [](const int* open) { close(*open); };
  const std::unique_ptr<const int, decltype(close_file)> guard(&fd, close_file);
  return read_all(fd, name);
}

std::string read_some_text(const std::string& path, const std::string& option) {
  std::string text = read_text_file(path, option);
  if (text.empty()) throw Error(option + " " + path + " is empty; give a text of the model's use");
  return text;
}

}  // namespace faststream
