// A chat: its conversation, and what messages and commands do to it.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cli/chat/chat_answerer.h"
#include "cli/chat/chat_input.h"
#include "cli/chat/chat_session.h"
#include "engine/request.h"

namespace faststream::cli {

/// Where a chat writes.
struct ChatOutput {
  /// Pieces of answers; a newline ends each answer. Throws OutputError when that fails.
  std::function<void(std::string_view)> answer;
  std::function<void(std::string_view)> notice;  ///< whole lines about the chat, newlines included
};

class Chat {
 public:
  /// `prototype`: what all requests share; of its prompt, if that is a ChatPrompt, all but the
  /// messages. `answerer` must outlive this.
  Chat(Answerer& answerer, ChatModel model, Request prototype, ChatOutput output);

  /// Answers a message or carries out a command; false when it was /quit. Throws Error when that
  /// cannot be done; then the conversation is as it was. Throws OutputError when an answer could
  /// not be shown to its end; the conversation has what there is of it.
  bool take(const ChatInput& input);

  /// Gives the conversation another system prompt; an empty one is none. Throws UsageError when it
  /// is not UTF-8, Error when the chat template refuses system prompts.
  void set_system(const std::string& text);
  /// Changes a setting, in the session, too. Throws UsageError as change_setting() does.
  void set(std::string_view name, std::string_view value);
  /// Takes a setting from `request` for as long as this chat lasts: the session does not keep it.
  void use(const RequestSetting& setting, const Request& request) {
    setting.copy(request, request_);
  }
  /// From now on every change is written to `path`, whose lock_session() the caller holds.
  void keep_in(const std::string& path) { session_path_ = path; }
  /// Writes the file of keep_in(), if there is one. Throws Error.
  void save() const;
  /// Goes on with a saved session and its settings. `command`: what named it, for messages. Throws
  /// Error.
  void load(const std::string& path, const std::string& command);
  /// Prints what /stats prints.
  void print_stats() const;

  [[nodiscard]] const Conversation& conversation() const { return session_.conversation; }
  /// The settings that answers are generated with.
  [[nodiscard]] const Request& settings() const { return request_; }

 private:
  using Handler = void (Chat::*)(const std::string& argument);
  struct Command;
  static std::span<const Command> commands();

  void help(const std::string& argument);
  void system(const std::string& argument);
  void reset(const std::string& argument);
  void undo(const std::string& argument);
  void retry(const std::string& argument);
  void change(const std::string& argument);
  void adapter(const std::string& argument);
  void save_as(const std::string& argument);
  void save_over(const std::string& argument);
  void save_to(const std::string& path, const std::string& command, bool overwrite);
  // Throws UsageError when the file at `path` is no session.
  void check_replaceable(const std::string& path, const std::string& command) const;
  void load_from(const std::string& argument);
  void stats(const std::string& argument);
  void quit(const std::string& argument);

  // Answers `message` after `before`; both and the answer are the conversation then. False when
  // Ctrl-C came before the answer began: the conversation is as it was.
  bool exchange(Conversation before, const std::string& message);
  void check_template(const std::optional<std::string>& system) const;
  Result generate(ChatPrompt prompt);
  [[nodiscard]] std::string text_without_special(const Output& output) const;
  void tell_end(FinishReason reason) const;
  // Of what was changed since `before`, or has no effect since then, by notices.
  void tell_idle(const Request& before) const;
  [[nodiscard]] size_t n_exchanges() const { return session_.conversation.messages.size() / 2; }
  void notice(const std::string& line) const { output_.notice(line + "\n"); }

  Answerer* answerer_;
  Request request_;   // of the next answer, without its prompt
  ChatPrompt frame_;  // tools, documents and variables
  ChatOutput output_;
  Session session_;
  size_t first_in_context_ = 0;  // exchanges before this one the model no longer sees
  std::string session_path_;
  std::exception_ptr output_failure_;  // of an answer, to be thrown once that is kept
  bool leaving_ = false;

  struct Usage {  // of the last answer
    int64_t prompt_tokens = 0;
    int64_t cached_tokens = 0;
    int64_t answer_tokens = 0;
    double prompt_seconds = 0;
    double generation_seconds = 0;
    uint64_t seed = 0;
  };
  std::optional<Usage> usage_;
};

/// The message of an answer: with its tokens, but for the one that ended it, unless a stop string
/// cut the text short, since then tokens and text differ.
Message assistant_message(const Output& output);

}  // namespace faststream::cli
