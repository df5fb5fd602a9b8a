#include "support/progress.h"

#include <unistd.h>

#include <array>
#include <cstdio>
#include <utility>

namespace faststream {

using namespace std::chrono_literals;

ProgressBar::ProgressBar(std::string label, Unit unit, bool enabled, Clock::time_point now)
    : label_(std::move(label)),
      unit_(unit),
      enabled_(enabled && ::isatty(STDERR_FILENO) == 1),
      start_(now),
      last_draw_(now) {}

ProgressBar::~ProgressBar() {
  if (drawn_) std::fputs("\r\x1b[K", stderr);  // erase to the end of the line
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
  std::fprintf(stderr, "\r\x1b[K%s %3.0f%% %s", label_.c_str(), percent, amounts.c_str());
  std::fflush(stderr);
}

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
