#include "support/io.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>
#include <thread>

#include "support/mapped_file.h"
#include "unit/support/file_helpers.h"

namespace faststream {
namespace {

TEST(ReadAt, FillsTheBufferUnlessTheFileEnds) {
  const TemporaryFolder folder;
  write_bytes(folder / "f", "0123456789");
  const int fd = open_for_reading(folder / "f");
  const auto read = [&](uint64_t offset, size_t bytes) {
    std::string text(bytes, '?');
    const ssize_t n = read_at(fd, offset, std::as_writable_bytes(std::span(text)));
    return text.substr(0, static_cast<size_t>(n));
  };
  EXPECT_EQ(read(0, 10), "0123456789");
  EXPECT_EQ(read(3, 4), "3456");
  EXPECT_EQ(read(8, 4), "89");
  EXPECT_EQ(read(10, 1), "");
  EXPECT_EQ(read(99, 1), "");
  EXPECT_EQ(read(5, 0), "");
  ::close(fd);
}

TEST(ReadAt, TellsWhenNothingCanBeRead) {
  std::array<std::byte, 1> byte{};
  errno = 0;
  EXPECT_EQ(read_at(-1, 0, byte), -1);
  EXPECT_EQ(errno, EBADF);
}

TEST(Waiting, IsWhatReadsAndWritesDoWhereThePipeWouldNot) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_NONBLOCK), 0);
  const std::string sent = repeat("many times what a pipe holds ", 100'000);
  std::thread writer([&] {
    for (std::string_view rest = sent; !rest.empty();) {
      const ssize_t n = write_waiting(ends[1], rest);
      ASSERT_GT(n, 0) << errno;
      rest.remove_prefix(static_cast<size_t>(n));
    }
    ::close(ends[1]);
  });
  std::string received;
  std::array<char, 5000> block{};
  ssize_t n = 0;
  while ((n = read_waiting(ends[0], block)) > 0)
    received.append(block.data(), static_cast<size_t>(n));
  EXPECT_EQ(n, 0) << errno;
  EXPECT_TRUE(received == sent);
  writer.join();
  ::close(ends[0]);
}

}  // namespace
}  // namespace faststream
