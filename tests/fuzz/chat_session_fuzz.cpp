// Session files of the chat: whatever the bytes, an Error or a session that survives being written
// and read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "cli/chat/chat_session.h"
#include "fuzz/fuzz_target.h"
#include "support/error.h"

namespace {

using faststream::cli::Session;

void check(const Session& session, const Session& current) {
  for (const faststream::Message& message : session.conversation.messages) {
    for (const int32_t token : message.tokens) {
      if (token < 0 || token >= current.model.vocab) std::abort();
    }
  }
  const std::string written = session_to_json(session);
  const Session again = faststream::cli::session_from_json(written, current, "again");
  if (session_to_json(again) != written) std::abort();
}

}  // namespace

FUZZ_TARGET(chat_session) {
  Session current;
  current.model = {.name = "model.bin", .fingerprint = "0123456789abcdef", .vocab = 300};
  std::optional<Session> session;
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    session = faststream::cli::session_from_json(text, current, "fuzz");
  } catch (const faststream::Error&) {  // the only way to say no
    return;
  }
  check(*session, current);
}
