#include "text/rules/lists_by_number.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace faststream::rules {
namespace {

TEST(ListsByNumber, KeepsTheOrderWithinAState) {
  const std::vector<std::pair<int32_t, int>> given = {{2, 7}, {0, 1}, {2, 5}, {3, 9}, {0, 0}};
  const ListsByNumber<int> lists(4, [&](const auto& task) {
    for (const auto& [state, value] : given) task(state, value);
  });
  const auto of = [&](int32_t state) {
    return std::vector<int>(lists.of(state).begin(), lists.of(state).end());
  };
  EXPECT_EQ(of(0), (std::vector<int>{1, 0}));
  EXPECT_EQ(of(1), std::vector<int>());
  EXPECT_EQ(of(2), (std::vector<int>{7, 5}));
  EXPECT_EQ(of(3), (std::vector<int>{9}));
}

TEST(ListsByNumber, MayHaveNoValues) {
  const ListsByNumber<int> lists(2, [](const auto& /*task*/) {});
  EXPECT_TRUE(lists.of(0).empty());
  EXPECT_TRUE(lists.of(1).empty());
  EXPECT_EQ(ListsByNumber<int>().bytes(), 0U);
}

}  // namespace
}  // namespace faststream::rules
