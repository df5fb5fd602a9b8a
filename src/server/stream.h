// A connection's bytes: over TCP or a Unix socket, or (tls.h) in TLS over one.
#pragma once

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/system/error_code.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

namespace faststream::server {

using Socket = boost::asio::generic::stream_protocol::socket;

/// One thread uses it, and its handlers are called there.
class Stream {
 public:
  using Handler = std::function<void(const boost::system::error_code& error, size_t bytes)>;

  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  virtual ~Stream() = default;

  /// What has to be before bytes travel: TLS shakes hands.
  virtual void begin(Handler handler) = 0;
  /// Reads and writes some bytes, at least one; the memory must stay until the handler is called.
  virtual void read_some(std::span<char> into, Handler handler) = 0;
  virtual void write_some(std::string_view from, Handler handler) = 0;
  /// Says that nothing more is sent. What the client sends can still be read.
  virtual void end_sending() = 0;
  /// Handlers that wait are called with an error.
  virtual void close() = 0;
};

/// One that sends bytes as they are.
std::unique_ptr<Stream> make_stream(Socket socket);

}  // namespace faststream::server
