#include "server/stream.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <utility>

namespace faststream::server {
namespace {

namespace asio = boost::asio;

class PlainStream final : public Stream {
 public:
  explicit PlainStream(Socket socket) : socket_(std::move(socket)) {}

  void begin(Handler handler) override { handler({}, 0); }
  void read_some(std::span<char> into, Handler handler) override {
    socket_.async_read_some(asio::buffer(into.data(), into.size()), std::move(handler));
  }
  void write_some(std::string_view from, Handler handler) override {
    socket_.async_write_some(asio::buffer(from.data(), from.size()), std::move(handler));
  }
  void end_sending() override {
    boost::system::error_code ignored;
    socket_.shutdown(Socket::shutdown_send, ignored);
  }
  void close() override {
    boost::system::error_code ignored;
    socket_.close(ignored);
  }

 private:
  Socket socket_;
};

}  // namespace

std::unique_ptr<Stream> make_stream(Socket socket) {
  return std::make_unique<PlainStream>(std::move(socket));
}

}  // namespace faststream::server
