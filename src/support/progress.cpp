#include "support/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <utility>

namespace faststream {

using namespace std::chrono_literals;

namespace {

constexpr const char* kEraseLine = "\r\x1b[K";  // to its end

}  // namespace

ProgressBar::ProgressBar(std::string label, Unit unit, bool enabled, Clock::time_point now)
    : label_(std::move(label)),
      unit_(unit),
      enabled_(enabled && ::isatty(STDERR_FILENO) == 1),
      start_(now),
      last_draw_(now) {}

ProgressBar::~ProgressBar() {
  if (drawn_) erase_progress();
}

void ProgressBar::update(uint64_t done, uint64_t total, Clock::time_point now) {
  if (!enabled_) return;
  if (now - last_draw_ < 100ms) return;
  last_draw_ = now;
  drawn_ = true;
  const double percent =
      total == 0 ? 100.0 : 100.0 * static_cast<double>(done) / static_cast<double>(total);
  std::string amounts;
  if (unit_ == Unit::bytes) {
    const std::chrono::duration<double> elapsed = now - start_;
    const auto speed = static_cast<uint64_t>(static_cast<double>(done) / elapsed.count());
    amounts = format_bytes(done) + " of " + format_bytes(total) + ", " + format_bytes(speed) + "/s";
  } else {
    amounts = std::to_string(done) + " of " + std::to_string(total) + " tokens";
  }
  std::array<char, 32> share{};
  std::snprintf(share.data(), share.size(), " %3.0f%% ", percent);
  draw_progress(label_ + share.data() + amounts);
}

void draw_progress(const std::string& line) {
  winsize size = {};
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  const std::string shown = line.substr(0, known ? size.ws_col : line.npos);
  std::fprintf(stderr, "%s%s", kEraseLine, shown.c_str());
  std::fflush(stderr);
}

void erase_progress() { std::fputs(kEraseLine, stderr); }

std::string format_bytes(uint64_t bytes) {
  if (bytes < 1000) return std::to_string(bytes) + (bytes == 1 ? " byte" : " bytes");
  constexpr std::array<const char*, 6> kUnits = {"kB", "MB", "GB", "TB", "PB", "EB"};
  auto value = static_cast<double>(bytes) / 1000;
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  // Three digits; small kilobytes need no second decimal.
  const int decimals = value >= 99.95 ? 0 : value >= 9.995 || unit == 0 ? 1 : 2;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.*f %s", decimals, value, kUnits.at(unit));
  return text.data();
}

}  // namespace faststream
