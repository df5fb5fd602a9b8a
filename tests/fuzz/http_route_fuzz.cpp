// Requests that are sound HTTP: whatever the target, the headers and the body, an answer in HTTP
// and JSON; nothing without the key; and nothing for pages of other servers.
//
// The bytes are a method and a target, headers, an empty line and the body; lines end with "\n".
// The first byte says which of two servers is asked, and how the body comes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "fuzz/fuzz_target.h"
#include "fuzz/memory_server.h"

namespace {

using faststream::server::kFuzzKey;
using faststream::server::kFuzzOrigin;
using faststream::server::MemoryServer;
using faststream::server::require;
using faststream::server::ServedBytes;

std::string_view take_line(std::string_view& text) {
  const size_t end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

struct SentRequest {
  std::string bytes;
  std::string headers;
};

SentRequest build(std::string_view text, bool chunked) {
  SentRequest request;
  request.bytes = std::string(take_line(text)) + " HTTP/1.1\r\nHost: localhost\r\n";
  for (std::string_view line = take_line(text); !line.empty(); line = take_line(text)) {
    request.headers += std::string(line) + "\r\n";
  }
  request.bytes += request.headers;
  if (!chunked) {
    request.bytes += "Content-Length: " + std::to_string(text.size()) + "\r\n\r\n";
    request.bytes += text;
    return request;
  }
  request.bytes += "Transfer-Encoding: chunked\r\n\r\n";
  constexpr std::string_view kDigits = "123456789abcdef";
  while (!text.empty()) {
    const size_t size = std::min(text.size(), kDigits.size());
    request.bytes += kDigits.substr(size - 1, 1);
    request.bytes += "\r\n" + std::string(text.substr(0, size)) + "\r\n";
    text.remove_prefix(size);
  }
  request.bytes += "0\r\n\r\n";
  return request;
}

bool is_answered(const faststream::server::AccessRecord& record) {
  return record.status >= 200 && record.status < 300 && record.method != "OPTIONS";
}

}  // namespace

FUZZ_TARGET(http_route) {
  static auto models = faststream::server::fuzz_models();
  static MemoryServer open(models, false);
  static MemoryServer closed(models, true);
  if (size == 0) return;
  const bool has_keys = (data[0] & 1U) != 0;
  const SentRequest request =
      build({reinterpret_cast<const char*>(data) + 1, size - 1}, (data[0] & 2U) != 0);
  const ServedBytes served = (has_keys ? closed : open).serve({.pieces = {request.bytes}});
  check_answers(served);
  if (served.records.empty() || !is_answered(served.records.front())) return;
  const std::string& path = served.records.front().path;
  if (has_keys && path != "/" && path != "/health") {
    require(request.headers.find(kFuzzKey) != std::string::npos);
  }
  // Field names are of any case; what is no origin of this server's is in none of the headers then.
  std::string lower = request.headers;
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  if (lower.find("\norigin: http") != std::string::npos) {
    require(lower.find("localhost") != std::string::npos ||
            (has_keys && lower.find(kFuzzOrigin) != std::string::npos));
  }
}
