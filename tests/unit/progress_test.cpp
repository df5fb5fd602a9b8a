#include "support/progress.h"

#include <gtest/gtest.h>

namespace faststream {
namespace {

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
