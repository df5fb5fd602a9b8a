#include "support/io.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

namespace faststream {
namespace {

// call() as soon as it need not wait for the descriptor.
template <typename Call>
ssize_t waiting(int fd, short events, const Call& call) {
  for (;;) {
    const ssize_t n = call();
    if (n >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) return n;
    pollfd ready{.fd = fd, .events = events, .revents = 0};
    if (poll(&ready, 1, -1) < 0) return -1;
  }
}

}  // namespace

ssize_t read_at(int fd, uint64_t offset, std::span<std::byte> out) {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t n =
        ::pread(fd, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return -1;
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return static_cast<ssize_t>(done);
}

ssize_t read_waiting(int fd, std::span<char> out) {
  return waiting(fd, POLLIN, [&] { return ::read(fd, out.data(), out.size()); });
}

ssize_t write_waiting(int fd, std::string_view bytes) {
  return waiting(fd, POLLOUT, [&] { return ::write(fd, bytes.data(), bytes.size()); });
}

}  // namespace faststream
