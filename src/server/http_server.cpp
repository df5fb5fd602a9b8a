#include "server/http_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/ip/v6_only.hpp>
#include <cerrno>
#include <chrono>
#include <future>
#include <type_traits>
#include <utility>

#include "server/tls.h"
#include "support/error.h"

namespace faststream::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Local = asio::local::stream_protocol;

constexpr std::chrono::milliseconds kPause(100);  // when there is no descriptor for a connection
constexpr size_t kOtherDescriptors = 64;

constexpr int kUnsentInSystem = 256 << 10;  // bytes of a connection that the system takes unsent

// A descriptor for each connection, as far as the system lets us.
void limit_connections(HttpLimits& limits) {
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  const rlim_t wanted = limits.connections + kOtherDescriptors;
  if (files.rlim_cur != RLIM_INFINITY && files.rlim_cur < wanted) {
    files.rlim_cur =
        files.rlim_max == RLIM_INFINITY ? wanted : std::min<rlim_t>(files.rlim_max, wanted);
    setrlimit(RLIMIT_NOFILE, &files);
    getrlimit(RLIMIT_NOFILE, &files);
  }
  if (files.rlim_cur == RLIM_INFINITY || files.rlim_cur >= wanted) return;
  limits.connections = std::max<size_t>(files.rlim_cur, 2 * kOtherDescriptors) - kOtherDescriptors;
}

std::string host_text(const tcp::endpoint& at) {
  const std::string text = at.address().to_string();
  return at.address().is_v6() ? "[" + text + "]" : text;
}

}  // namespace

HttpServer::HttpServer(const Listening& where, int threads, ConnectionContext& context)
    : context_(context) {
  if (!where.tls_certificate.empty()) tls_ = make_tls_context(where.tls_certificate, where.tls_key);
  limit_connections(context_.limits);
  for (int i = 0; i < threads; ++i) threads_.push_back(std::make_unique<IoThread>());
  pause_ = std::make_unique<asio::steady_timer>(threads_.front()->context());
  if (where.socket.empty()) {
    listen_tcp(where);
  } else {
    listen_unix(where.socket);
  }
}

HttpServer::~HttpServer() {
  close_connections();
  for (const auto& thread : threads_) thread->stop();
  if (!socket_path_.empty()) unlink(socket_path_.c_str());
  // Acceptors go before their thread's context.
  tcp_.clear();
  unix_.reset();
  pause_.reset();
}

void HttpServer::listen_tcp(const Listening& where) {
  asio::io_context& context = threads_.front()->context();
  const std::string place = where.host + ":" + std::to_string(where.port);
  boost::system::error_code error;
  tcp::resolver resolver(context);
  const auto found =
      resolver.resolve(where.host, std::to_string(where.port), tcp::resolver::passive, error);
  if (error || found.empty()) {
    throw Error("--host " + where.host +
                " is no address of this machine; give one, such as "
                "127.0.0.1, or 0.0.0.0 for all");
  }
  uint16_t port = where.port;
  for (const auto& entry : found) {
    tcp::endpoint at = entry.endpoint();
    at.port(port);
    auto acceptor = std::make_unique<TcpAcceptor>(context);
    acceptor->open(at.protocol(), error);
    if (!error) acceptor->set_option(TcpAcceptor::reuse_address(true), error);
    if (!error && at.address().is_v6()) acceptor->set_option(asio::ip::v6_only(true), error);
    if (!error) acceptor->bind(at, error);
    if (!error) acceptor->listen(4096, error);
    if (error) {
      throw Error("nothing can listen on " + place + ": " + error.message() +
                  "; give another --host or --port");
    }
    port = acceptor->local_endpoint().port();
    if (address_.empty())
      address_ = (tls_ ? "https://" : "http://") + host_text(acceptor->local_endpoint()) + ":" +
                 std::to_string(port);
    tcp_.push_back(std::move(acceptor));
  }
}

void HttpServer::listen_unix(const std::string& path) {
  asio::io_context& context = threads_.front()->context();
  struct stat status = {};
  if (lstat(path.c_str(), &status) == 0) {
    // One that a server left behind is replaced, one that a server listens on is not.
    boost::system::error_code refused;
    Local::socket probe(context);
    if (S_ISSOCK(status.st_mode)) probe.connect(Local::endpoint(path), refused);
    if (!S_ISSOCK(status.st_mode) || refused != asio::error::connection_refused) {
      throw Error("--unix-socket " + path + " exists already; give another name, or remove it");
    }
    unlink(path.c_str());
  }
  unix_ = std::make_unique<UnixAcceptor>(context);
  try {
    unix_->open();
    unix_->bind(Local::endpoint(path));
    unix_->listen(4096);
  } catch (const boost::system::system_error& failure) {
    throw Error("--unix-socket " + path + " cannot be made: " + failure.code().message());
  }
  socket_path_ = path;
  address_ = "unix:" + path;
}

void HttpServer::start() {
  threads_.front()->post([this] {
    for (const auto& acceptor : tcp_) accept(*acceptor);
    if (unix_) accept(*unix_);
  });
}

template <typename Acceptor>
void HttpServer::accept(Acceptor& acceptor) {
  IoThread& thread = *threads_[next_++ % threads_.size()];
  acceptor.async_accept(thread.context(), [this, &acceptor, &thread](
                                              const boost::system::error_code& error,
                                              typename Acceptor::protocol_type::socket socket) {
    if (error == asio::error::operation_aborted || !acceptor.is_open()) return;
    if (error) {  // often no descriptor is left: connections that end give some back
      pause_->expires_after(kPause);
      pause_->async_wait([this, &acceptor](const boost::system::error_code& ended) {
        if (!ended && acceptor.is_open()) accept(acceptor);
      });
      return;
    }
    std::string peer = "unix";
    boost::system::error_code ignored;
    if constexpr (std::is_same_v<Acceptor, TcpAcceptor>) {
      const auto at = socket.remote_endpoint(ignored);
      peer = host_text(at) + ":" + std::to_string(at.port());
      socket.set_option(tcp::no_delay(true), ignored);
      socket.set_option(asio::socket_base::keep_alive(true), ignored);
      // Else the system keeps some megabytes for a client that does not read.
      setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kUnsentInSystem,
                 sizeof kUnsentInSystem);
    }
    take(Socket(std::move(socket)), std::move(peer), thread);
    accept(acceptor);
  });
}

void HttpServer::take(Socket socket, std::string peer, IoThread& thread) {
  if (context_.n_connections >= context_.limits.connections) {
    boost::system::error_code ignored;
    socket.non_blocking(true, ignored);
    constexpr std::string_view kFull =
        "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\n"
        "Connection: close\r\n\r\n";
    socket.write_some(asio::buffer(kFull.data(), kFull.size()), ignored);
    return;
  }
  auto stream = tls_ ? make_tls_stream(std::move(socket), *tls_) : make_stream(std::move(socket));
  auto connection =
      std::make_shared<Connection>(context_, thread, std::move(stream), std::move(peer));
  thread.post([connection = std::move(connection)] { connection->start(); });
}

void HttpServer::stop_accepting() {
  context_.stopping = true;
  threads_.front()->post([this] {
    for (const auto& acceptor : tcp_) acceptor->close();
    if (unix_) unix_->close();
    pause_->cancel();
  });
  for_each([](Connection& connection) { connection.stop(); });
}

void HttpServer::expire_requests() {
  for_each([](Connection& connection) { connection.expire(); });
}

void HttpServer::close_connections() {
  for_each([](Connection& connection) { connection.close(); });
}

// Waits until it is done with all of them.
void HttpServer::for_each(const std::function<void(Connection&)>& what) {
  for (const auto& thread : threads_) {
    std::promise<void> done;
    thread->post([&thread = *thread, &done, &what] {
      const std::vector<Connection*> all(thread.connections().begin(), thread.connections().end());
      for (Connection* connection : all) {
        if (thread.connections().contains(connection)) what(*connection->shared_from_this());
      }
      done.set_value();
    });
    done.get_future().wait();
  }
}

}  // namespace faststream::server
