// A server in a process of its own, and clients that send it any bytes.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cli/batch_program.h"
#include "cli/run_program.h"
#include "cli/stories.h"

namespace faststream {

/// A connection to a server.
class HttpClient {
 public:
  explicit HttpClient(uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at = {};
    at.sin_family = AF_INET;
    at.sin_port = htons(port);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connect_to(reinterpret_cast<const sockaddr*>(&at), sizeof at);
  }
  explicit HttpClient(const std::string& socket)
      : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un at = {};
    at.sun_family = AF_UNIX;
    socket.copy(at.sun_path, sizeof at.sun_path - 1);
    connect_to(reinterpret_cast<const sockaddr*>(&at), sizeof at);
  }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  ~HttpClient() { ::close(fd_); }

  /// False when the server has closed the connection.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  /// Whether something has come, or the end.
  [[nodiscard]] bool has_some() const {
    pollfd ready{.fd = fd_, .events = POLLIN, .revents = 0};
    return ::poll(&ready, 1, 0) > 0;
  }
  /// Waits for more bytes, however long a busy machine takes; false at the end.
  bool receive_some() {
    char block[4096];
    const ssize_t n = ::recv(fd_, block, sizeof block, 0);
    if (n <= 0) return false;
    received_.append(block, static_cast<size_t>(n));
    return true;
  }
  /// All that comes until the server closes the connection.
  std::string receive_all() {
    while (receive_some()) {
    }
    return received_;
  }
  /// Waits until `text` has come; what came up to there and behind it.
  std::string receive_until(std::string_view text) {
    while (received_.find(text) == std::string::npos) {
      if (!receive_some()) break;
    }
    return received_;
  }
  void forget() { received_.clear(); }
  [[nodiscard]] int fd() const { return fd_; }

 private:
  void connect_to(const sockaddr* at, socklen_t size) {
    if (fd_ < 0 || ::connect(fd_, at, size) != 0) throw std::runtime_error("cannot connect");
  }

  int fd_;
  std::string received_;
};

struct HttpAnswer {
  int status = 0;
  std::string head;
  std::string body;  ///< of chunks, joined
  [[nodiscard]] nlohmann::json json() const { return nlohmann::json::parse(body); }
};

/// What a server sent, of one answer after which the connection ended.
inline HttpAnswer parse_answer(const std::string& text) {
  HttpAnswer answer;
  const size_t end = text.find("\r\n\r\n");
  if (!text.starts_with("HTTP/1.1 ") || end == std::string::npos) return answer;
  answer.status = std::stoi(text.substr(9, 3));
  answer.head = text.substr(0, end);
  std::string rest = text.substr(end + 4);
  if (answer.head.find("Transfer-Encoding: chunked") == std::string::npos) {
    answer.body = rest;
    return answer;
  }
  for (size_t at = 0; at < rest.size();) {
    const size_t size = std::stoul(rest.substr(at), nullptr, 16);
    at = rest.find("\r\n", at) + 2;
    if (size == 0) break;
    answer.body += rest.substr(at, size);
    at += size + 2;
  }
  return answer;
}

/// faststream-serve with the bundled model, called "demo", and other options.
class Server {
 public:
  explicit Server(std::vector<std::string> options = {}, bool on_port = true) {
    std::vector<std::string> args = {"faststream-serve", "-m", "demo=" + faststream::demo_model(),
                                     "--device", "cpu"};
    if (on_port) args.insert(args.end(), {"--port", "0"});
    args.insert(args.end(), options.begin(), options.end());
    static int number = 0;
    log_ = (scratch_folder() / ("server" + std::to_string(number++) + ".log")).string();
    const Descriptor nothing("/dev/null", O_RDWR);
    const Descriptor log(log_, O_WRONLY | O_CREAT | O_APPEND);
    pid_ = start_program(args, nothing.fd(), nothing.fd(), log.fd());
    const std::string ready = wait_for_log("ready at ");
    const size_t port = ready.rfind(':');
    if (on_port) port_ = static_cast<uint16_t>(std::stoi(ready.substr(port + 1)));
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() {
    if (pid_ != 0) {
      ::kill(pid_, SIGKILL);
      wait_for_program(pid_);
    }
  }

  [[nodiscard]] uint16_t port() const { return port_; }
  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] std::string log() const { return read_file(log_); }

  /// The line that has the text, once it is there. Throws std::runtime_error when the server ends
  /// without.
  [[nodiscard]] std::string wait_for_log(const std::string& text) const {
    for (bool ends = false; !ends;) {
      ends = has_ended();
      const std::string all = log();
      const size_t at = all.find(text);
      const size_t end = all.find('\n', at == std::string::npos ? 0 : at);
      if (at != std::string::npos && end != std::string::npos) return all.substr(at, end - at);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    throw std::runtime_error("the server does not say \"" + text + "\", but: " + log());
  }

  /// Sends bytes and returns the answer, after which the connection must end.
  [[nodiscard]] HttpAnswer ask(std::string_view bytes) const {
    HttpClient client(port_);
    client.send(bytes);
    return parse_answer(client.receive_all());
  }
  [[nodiscard]] HttpAnswer get(const std::string& path, const std::string& headers = "") const {
    return ask("GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + headers +
               "\r\n");
  }
  [[nodiscard]] HttpAnswer post(const std::string& path, const std::string& body,
                                const std::string& headers = "") const {
    return ask(request(path, body, "Connection: close\r\n" + headers));
  }
  static std::string request(const std::string& path, const std::string& body,
                             const std::string& headers = "") {
    return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers +
           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }
  /// The value of a metric's line that begins so.
  [[nodiscard]] double metric(const std::string& name) const {
    const std::string text = get("/metrics").body;
    const size_t at = text.find("\nfaststream:" + name);
    if (at == std::string::npos) throw std::runtime_error("no metric " + name + " in " + text);
    return std::stod(text.substr(text.find(' ', at)));
  }
  [[nodiscard]] bool has_ended() const {
    siginfo_t info = {};
    constexpr int kNow = WEXITED | WNOHANG | WNOWAIT;
    return ::waitid(P_PID, static_cast<id_t>(pid_), &info, kNow) != 0 || info.si_pid != 0;
  }
  /// Sends a signal and returns the exit code.
  int end(int signal = SIGTERM) {
    ::kill(pid_, signal);
    return wait_for_program(std::exchange(pid_, 0));
  }

 private:
  std::string log_;
  pid_t pid_ = 0;
  uint16_t port_ = 0;
};

}  // namespace faststream
