#include "cli/chat/chat_session.h"

#include <array>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "cli/input.h"
#include "engine/runner.h"
#include "model_file/layout.h"
#include "support/error.h"
#include "support/json.h"
#include "support/partial_file.h"

namespace faststream {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kVersion = 1;
constexpr const char* kVersionKey = "faststream_chat";

// Reads members of objects, with sentences for what is wrong.
class Reader {
 public:
  explicit Reader(std::string_view where) : where_(where) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(where_ + ": " + what + "; the file is damaged or no session of faststream-run");
  }

  const json& member(const json& object, const std::string& of, const char* key) const {
    if (!object.is_object()) fail(of + " is no object");
    const auto found = object.find(key);
    if (found == object.end()) fail(of + " has no \"" + key + "\"");
    return *found;
  }

  std::string text(const json& object, const std::string& of, const char* key) const {
    const json& value = member(object, of, key);
    if (!value.is_string()) fail("\"" + std::string(key) + "\" of " + of + " is no text");
    return value.get<std::string>();
  }

  std::vector<int32_t> tokens(const json& object, const std::string& of, int64_t vocab) const {
    const json& value = member(object, of, "tokens");
    if (!value.is_array()) fail("\"tokens\" of " + of + " is no array");
    std::vector<int32_t> tokens;
    tokens.reserve(value.size());
    for (const json& token : value) {
      // Negative numbers are not unsigned.
      if (!token.is_number_unsigned() || token.get<uint64_t>() >= static_cast<uint64_t>(vocab)) {
        fail("\"tokens\" of " + of + " has one that is not from 0 to " + std::to_string(vocab - 1));
      }
      tokens.push_back(token.get<int32_t>());
    }
    return tokens;
  }

 private:
  std::string where_;
};

std::vector<Message> read_messages(const Reader& reader, const json& list, int64_t vocab) {
  if (!list.is_array()) reader.fail("\"messages\" is no array");
  std::vector<Message> messages;
  for (const json& item : list) {
    const std::string of = "message " + std::to_string(messages.size() + 1);
    const bool answers = messages.size() % 2 == 1;
    Message message{.role = reader.text(item, of, "role"),
                    .content = reader.text(item, of, "content")};
    if (message.role != (answers ? "assistant" : "user")) {
      reader.fail("the role of " + of + " is not " + (answers ? "assistant" : "user"));
    }
    if (answers) message.tokens = reader.tokens(item, of, vocab);
    messages.push_back(std::move(message));
  }
  if (messages.size() % 2 == 1) reader.fail("the last message has no answer");
  return messages;
}

ordered_json message_to_json(const Message& message) {
  ordered_json item = {{"role", message.role}, {"content", message.content}};
  if (message.role == "assistant") item["tokens"] = message.tokens;
  return item;
}

}  // namespace

ChatModel chat_model(const ModelFile& file) {
  std::string contents = file.header().dump();
  for (const TensorInfo& tensor : file.tensors()) {
    contents += "\n" + tensor.name + " " + std::to_string(tensor.checksum);
  }
  std::array<char, 17> hash{};
  std::snprintf(
      hash.data(), hash.size(), "%016llx",
      static_cast<unsigned long long>(layout::checksum(std::as_bytes(std::span(contents)))));
  return {.name = std::filesystem::path(file.name()).filename().string(),
          .fingerprint = hash.data(),
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
  const Reader reader(where);
  const json file = parse_json_object(text, where);
  const json& version = reader.member(file, "it", kVersionKey);
  if (version != json(kVersion)) {
    throw Error(std::string(where) + ": its format's version is not " + std::to_string(kVersion) +
                "; it was written by another version of faststream-run");
  }
  Session session{.model = current.model, .conversation = {}, .settings = current.settings};
  const json& model = reader.member(file, "it", "model");
  session.model.name = reader.text(model, "\"model\"", "name");
  session.model.fingerprint = reader.text(model, "\"model\"", "fingerprint");
  const bool same_model = session.model.fingerprint == current.model.fingerprint;

  if (!reader.member(file, "it", "system").is_null()) {
    session.conversation.system = reader.text(file, "it", "system");
  }
  session.conversation.messages =
      read_messages(reader, reader.member(file, "it", "messages"),
                    same_model ? current.model.vocab : std::numeric_limits<int32_t>::max());
  if (!same_model) {
    for (Message& message : session.conversation.messages) message.tokens.clear();
  }
  settings_from_json(session.settings, reader.member(file, "it", "settings"), where);
  return session;
}

void write_session(const std::filesystem::path& path, const Session& session) {
  replace_file(path, session_to_json(session));
}

Session read_session(const std::string& path, const Session& current, const std::string& command) {
  return session_from_json(read_text_file(path, command), current, path);
}

}  // namespace faststream
