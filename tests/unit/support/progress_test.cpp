#include "support/progress.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <string>

namespace faststream {
namespace {

using namespace std::chrono_literals;

TEST(FormatBytes, UsesPowersOfTen) {
  EXPECT_EQ(format_bytes(0), "0 bytes");
  EXPECT_EQ(format_bytes(1), "1 byte");
  EXPECT_EQ(format_bytes(812), "812 bytes");
  EXPECT_EQ(format_bytes(6200), "6.2 kB");
  EXPECT_EQ(format_bytes(1'060'000), "1.06 MB");
  EXPECT_EQ(format_bytes(7'210'000'000), "7.21 GB");
  EXPECT_EQ(format_bytes(999'499), "999 kB");
  EXPECT_EQ(format_bytes(999'500), "1.00 MB");
  EXPECT_EQ(format_bytes(UINT64_MAX), "18.4 EB");
}

// What `draw` shows on a terminal of so many columns; 0: it does not say.
template <typename Draw>
std::string shown_on_terminal(unsigned short columns, Draw&& draw) {
  int terminal = -1;
  int inside = -1;
  winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
  if (openpty(&terminal, &inside, nullptr, nullptr, &size) != 0) return "no terminal";
  const int saved = dup(STDERR_FILENO);
  dup2(inside, STDERR_FILENO);
  draw();
  dup2(saved, STDERR_FILENO);
  close(inside);
  std::string shown;
  std::array<char, 256> part{};  // of it: a terminal hands on what it has so far
  for (ssize_t n = 0; (n = ::read(terminal, part.data(), part.size())) > 0;) {
    shown.append(part.data(), static_cast<size_t>(n));
  }
  close(terminal);
  close(saved);
  return shown;
}

TEST(ProgressBar, CountsTokensOnATerminalUntilItIsErased) {
  const std::string shown = shown_on_terminal(0, [] {
    const auto start = ProgressBar::Clock::now();
    ProgressBar bar("prompt", ProgressBar::Unit::tokens, true, start);
    bar.update(1, 8192, start + 99ms);  // too soon to be seen
    bar.update(3521, 8192, start + 100ms);
    bar.update(3522, 8192, start + 199ms);
  });
  EXPECT_EQ(shown, "\r\x1b[Kprompt  43% 3521 of 8192 tokens\r\x1b[K");
}

TEST(ProgressBar, StaysInItsLineOfANarrowTerminal) {
  EXPECT_EQ(shown_on_terminal(12, [] { draw_progress("prompt  43% 3521 of 8192 tokens"); }),
            "\r\x1b[Kprompt  43% ");
}

TEST(ProgressBar, IsSilentWhereThereIsNoTerminal) {
  testing::internal::CaptureStderr();
  {
    ProgressBar bar("loading", ProgressBar::Unit::bytes, true);
    bar.update(50, 100);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace faststream
