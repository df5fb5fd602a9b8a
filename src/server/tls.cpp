#include "server/tls.h"

#include <openssl/ssl.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <utility>

#include "program/input.h"
#include "support/error.h"
#include "support/printable.h"

namespace faststream::server {
namespace {

namespace asio = boost::asio;
namespace ssl = asio::ssl;

using TlsSocket = ssl::stream<Socket>;

// What is under way uses the socket, even when the stream is gone: handlers hold it.
class TlsStream final : public Stream {
 public:
  TlsStream(Socket socket, ssl::context& context)
      : socket_(std::make_shared<TlsSocket>(std::move(socket), context)) {}
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;
  ~TlsStream() override { TlsStream::close(); }

  void begin(Handler handler) override {
    socket_->async_handshake(TlsSocket::server,
                             [socket = socket_, handler = std::move(handler)](
                                 const boost::system::error_code& error) { handler(error, 0); });
  }
  void read_some(std::span<char> into, Handler handler) override {
    socket_->async_read_some(asio::buffer(into.data(), into.size()), holding(std::move(handler)));
  }
  void write_some(std::string_view from, Handler handler) override {
    socket_->async_write_some(asio::buffer(from.data(), from.size()), holding(std::move(handler)));
  }
  void end_sending() override {
    socket_->async_shutdown([socket = socket_](const boost::system::error_code&) {
      boost::system::error_code ignored;
      socket->next_layer().shutdown(Socket::shutdown_send, ignored);
    });
  }
  void close() override {
    boost::system::error_code ignored;
    socket_->next_layer().close(ignored);
  }

 private:
  Handler holding(Handler handler) {
    return [socket = socket_, handler = std::move(handler)](const boost::system::error_code& error,
                                                            size_t n) { handler(error, n); };
  }

  std::shared_ptr<TlsSocket> socket_;
};

}  // namespace

std::unique_ptr<ssl::context> make_tls_context(const std::string& certificate_file,
                                               const std::string& key_file) {
  auto context = std::make_unique<ssl::context>(ssl::context::tls_server);
  SSL_CTX_set_min_proto_version(context->native_handle(), TLS1_2_VERSION);
  SSL_CTX_set_options(context->native_handle(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_mode(context->native_handle(), SSL_MODE_RELEASE_BUFFERS);
  boost::system::error_code error;
  // Else OpenSSL asks on the terminal for that of an encrypted key.
  context->set_password_callback([](size_t, ssl::context::password_purpose) { return ""; }, error);

  const std::string certificate = read_text_file(certificate_file, "--tls-cert");
  context->use_certificate_chain(asio::buffer(certificate), error);
  if (error) {
    throw Error("--tls-cert " + printable(certificate_file) +
                " has no certificate; give a file in PEM, which begins with \"-----BEGIN "
                "CERTIFICATE-----\"");
  }
  const std::string key = read_text_file(key_file, "--tls-key");
  context->use_private_key(asio::buffer(key), ssl::context::pem, error);
  if (!error && SSL_CTX_check_private_key(context->native_handle()) == 1) return context;
  throw Error("--tls-key " + printable(key_file) +
              " is not the key of the certificate in PEM, not encrypted; give the one that "
              "--tls-cert was made with");
}

std::unique_ptr<Stream> make_tls_stream(Socket socket, ssl::context& context) {
  return std::make_unique<TlsStream>(std::move(socket), context);
}

}  // namespace faststream::server
