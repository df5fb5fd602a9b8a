#include "text/rules/move_table.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace faststream::rules {
namespace {

TEST(MoveTable, LeadsNowhereByOtherClasses) {
  constexpr int32_t kNowhere = -2;
  MoveTable table(kNowhere);
  ByteSet classes(7, 7);
  classes.add(9);
  classes.add(255);
  table.add_row(classes);
  table.add_row(ByteSet());
  table.add_row(ByteSet(0, 0));
  table.set(0, 9, 40);
  table.set(2, 0, 50);
  for (int c = 0; c < 256; ++c) {
    const auto byte_class = static_cast<uint8_t>(c);
    const int32_t expected = c == 9 ? 40 : classes.has(byte_class) ? MoveTable::kUnknown : kNowhere;
    EXPECT_EQ(table.at(0, byte_class), expected) << c;
    EXPECT_EQ(table.at(1, byte_class), kNowhere) << c;
    EXPECT_EQ(table.at(2, byte_class), c == 0 ? 50 : kNowhere) << c;
  }
}

TEST(MoveTable, ListsClassesUntilToldNotTo) {
  MoveTable table(0);
  table.add_row(ByteSet());
  ByteSet classes(3, 5);
  classes.remove(4);
  table.add_row(classes);
  std::vector<uint8_t> found;
  const auto note = [&](uint8_t byte_class) {
    found.push_back(byte_class);
    return true;
  };
  table.for_each_class(0, note);
  EXPECT_TRUE(found.empty());
  table.for_each_class(1, note);
  EXPECT_EQ(found, (std::vector<uint8_t>{3, 5}));
  found.clear();
  table.for_each_class(1, [&](uint8_t byte_class) {
    found.push_back(byte_class);
    table.add_row(ByteSet(0, 255));  // which moves the rows' memory
    return false;
  });
  EXPECT_EQ(found, std::vector<uint8_t>{3});
}

}  // namespace
}  // namespace faststream::rules
