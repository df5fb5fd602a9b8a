// A progress bar on stderr.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace faststream {

/// Shows "label  43% 3.1 GB of 7.2 GB, 2.4 GB/s", or "label  43% 3521 of 8192 tokens", on a
/// terminal, redrawn in place at most ten times a second and not in the first tenth; nothing where
/// stderr is no terminal or `enabled` is false. The destructor erases it.
class ProgressBar {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Unit { bytes, tokens };
  ProgressBar(std::string label, Unit unit, bool enabled, Clock::time_point now = Clock::now());
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar();

  void update(uint64_t done, uint64_t total, Clock::time_point now = Clock::now());

 private:
  std::string label_;
  Unit unit_;
  bool enabled_;
  bool drawn_ = false;
  Clock::time_point start_;
  Clock::time_point last_draw_;
};

/// Draws a line of ASCII on the terminal that stderr is, over the last one: as much of it as the
/// terminal has columns for now, since what goes on in the next row would stay there.
void draw_progress(const std::string& line);
/// Erases what draw_progress() drew.
void erase_progress();

/// "812 bytes", "6.2 kB", "1.06 MB", "7.21 GB" (powers of ten).
std::string format_bytes(uint64_t bytes);

}  // namespace faststream
