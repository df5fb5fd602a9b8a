#include "support/partial_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <csignal>
#include <optional>

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
  write_bytes(folder / (name.substr(0, NAME_MAX - 11) + ".partial-12"), "left");
  write_file(folder / name, "text", false);
  EXPECT_EQ(read_bytes(folder / name), "text");
  EXPECT_EQ(folder.entries(), 1U);
}

// Runs `action` in another process until that waits, and kills it.
template <typename Action>
void kill_after(const Action& action) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    action();
    ::raise(SIGSTOP);
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, WUNTRACED), pid);
  ASSERT_TRUE(WIFSTOPPED(status));
  ::kill(pid, SIGKILL);
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
}

TEST(PartialFile, RemovesWhatAProcessThatWasKilledLeft) {
  const TemporaryFolder folder;
  std::optional<PartialFile> of_the_dead;
  kill_after([&] { of_the_dead.emplace(folder / "f", 5, false); });
  ASSERT_EQ(folder.entries(), 1U);
  for (const char* other : {"f.partial-", "f.partial-1x", "g.partial-1", "ff.partial-1"}) {
    write_bytes(folder / other, "another's");
  }
  std::filesystem::create_directory(folder / "f.partial-2");
  std::filesystem::create_symlink("g.partial-1", folder / "f.partial-3");
  write_bytes(folder / "f.partial-4", "left");
  write_file(folder / "f", "new", false);
  EXPECT_EQ(read_bytes(folder / "f"), "new");
  EXPECT_EQ(folder.entries(), 7U) << "the new file, four and two that are none of its kind";
  EXPECT_TRUE(std::filesystem::exists(folder / "g.partial-1"));
}

TEST(PartialFile, LeavesAloneWhatALiveProcessMakes) {
  const TemporaryFolder folder;
  int ready[2];
  int go_on[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(go_on), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    char byte = 0;
    PartialFile file(folder / "f", 5, true);
    file.write_at(0, std::as_bytes(std::span("other", 5)));
    const bool is_told = ::write(ready[1], &byte, 1) == 1 && ::read(go_on[0], &byte, 1) == 1;
    file.commit();
    ::_exit(is_told ? 0 : 1);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  write_file(folder / "f", "own", true);
  EXPECT_EQ(read_bytes(folder / "f"), "own");
  ASSERT_EQ(::write(go_on[1], &byte, 1), 1);
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read_bytes(folder / "f"), "other");
  EXPECT_EQ(folder.entries(), 1U);
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
