#include "engine/acceptance_rate.h"

#include <gtest/gtest.h>

namespace faststream {
namespace {

TEST(AcceptanceRate, NewTextsExpectWhatOthersShowed) {
  CommonRate others(0.8F);
  EXPECT_FLOAT_EQ(TextRate().value(others), 0.8F) << "nothing is known";
  TextRate wrong;
  for (int i = 0; i < 30; ++i) wrong.note(3, 0, others);
  EXPECT_LT(wrong.value(others), 0.1F);
  EXPECT_LT(TextRate().value(others), 0.15F);
}

TEST(AcceptanceRate, ATextsOwnTokensSoonOutweighOthers) {
  CommonRate others(0.8F);
  for (int i = 0; i < 1000; ++i) others.note(1, 0);
  TextRate right;
  right.note(7, 7, others);
  EXPECT_GT(right.value(others), 0.6F);
  right.note(7, 7, others);
  EXPECT_GT(right.value(others), 0.75F);
  EXPECT_LT(TextRate().value(others), 0.3F) << "others said otherwise";
}

// A token behind a wrong one was not tried.
TEST(AcceptanceRate, CountsTokensThatWereTried) {
  CommonRate once(0.5F);
  CommonRate more(0.5F);
  once.note(1, 0);
  more.note(7, 0);
  EXPECT_EQ(once.value(), more.value());
  CommonRate all(0.5F);
  all.note(3, 3);
  more.note(3, 3);
  EXPECT_GT(all.value(), more.value());
}

// What was wrong is tried again, after many steps, and then soon known.
TEST(AcceptanceRate, HopesAgainWhereNothingIsTriedForLong) {
  CommonRate others(0.8F);
  TextRate wrong;
  for (int i = 0; i < 200; ++i) wrong.note(1, 0, others);
  const auto steps_to_hope = [&] {
    int n = 0;
    for (TextRate text; text.value(others) < 0.4F && n < 100000; ++n) text.age(others);
    return n;
  };
  EXPECT_GT(steps_to_hope(), 500);
  for (int i = 0; i < 5; ++i) others.note(1, 0);
  EXPECT_LT(others.value(), 0.3F);
  const int n = steps_to_hope();
  EXPECT_GT(n, 100);
  EXPECT_LT(n, 1000);
}

}  // namespace
}  // namespace faststream
