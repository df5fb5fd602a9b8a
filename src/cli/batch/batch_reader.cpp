#include "cli/batch/batch_reader.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "program/interrupt.h"
#include "support/error.h"

namespace faststream::cli {
namespace {

constexpr size_t kBlockBytes = 256 << 10;
constexpr uint64_t kMaxSkippedBytes = uint64_t{16} << 30;  // a device may never end a line

}  // namespace

LineReader::LineReader(int fd, std::string name, size_t max_bytes)
    : fd_(fd), name_(std::move(name)), max_bytes_(max_bytes), block_(kBlockBytes) {}

std::optional<LineReader::Line> LineReader::next() {
  if (line_.capacity() > kBlockBytes) line_ = std::string();  // after a long line
  line_.clear();
  if (unread_.empty() && !fill()) return std::nullopt;
  Line line{.number = ++number_, .begin = position_};
  while (!line.ended && (!unread_.empty() || fill())) {
    const std::string_view piece = unread_.substr(0, unread_.find('\n'));
    line.too_long = line.too_long || !keep(piece);
    line.ended = piece.size() < unread_.size();
    const size_t taken = piece.size() + (line.ended ? 1 : 0);
    unread_.remove_prefix(taken);
    position_ += taken;
    if (position_ - line.begin > kMaxSkippedBytes) {
      throw Error(name_ + ": line " + std::to_string(number_) +
                  " is longer than 16 GB; is this a file of lines?");
    }
  }
  line.text = line_;
  return line;
}

bool LineReader::has_more_now() const {
  if (!unread_.empty()) return true;
  pollfd ready{.fd = fd_, .events = POLLIN, .revents = 0};
  return poll(&ready, 1, 0) > 0;
}

// Appends to the line. False when it is not all kept.
bool LineReader::keep(std::string_view piece) {
  const size_t room = max_bytes_ - line_.size();
  try {
    line_ += piece.substr(0, room);
  } catch (const std::bad_alloc&) {
    return false;
  }
  return piece.size() <= room;
}

// False at the end.
bool LineReader::fill() {
  for (;;) {
    const ssize_t n = wait_for_input(fd_) ? read(fd_, block_.data(), block_.size()) : -1;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw Error(name_ + " cannot be read: " + std::strerror(errno));
    unread_ = {block_.data(), static_cast<size_t>(n)};
    return n > 0;
  }
}

}  // namespace faststream::cli
