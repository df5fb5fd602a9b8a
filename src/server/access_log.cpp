#include "server/access_log.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "support/printable.h"

namespace faststream::server {
namespace {

constexpr size_t kMaxWaitingLines = 10'000;
constexpr size_t kMaxPathBytes = 256;
constexpr int kLookMilliseconds = 50;          // while nothing is taken
constexpr std::chrono::seconds kLastLines(1);  // that the end waits for them

// "2026-01-31T12:00:00.123Z"
std::string time_text(std::chrono::system_clock::time_point when) {
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(when.time_since_epoch()).count();
  const auto seconds = static_cast<std::time_t>(milliseconds / 1000);
  std::tm parts = {};
  gmtime_r(&seconds, &parts);
  std::array<char, 32> date{};
  std::strftime(date.data(), date.size(), "%Y-%m-%dT%H:%M:%S", &parts);
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%s.%03dZ", date.data(),
                static_cast<int>(milliseconds % 1000));
  return text.data();
}

}  // namespace

std::string access_line(const AccessRecord& record, LogFormat format,
                        std::chrono::system_clock::time_point when) {
  const std::string path = record.path.substr(0, kMaxPathBytes);
  if (format == LogFormat::json) {
    nlohmann::ordered_json line = {{"time", time_text(when)}, {"client", record.peer},
                                   {"method", record.method}, {"path", path},
                                   {"status", record.status}, {"cut", record.cut},
                                   {"bytes", record.bytes},   {"seconds", record.seconds}};
    if (!record.model.empty()) {
      line["model"] = record.model;
      line["prompt_tokens"] = record.prompt_tokens;
      line["completion_tokens"] = record.completion_tokens;
    }
    if (!record.failure.empty()) line["failure"] = record.failure;
    return line.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
  }
  std::array<char, 96> numbers{};
  std::snprintf(numbers.data(), numbers.size(), " %d %zu bytes %.3f s", record.status, record.bytes,
                record.seconds);
  std::string line = time_text(when) + " " + record.peer + " " + record.method + " " + path +
                     numbers.data() + (record.cut ? " cut" : "");
  if (!record.model.empty()) {
    line += " " + record.model + " " + std::to_string(record.prompt_tokens) + "+" +
            std::to_string(record.completion_tokens) + " tokens";
  }
  if (!record.failure.empty()) line += " failed: " + record.failure;
  return printable(line);
}

AccessLog::AccessLog(LogFormat format) : format_(format), thread_([this] { write_lines(); }) {}

AccessLog::~AccessLog() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    give_up_ = Clock::now() + kLastLines;
  }
  wake_.notify_one();
  thread_.join();
}

void AccessLog::add(const AccessRecord& record) {
  if (format_ == LogFormat::none && record.failure.empty()) return;
  say(access_line(record, format_, std::chrono::system_clock::now()));
}

void AccessLog::say(std::string line) {
  {
    const std::lock_guard lock(mutex_);
    if (lines_.size() >= kMaxWaitingLines) {
      ++n_left_out_;
      return;
    }
    lines_.push_back(std::move(line));
  }
  wake_.notify_one();
}

void AccessLog::write_lines() {
  for (;;) {
    std::vector<std::string> lines;
    size_t n_left_out = 0;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return ending_ || !lines_.empty(); });
      if (lines_.empty()) return;
      lines.swap(lines_);
      n_left_out = std::exchange(n_left_out_, 0);
    }
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    if (n_left_out > 0) text += std::to_string(n_left_out) + " lines were left out\n";
    write(text);
  }
}

// What cannot be written, as to a disk that is full, is nobody's.
void AccessLog::write(std::string_view text) {
  while (!text.empty() && wait_for_room()) {
    // So much a pipe takes at once that has room for anything.
    const ssize_t n = ::write(STDERR_FILENO, text.data(), std::min<size_t>(text.size(), PIPE_BUF));
    if (n < 0 && errno != EINTR && errno != EAGAIN) return;
    if (n > 0) text.remove_prefix(static_cast<size_t>(n));
  }
}

// Whether standard error takes something now; false once there is no more time for that.
bool AccessLog::wait_for_room() {
  for (;;) {
    pollfd room{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
    const int n = poll(&room, 1, kLookMilliseconds);
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return false;
    const std::lock_guard lock(mutex_);
    if (ending_ && Clock::now() > give_up_) return false;
  }
}

}  // namespace faststream::server
