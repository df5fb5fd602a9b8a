// Connections that nobody on the way can read: TLS 1.2 and 1.3 by OpenSSL.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <memory>
#include <string>

#include "server/stream.h"

namespace faststream::server {

/// Of a server with the certificate and those between it and its issuer (PEM, in this order), and
/// the certificate's private key (PEM, not encrypted). Throws Error, naming the option, when a file
/// cannot be read, is no such thing, or one does not belong to the other.
std::unique_ptr<boost::asio::ssl::context> make_tls_context(const std::string& certificate_file,
                                                            const std::string& key_file);

/// begin() shakes hands. The context must outlive it.
std::unique_ptr<Stream> make_tls_stream(Socket socket, boost::asio::ssl::context& context);

}  // namespace faststream::server
