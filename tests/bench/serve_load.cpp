// Loads a server over keep-alive connections, one request at a time each, from one thread:
//
//   serve-load PORT CONNECTIONS SECONDS BODY [PATH [SPREAD]]
//
// The first requests are sent evenly over SPREAD seconds, else at once, and later ones where the
// one before ends. It prints requests and bytes a second, and times to the first bytes of answers
// (of a body with "stream": true those of the first event) and to their ends. BODY goes to
// /v1/completions by default.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

struct Connection {
  int fd = -1;
  std::string received;
  Clock::time_point began;
  bool has_first = false;
};

struct Times {
  std::vector<double> first;
  std::vector<double> whole;
};

double milliseconds(Clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

void print(const char* what, std::vector<double> times) {
  if (times.empty()) return;
  std::sort(times.begin(), times.end());
  const auto at = [&](double part) {
    return times[static_cast<size_t>(part * static_cast<double>(times.size() - 1))];
  };
  const double mean =
      std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size());
  std::printf("%s: median %.2f ms, mean %.2f ms, 99%% %.2f ms, most %.2f ms\n", what, at(0.5), mean,
              at(0.99), times.back());
}

int connect_to(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at = {};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<uint16_t>(port));
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd < 0 || connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0) {
    std::perror("cannot connect");
    std::exit(1);
  }
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

void ask(Connection& connection, const std::string& request) {
  connection.received.clear();
  connection.has_first = false;
  connection.began = Clock::now();
  if (send(connection.fd, request.data(), request.size(), MSG_NOSIGNAL) < 0) {
    std::perror("cannot send");
    std::exit(1);
  }
}

// Whether the answer is there whole.
bool is_whole(const std::string& text) {
  const size_t end = text.find("\r\n\r\n");
  if (end == std::string::npos) return false;
  const size_t length = text.find("Content-Length: ");
  if (length == std::string::npos || length > end) return text.ends_with("0\r\n\r\n");
  return text.size() >= end + 4 + std::strtoul(text.c_str() + length + 16, nullptr, 10);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "serve-load PORT CONNECTIONS SECONDS BODY [PATH [SPREAD]]\n");
    return 2;
  }
  const std::string body = argv[4];
  const std::string path = argc > 5 ? argv[5] : "/v1/completions";
  const std::string request = "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                              std::to_string(body.size()) + "\r\n\r\n" + body;
  std::vector<Connection> connections(std::strtoul(argv[2], nullptr, 10));
  const int poll = epoll_create1(0);
  for (size_t i = 0; i < connections.size(); ++i) {
    connections[i].fd = connect_to(std::atoi(argv[1]));
    epoll_event event = {.events = EPOLLIN, .data = {.u64 = i}};
    epoll_ctl(poll, EPOLL_CTL_ADD, connections[i].fd, &event);
  }
  const auto begin = Clock::now();
  const auto end = begin + std::chrono::duration<double>(std::atof(argv[3]));
  const std::chrono::duration<double> spread(argc > 6 ? std::atof(argv[6]) : 0.0);
  size_t n_begun = 0;
  Times times;
  size_t n_bytes = 0;
  size_t n_bad = 0;
  size_t n_open = connections.size();
  std::vector<char> block(1 << 16);
  std::vector<epoll_event> events(1024);
  while (n_open > 0) {
    while (n_begun < connections.size() &&
           begin + spread * (static_cast<double>(n_begun) / connections.size()) <= Clock::now()) {
      ask(connections[n_begun++], request);
    }
    const int wait_ms = n_begun < connections.size() ? 1 : -1;
    const int n = epoll_wait(poll, events.data(), static_cast<int>(events.size()), wait_ms);
    for (int i = 0; i < n; ++i) {
      Connection& connection = connections[events[static_cast<size_t>(i)].data.u64];
      const ssize_t got = recv(connection.fd, block.data(), block.size(), 0);
      if (got <= 0) {
        ++n_bad;
        --n_open;
        close(connection.fd);
        continue;
      }
      n_bytes += static_cast<size_t>(got);
      connection.received.append(block.data(), static_cast<size_t>(got));
      const auto now = Clock::now();
      if (!connection.has_first) {
        connection.has_first = true;
        times.first.push_back(milliseconds(now - connection.began));
      }
      if (!is_whole(connection.received)) continue;
      times.whole.push_back(milliseconds(now - connection.began));
      if (!connection.received.starts_with("HTTP/1.1 200")) ++n_bad;
      if (now < end) {
        ask(connection, request);
      } else {
        --n_open;
        epoll_ctl(poll, EPOLL_CTL_DEL, connection.fd, nullptr);
      }
    }
  }
  const double seconds = milliseconds(Clock::now() - begin) / 1000;
  std::printf("%zu connections, %.1f s: %.0f requests/s, %.1f MB/s, %zu failed\n",
              connections.size(), seconds, static_cast<double>(times.whole.size()) / seconds,
              static_cast<double>(n_bytes) / seconds / 1e6, n_bad);
  print("first bytes", times.first);
  print("whole", times.whole);
  return n_bad == 0 ? 0 : 1;
}
