// Accepts connections and spreads them over threads.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/ssl/context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/connection.h"
#include "server/io_thread.h"

namespace faststream::server {

struct Listening {
  std::string host = "127.0.0.1";
  uint16_t port = 8080;         ///< 0: any that is free
  std::string socket;           ///< path of a Unix socket in place of host and port; empty: none
  std::string tls_certificate;  ///< file; with its key, connections are in TLS; empty: they are not
  std::string tls_key;
};

class HttpServer {
 public:
  /// Listens; connections are accepted once start() is called. `context` must outlive it. Throws
  /// Error when it cannot listen there, std::system_error when the system gives no thread.
  HttpServer(const Listening& where, int threads, ConnectionContext& context);
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  /// Closes all connections. Who still posts to the threads must be gone by then.
  ~HttpServer();

  /// "http://127.0.0.1:8080", "https://..." or "unix:/run/faststream.sock".
  [[nodiscard]] const std::string& address() const { return address_; }

  void start();
  /// Accepts no more, and ends connections that have no request; others end after theirs. Any
  /// thread.
  void stop_accepting();
  /// Ends the requests that are being answered as if their time were over. Any thread.
  void expire_requests();
  /// Closes all connections. Any thread.
  void close_connections();

 private:
  using TcpAcceptor = boost::asio::ip::tcp::acceptor;
  using UnixAcceptor = boost::asio::local::stream_protocol::acceptor;

  void listen_tcp(const Listening& where);
  void listen_unix(const std::string& path);
  template <typename Acceptor>
  void accept(Acceptor& acceptor);
  void for_each(const std::function<void(Connection&)>& what);
  void take(Socket socket, std::string peer, IoThread& thread);

  ConnectionContext& context_;
  std::unique_ptr<boost::asio::ssl::context> tls_;  // null: none
  std::vector<std::unique_ptr<IoThread>> threads_;
  std::vector<std::unique_ptr<TcpAcceptor>> tcp_;  // of the first thread, as are the next
  std::unique_ptr<UnixAcceptor> unix_;
  std::unique_ptr<boost::asio::steady_timer> pause_;
  std::string socket_path_;
  std::string address_;
  size_t next_ = 0;
};

}  // namespace faststream::server
