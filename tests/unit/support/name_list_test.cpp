#include "support/name_list.h"

#include <gtest/gtest.h>

namespace faststream {
namespace {

TEST(NameList, PutsCommasBetweenNames) {
  std::string list;
  add_name(list, "a");
  EXPECT_EQ(list, "a");
  add_name(list, "b");
  add_name(list, "c");
  EXPECT_EQ(list, "a, b, c");
}

}  // namespace
}  // namespace faststream
