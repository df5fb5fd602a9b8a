#include "cli/chat/chat_session.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "engine/runner.h"
#include "program/input.h"
#include "support/error.h"
#include "support/json.h"
#include "support/partial_file.h"
#include "support/utf8.h"

namespace faststream::cli {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kVersion = 1;
constexpr const char* kVersionKey = "faststream_chat";

std::vector<Message> read_messages(const JsonView& list, int64_t vocab) {
  const auto last_token =
      static_cast<int32_t>(std::min<int64_t>(vocab - 1, std::numeric_limits<int32_t>::max()));
  std::vector<Message> messages;
  for (const JsonView& item : list.elements()) {
    const bool answers = messages.size() % 2 == 1;
    item.allow_only({"role", "content", "tokens"});
    Message message{.role = item.get<std::string>("role"),
                    .content = item.get<std::string>("content")};
    if (message.role != (answers ? "assistant" : "user")) {
      item.member("role").fail(answers ? "is not \"assistant\"" : "is not \"user\"");
    }
    if (answers) message.tokens = item.member("tokens").integers<int32_t>(0, last_token);
    messages.push_back(std::move(message));
  }
  if (messages.size() % 2 == 1) list.fail("ends with a message that has no answer");
  return messages;
}

ordered_json message_to_json(const Message& message) {
  ordered_json item = {{"role", message.role}, {"content", message.content}};
  if (message.role == "assistant") item["tokens"] = message.tokens;
  return item;
}

// A pipe could keep a reader waiting forever.
void check_kind(const std::string& path, const std::string& command) {
  std::error_code unknown;  // reading or writing says what is wrong
  if (!std::filesystem::exists(path, unknown)) return;
  if (std::filesystem::is_regular_file(path, unknown)) return;
  throw Error(command + " " + path +
              ": is not a regular file, as a session must be; name another file");
}

// Whether a file, if it can be read, may be an object in JSON: not a model, for example.
bool begins_as_session(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string start(4096, '\0');
  file.read(start.data(), static_cast<std::streamsize>(start.size()));
  start.resize(static_cast<size_t>(file.gcount()));
  if (start.empty()) return true;  // what reads it says what is wrong
  if (start.starts_with(kByteOrderMark)) start.erase(0, kByteOrderMark.size());
  const std::string_view text = without_blanks(start);
  return text.starts_with('{');
}

}  // namespace

ChatModel chat_model(const ModelFile& file) {
  return {.name = std::filesystem::path(file.name()).filename().string(),
          .fingerprint = file.fingerprint(),
          .vocab = read_config(file).vocab};
}

std::string session_to_json(const Session& session) {
  const Conversation& conversation = session.conversation;
  ordered_json model = {{"name", session.model.name}, {"fingerprint", session.model.fingerprint}};
  ordered_json system;
  if (conversation.system) system = *conversation.system;
  // A line a message, for people who read or compare.
  std::string text = "{\"" + std::string(kVersionKey) + "\": " + std::to_string(kVersion) +
                     ",\n\"model\": " + model.dump() + ",\n\"system\": " + system.dump() +
                     ",\n\"messages\": [";
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    text += (i == 0 ? "\n" : ",\n") + message_to_json(conversation.messages[i]).dump();
  }
  return text + "],\n\"settings\": " + settings_to_json(session.settings).dump() + "}\n";
}

Session session_from_json(std::string_view text, const Session& current, std::string_view where) {
  constexpr std::string_view kAdvice = "the file is damaged or no session of faststream-run";
  const json parsed = parse_json_object(text, where, kAdvice);
  const JsonView file(parsed, where, kAdvice);
  if (file.member(kVersionKey).value() != kVersion) {
    throw Error(std::string(where) + ": its format's version is not " + std::to_string(kVersion) +
                "; it was written by another version of faststream-run");
  }
  file.allow_only({kVersionKey, "model", "system", "messages", "settings"});
  Session session{.model = current.model, .conversation = {}, .settings = {}};
  const JsonView model = file.member("model");
  model.allow_only({"name", "fingerprint"});
  session.model.name = model.get<std::string>("name");
  session.model.fingerprint = model.get<std::string>("fingerprint");
  const bool same_model = session.model.fingerprint == current.model.fingerprint;

  // Null says that there is none; a file that says nothing is damaged.
  if (!file.has("system")) file.fail("\"system\" is missing");
  if (const auto system = file.find("system")) {
    session.conversation.system = system->as<std::string>();
  }
  session.conversation.messages =
      read_messages(file.member("messages"),
                    same_model ? current.model.vocab : std::numeric_limits<int32_t>::max());
  if (!same_model) {
    for (Message& message : session.conversation.messages) message.tokens.clear();
  }
  settings_from_json(session.settings, file.member("settings").value(), where);
  return session;
}

FileLock lock_session(const std::string& path, const std::string& command) {
  check_kind(path, command);
  std::optional<FileLock> lock = FileLock::take(path);
  if (!lock) {
    throw Error(command + " " + path +
                ": another chat is using it; end that one, or name another file");
  }
  return std::move(*lock);
}

bool session_begun(const std::filesystem::path& path) {
  std::error_code unknown;  // reading or writing says what is wrong
  return std::filesystem::exists(path, unknown) && !std::filesystem::is_empty(path, unknown);
}

void write_session(const std::filesystem::path& path, const Session& session, bool overwrite) {
  write_file(path, session_to_json(session), overwrite);
}

Session read_session(const std::string& path, const Session& current, const std::string& command) {
  check_kind(path, command);
  const std::string file = path == "-" ? "./-" : path;  // not standard input
  if (!begins_as_session(file)) {
    throw Error(command + " " + path +
                ": is no session of faststream-run; name a file that --session or /save wrote");
  }
  return session_from_json(read_text_file(file, command), current, path);
}

}  // namespace faststream::cli
