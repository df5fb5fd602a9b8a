// What clients send and get, apart from how bytes travel.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace faststream::server {

/// A request, read whole.
struct HttpRequest {
  std::string method;
  std::string path;  ///< of the target, without what is after "?"
  std::string body;
  std::string authorization;  ///< the header, or empty; and so on
  std::string origin;
  std::string request_headers;  ///< Access-Control-Request-Headers
  std::string host;
};

struct HttpResponse {
  int status = 200;
  std::string_view content_type = "application/json";
  std::string body;
  /// Besides those of length, type and connection. Names and values are ours: nothing in them is
  /// escaped.
  std::vector<std::pair<std::string_view, std::string>> headers = {};
};

/// What the server allows a client.
struct HttpLimits {
  size_t header_bytes = 16 << 10;
  size_t body_bytes = 16 << 20;
  size_t bodies_bytes = size_t{1} << 30;  ///< of all requests together
  size_t connections = 10000;
  /// Of a stream, bytes that wait for a client to read: one that lets more wait is dropped.
  size_t unsent_bytes = 1 << 20;
  std::chrono::milliseconds idle{75'000};     ///< between requests
  std::chrono::milliseconds headers{10'000};  ///< from a request's first byte to its last header
  std::chrono::milliseconds body{20'000};     ///< and then, besides a second for each 16 KB
  std::chrono::milliseconds unread{30'000};   ///< in which a client takes something of what is sent
};

/// "Not Found" for 404.
std::string_view reason_phrase(int status);

}  // namespace faststream::server
