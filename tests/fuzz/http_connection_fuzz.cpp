// What a client sends over a connection: whatever the bytes, and whatever the pieces they come in,
// each request is answered once, in HTTP and JSON, and nothing of it is left when the client has
// gone.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "fuzz/fuzz_target.h"
#include "fuzz/memory_server.h"

namespace {

using faststream::server::check_answers;
using faststream::server::MemoryServer;
using faststream::server::require;
using faststream::server::SentBytes;
using faststream::server::ServedBytes;

// Pieces of 1 to 16 bytes, and now and then of many.
std::vector<std::string_view> cut(std::string_view text, uint32_t random) {
  std::vector<std::string_view> pieces;
  while (!text.empty()) {
    random = random * 1664525U + 1013904223U;
    const uint32_t size = random >> 28U;
    pieces.push_back(text.substr(0, size == 0 ? 300 : size));
    text.remove_prefix(pieces.back().size());
  }
  return pieces;
}

// A request that never becomes whole may be refused or not: that depends on how much comes at once.
void require_same(const ServedBytes& a, const ServedBytes& b) {
  require(a.records.size() == b.records.size());
  for (size_t i = 0; i < a.records.size(); ++i) {
    if (a.records[i].cut || b.records[i].cut) continue;
    require(a.records[i].method == b.records[i].method);
    require(a.records[i].path == b.records[i].path);
    require(a.records[i].status == b.records[i].status);
  }
}

}  // namespace

// The first byte says how the others are cut, and whether the client waits for answers.
FUZZ_TARGET(http_connection) {
  static auto models = faststream::server::fuzz_models();
  static MemoryServer server(models, false);
  if (size == 0) return;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  SentBytes sent{.pieces = cut(bytes, data[0]), .waits = data[0] < 200};
  const ServedBytes in_pieces = server.serve(sent);
  check_answers(in_pieces);
  if (!sent.waits) return;
  sent.pieces = {bytes};
  const ServedBytes whole = server.serve(sent);
  check_answers(whole);
  require_same(in_pieces, whole);
}
