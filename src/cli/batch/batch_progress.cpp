#include "cli/batch/batch_progress.h"

#include <unistd.h>

#include <array>
#include <cstdio>

#include "support/progress.h"

namespace faststream::cli {
namespace {

constexpr std::chrono::milliseconds kDrawInterval(100);

std::string count(uint64_t n, const std::string& thing) {
  return std::to_string(n) + ' ' + thing + (n == 1 ? "" : "s");
}

std::string decimal(double value, int decimals) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", decimals, value);
  return text.data();
}

std::string token_rate(const BatchCounts& counts, double seconds) {
  return decimal(seconds > 0 ? static_cast<double>(counts.tokens) / seconds : 0, 1) + " tokens/s";
}

// "0:07", "2:10", "1:02:03"
std::string clock_time(double seconds) {
  const auto total = static_cast<unsigned long long>(seconds);
  std::array<char, 64> text{};
  if (total < 3600) {
    std::snprintf(text.data(), text.size(), "%llu:%02llu", total / 60, total % 60);
  } else {
    std::snprintf(text.data(), text.size(), "%llu:%02llu:%02llu", total / 3600, total / 60 % 60,
                  total % 60);
  }
  return text.data();
}

}  // namespace

std::string batch_progress(const BatchCounts& counts, double seconds) {
  const uint64_t done = counts.bytes + counts.bytes_passed;
  std::string text = "batch ";
  if (counts.bytes_total > 0) {
    const double share = static_cast<double>(done) / static_cast<double>(counts.bytes_total);
    text += (share < 0.1 ? "  " : share < 1 ? " " : "") + decimal(100 * share, 0) + "% ";
  }
  text += count(counts.lines + counts.done_before, "line");
  if (counts.failed > 0) text += ", " + std::to_string(counts.failed) + " failed";
  text += ", " + token_rate(counts, seconds);
  if (counts.bytes > 0 && done < counts.bytes_total) {
    const double seconds_per_byte = seconds / static_cast<double>(counts.bytes);
    text += ", " + clock_time(seconds_per_byte * static_cast<double>(counts.bytes_total - done)) +
            " left";
  }
  return text;
}

std::string batch_summary(const BatchCounts& counts, double seconds, bool interrupted) {
  std::string text =
      (interrupted ? "batch interrupted: " : "batch: ") + count(counts.lines, "line") + " done, ";
  if (counts.done_before > 0) text += std::to_string(counts.done_before) + " done before, ";
  return text + std::to_string(counts.failed) + " failed, " + count(counts.tokens, "token") +
         " in " + decimal(seconds, 2) + " s, " + token_rate(counts, seconds);
}

BatchProgress::BatchProgress(bool shows_results)
    : on_terminal_(!shows_results && isatty(STDERR_FILENO) == 1),
      start_(Clock::now()),
      last_draw_(start_) {}

void BatchProgress::erase() const {
  if (on_terminal_) erase_progress();
}

bool BatchProgress::due() const {
  return on_terminal_ && Clock::now() - last_draw_ >= kDrawInterval;
}

void BatchProgress::draw(const BatchCounts& counts) {
  last_draw_ = Clock::now();
  draw_progress(batch_progress(counts, seconds()));
}

double BatchProgress::seconds() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

}  // namespace faststream::cli
