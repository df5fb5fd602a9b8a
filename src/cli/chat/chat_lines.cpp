#include "cli/chat/chat_lines.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "program/input.h"
#include "program/interrupt.h"
#include "support/error.h"

namespace faststream::cli {
namespace {

constexpr size_t kMaxLineBytes = 16 << 20;

}  // namespace

LineSource::Event ScriptLines::next(bool /*continues*/, std::string& line) {
  size_t searched = start_;
  for (;;) {
    const size_t newline = buffer_.find('\n', searched);
    if (newline != std::string::npos || (ended_ && start_ < buffer_.size())) {
      const size_t end = newline == std::string::npos ? buffer_.size() : newline;
      line = buffer_.substr(start_, end - start_);
      if (line.ends_with('\r')) line.pop_back();
      if (!begun_) line = faststream::without_byte_order_mark(std::move(line), "standard input");
      begun_ = true;
      start_ = newline == std::string::npos ? end : end + 1;
      return Event::line;
    }
    if (ended_) return Event::end;
    buffer_.erase(0, start_);
    start_ = 0;
    searched = buffer_.size();
    if (searched > kMaxLineBytes) {
      throw Error("a line of standard input is longer than 16 MB; give shorter messages");
    }

    std::array<char, 1 << 16> block;
    const ssize_t n = interrupted() ? -1 : read(fd_, block.data(), block.size());
    if (interrupted()) return Event::interrupted;
    if (n < 0) throw Error(std::string("standard input cannot be read: ") + std::strerror(errno));
    ended_ = n == 0;
    buffer_.append(block.data(), static_cast<size_t>(n));
  }
}

}  // namespace faststream::cli
