#include "support/file_lock.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "unit/support/file_helpers.h"

namespace faststream {
namespace {

TEST(FileLock, IsHeldByOneAtATime) {
  const TemporaryFolder folder;
  const auto path = folder / "f";
  for (int i = 0; i < 2; ++i) {  // also once it was given back
    const auto first = FileLock::take(path);
    EXPECT_TRUE(first);
    EXPECT_FALSE(FileLock::take(path));
    EXPECT_TRUE(FileLock::take(folder / "g"));
  }
  EXPECT_EQ(folder.entries(), 0U);
}

TEST(FileLock, SurvivesThatTheFileIsReplaced) {
  const TemporaryFolder folder;
  const auto path = folder / "f";
  const auto lock = FileLock::take(path);
  write_bytes(folder / "new", "new");
  std::filesystem::rename(folder / "new", path);
  EXPECT_FALSE(FileLock::take(path));
}

TEST(FileLock, IsTheSameForAllNamesOfAFile) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("target", folder / "link");  // not there yet
  std::filesystem::create_symlink(folder / "link", folder / "second");
  std::filesystem::create_directory_symlink(folder.path(), folder / "also");
  const auto lock = FileLock::take(folder / "target");
  EXPECT_FALSE(FileLock::take(folder / "link"));
  EXPECT_FALSE(FileLock::take(folder / "second"));
  EXPECT_FALSE(FileLock::take(folder / "also" / "target"));
}

TEST(FileLock, TakesWhatADeadProcessLeft) {
  const TemporaryFolder folder;
  write_bytes(folder / "f.lock", "");
  EXPECT_TRUE(FileLock::take(folder / "f"));
}

TEST(FileLock, NeitherUsesNorRemovesAFileOfAnotherKind) {
  const TemporaryFolder folder;
  const auto path = folder / "yarn";
  const auto taken = folder / "yarn.lock";
  const auto refused = [&] {
    return says(error_of([&] { (void)FileLock::take(path); }), path.string() + ": ",
                taken.string());
  };
  write_bytes(taken, "precious");
  EXPECT_TRUE(refused());
  EXPECT_EQ(read_bytes(taken), "precious");
  std::filesystem::remove(taken);
  ASSERT_EQ(mkfifo(taken.c_str(), 0600), 0);
  EXPECT_TRUE(refused());
  EXPECT_TRUE(std::filesystem::is_fifo(taken));
  std::filesystem::remove(taken);
  std::filesystem::create_symlink("elsewhere", taken);
  EXPECT_TRUE(refused());
  EXPECT_TRUE(std::filesystem::is_symlink(taken));
}

TEST(FileLock, LeavesWhatTookThePlaceOfItsFile) {
  const TemporaryFolder folder;
  {
    const auto replaced = FileLock::take(folder / "f");
    write_bytes(folder / "new", "");
    std::filesystem::rename(folder / "new", folder / "f.lock");
    const auto written = FileLock::take(folder / "g");
    write_bytes(folder / "g.lock", "text");
  }
  EXPECT_TRUE(std::filesystem::exists(folder / "f.lock"));
  EXPECT_EQ(read_bytes(folder / "g.lock"), "text");
}

TEST(FileLock, IsNotForLockFilesThemselves) {
  const TemporaryFolder folder;
  const auto lock = FileLock::take(folder / "f");
  EXPECT_TRUE(says(error_of([&] { (void)FileLock::take(folder / "f.lock"); }), "f.lock", "name"));
}

TEST(FileLock, NamesBothFilesWhenItCannotBeMade) {
  const TemporaryFolder folder;
  const auto path = folder / "no" / "f";
  EXPECT_TRUE(says(error_of([&] { (void)FileLock::take(path); }), path.string() + ": ",
                   path.string() + ".lock"));
  std::filesystem::create_symlink("loop", folder / "loop");
  EXPECT_TRUE(says(error_of([&] { (void)FileLock::take(folder / "loop"); }), "loop", "link"));
}

}  // namespace
}  // namespace faststream
