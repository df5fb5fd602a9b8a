// A conversation on disk.
//
// A session file is a JSON object: "faststream_chat" (the format's version, 1), "model" (its file's
// name and fingerprint), "system" (a text or null), "messages" and "settings" (chat_settings.h).
// Messages alternate between users ("role", "content") and assistants ("tokens" besides, perhaps
// empty). Tokens, where there are some, are what the model continues; content is what people read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/chat/chat_settings.h"
#include "model_file/model_file.h"
#include "support/file_lock.h"
#include "text/message.h"

namespace faststream::cli {

/// What a session knows of the model it was held with.
struct ChatModel {
  std::string name;         ///< of the file, without folders
  std::string fingerprint;  ///< equal for equal contents
  int64_t vocab = 0;        ///< not saved
};
ChatModel chat_model(const ModelFile& file);

struct Conversation {
  std::optional<std::string> system;
  std::vector<Message> messages;  ///< a user's and an assistant's by turns, the assistant's last
};

struct Session {
  ChatModel model;
  Conversation conversation;
  Request settings;  ///< those of chat_settings.h
};

std::string session_to_json(const Session& session);

/// `current` is where the session shall go on: its model's vocabulary limits token ids. Tokens of
/// another model are dropped. Throws Error, starting with `where`, when anything is not as it must
/// be.
Session session_from_json(std::string_view json, const Session& current, std::string_view where);

/// Keeps all other chats from writing the session of that name. `command`: what named it, for
/// messages. Throws Error when another chat holds it or there is something else than a regular
/// file, and as FileLock::take() does.
FileLock lock_session(const std::string& path, const std::string& command);

/// Whether there is anything at `path` but an empty file, which is a session that has not begun.
bool session_begun(const std::filesystem::path& path);

/// Throws Error, naming the file; also when there is one already and not `overwrite`.
void write_session(const std::filesystem::path& path, const Session& session, bool overwrite);
/// `command`: what named the file, for messages ("--session", "/load"). Throws as
/// session_from_json() does, and Error when the file cannot be read or is no regular one.
Session read_session(const std::string& path, const Session& current, const std::string& command);

}  // namespace faststream::cli
