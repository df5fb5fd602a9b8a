#include "support/partial_file.h"

#include <gtest/gtest.h>

#include "file_helpers.h"

namespace faststream {
namespace {

TEST(PartialFile, AppearsWhenItIsWhole) {
  const TemporaryFolder folder;
  const auto path = folder / "f";
  write_bytes(path, "old");
  PartialFile file(path, 5, true);
  file.write_at(0, std::as_bytes(std::span("whole", 5)));
  EXPECT_EQ(read_bytes(path), "old");
  file.commit();
  EXPECT_EQ(read_bytes(path), "whole");
  EXPECT_EQ(folder.entries(), 1U);
}

TEST(PartialFile, LeavesNothingBehindWhenItIsGivenUp) {
  const TemporaryFolder folder;
  { const PartialFile file(folder / "f", 5, false); }
  EXPECT_EQ(folder.entries(), 0U);
  EXPECT_THROW(PartialFile(folder / "f", uint64_t{1} << 62, false), Error);
  EXPECT_EQ(folder.entries(), 0U);
}

TEST(PartialFile, RefusesAnExistingFileUnlessItMayReplaceIt) {
  const TemporaryFolder folder;
  const auto path = folder / "f";
  write_bytes(path, "old");
  EXPECT_TRUE(says(error_of([&] { const PartialFile file(path, 1, false); }), path.string()));
  write_file(path, "", true);
  EXPECT_EQ(read_bytes(path), "");
  write_file(path, "new", true);
  EXPECT_EQ(read_bytes(path), "new");
}

}  // namespace
}  // namespace faststream
