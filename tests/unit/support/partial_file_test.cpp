#include "support/partial_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>

#include "unit/support/file_helpers.h"

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

TEST(PartialFile, LeavesTheModeOfTheFileThatItReplaces) {
  const TemporaryFolder folder;
  const auto path = folder / "f";
  for (const mode_t mode : {0600, 0640, 0444, 0666}) {
    write_bytes(path, "old");
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    write_file(path, "new", true);
    EXPECT_EQ(read_bytes(path), "new");
    struct stat status {};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777U, mode);
    std::filesystem::remove(path);
  }
}

TEST(PartialFile, IsPrivateWhileItIsMadeToReplaceAPrivateOne) {
  const TemporaryFolder folder;
  write_bytes(folder / "f", "old");
  ASSERT_EQ(::chmod((folder / "f").c_str(), 0600), 0);
  const PartialFile file(folder / "f", 5, true);
  struct stat status {};
  const std::string partial = folder / ("f.partial-" + std::to_string(::getpid()));
  ASSERT_EQ(::stat(partial.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
}

TEST(PartialFile, SharesNothingWithAnotherOnItsWayToTheSameName) {
  const TemporaryFolder folder;
  PartialFile first(folder / "f", 5, true);
  PartialFile second(folder / "f", 6, true);
  first.write_at(0, std::as_bytes(std::span("first", 5)));
  second.write_at(0, std::as_bytes(std::span("second", 6)));
  first.commit();
  EXPECT_EQ(read_bytes(folder / "f"), "first");
  second.commit();
  EXPECT_EQ(read_bytes(folder / "f"), "second");
  EXPECT_EQ(folder.entries(), 1U);
}

TEST(PartialFile, TakesTheLongestNameThatAFileCanHave) {
  const TemporaryFolder folder;
  const std::string name(NAME_MAX, 'n');
  write_file(folder / name, "text", false);
  EXPECT_EQ(read_bytes(folder / name), "text");
}

TEST(PartialFile, WritesWhatASymbolicLinkLeadsTo) {
  namespace fs = std::filesystem;
  const TemporaryFolder folder;
  fs::create_directory(folder / "there");
  write_bytes(folder / "there" / "f", "old");
  fs::create_symlink("there/f", folder / "near");
  fs::create_symlink(folder / "near", folder / "far");
  fs::create_symlink("there/new", folder / "dangling");
  write_file(folder / "far", "new", true);
  EXPECT_TRUE(fs::is_symlink(folder / "far") && fs::is_symlink(folder / "near"));
  EXPECT_EQ(read_bytes(folder / "there" / "f"), "new");
  PartialFile file(folder / "dangling", 0, false);
  file.commit();
  EXPECT_TRUE(fs::is_symlink(folder / "dangling"));
  EXPECT_TRUE(fs::is_regular_file(folder / "there" / "new"));

  fs::create_symlink("loop", folder / "loop");
  EXPECT_TRUE(
      says(error_of([&] { write_file(folder / "loop", "", true); }), "loop", "symbolic link"));
}

}  // namespace
}  // namespace faststream
