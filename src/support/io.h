// System calls that signals may interrupt and that may do less than they were asked to.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace faststream {

/// pread(2) until `out` is full: the bytes read, fewer than asked for only where the file ends; -1,
/// with errno set, when it fails. Any number of threads may read from one descriptor.
ssize_t read_at(int fd, uint64_t offset, std::span<std::byte> out);

/// read(2) and write(2) that wait for a pipe or terminal where others have made these not to
/// (O_NONBLOCK): who shares one with us may.
ssize_t read_waiting(int fd, std::span<char> out);
ssize_t write_waiting(int fd, std::string_view bytes);

}  // namespace faststream
