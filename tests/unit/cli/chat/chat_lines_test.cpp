#include "cli/chat/chat_lines.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <thread>
#include <vector>

#include "unit/support/file_helpers.h"

namespace faststream::cli {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::array<int, 2> ends{};
  EXPECT_EQ(pipe(ends.data()), 0);
  std::thread writer([&] {
    EXPECT_EQ(write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
    close(ends[1]);
  });
  ScriptLines source(ends[0]);
  std::vector<std::string> lines;
  std::string line;
  while (source.next(false, line) == LineSource::Event::line) lines.push_back(line);
  EXPECT_EQ(source.next(false, line), LineSource::Event::end);
  writer.join();
  close(ends[0]);
  return lines;
}

using Texts = std::vector<std::string>;

TEST(ScriptLines, EndAtNewlinesOrTheEnd) {
  EXPECT_EQ(lines_of(""), Texts{});
  EXPECT_EQ(lines_of("a\n\nb\r\nc"), (Texts{"a", "", "b", "c"}));
  EXPECT_EQ(lines_of("\n"), Texts{""});
  EXPECT_EQ(lines_of(std::string("a\0b\n", 4)), Texts{std::string("a\0b", 3)});
}

TEST(ScriptLines, BeginAfterAByteOrderMark) {
  EXPECT_EQ(lines_of("\xEF\xBB\xBF/stats\n\xEF\xBB\xBF"), (Texts{"/stats", "\xEF\xBB\xBF"}));
  EXPECT_EQ(lines_of("\xEF\xBB\xBF"), Texts{""});

  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  EXPECT_EQ(write(ends[1], "\xFF\xFEh\0", 4), 4);
  close(ends[1]);
  ScriptLines utf16(ends[0]);
  std::string line;
  EXPECT_TRUE(says(error_of([&] { (void)utf16.next(false, line); }), "standard input", "UTF-16"));
  close(ends[0]);
}

TEST(ScriptLines, MayBeLong) {
  const std::string half(300'000, 'x');
  EXPECT_EQ(lines_of(half + "y\n" + half), (Texts{half + "y", half}));
}

TEST(ScriptLines, RefuseALineWithoutEnd) {
  ScriptLines source(open("/dev/zero", O_RDONLY));
  std::string line;
  EXPECT_TRUE(says(error_of([&] { (void)source.next(false, line); }), "16 MB"));
}

}  // namespace
}  // namespace faststream::cli
