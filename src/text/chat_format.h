// A chat format as data; docs/chat-templates.md describes its JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace faststream {

/// A part of what a format writes around messages.
struct ChatPiece {
  enum class Kind {
    text,
    control,  ///< the token spelled `text`, or plain text for a tokenizer without it
    bos,
    eos,
  };
  Kind kind = Kind::text;
  std::string text;
};
using ChatLiteral = std::vector<ChatPiece>;

/// Where whitespace is dropped at both ends.
enum class ChatStrip {
  none,
  content,  ///< of the message's content
  turn,     ///< of all between prefix and suffix: with a system message that the turn carries
};

/// How a role's messages are written.
struct ChatTurn {
  ChatLiteral prefix;
  ChatLiteral suffix;
  ChatStrip strip = ChatStrip::none;
};

struct ChatFormat {
  std::string name;
  ChatLiteral begin;                          ///< comes before the first turn
  std::optional<ChatTurn> system;             ///< absent: there are no system messages
  bool system_in_first_user = false;          ///< between the first user turn's prefix and content
  std::optional<std::string> default_system;  ///< content of the system message where none is given
  ChatTurn user;
  ChatTurn assistant;
  ChatLiteral generation_prompt;  ///< what the assistant's answer follows
  bool alternate = false;         ///< user and assistant must take turns, the user first
  /// Text where a conversation starts and after control tokens begins as a text does: with the
  /// space that SentencePiece models put there. Else all spaces are the format's own.
  bool dummy_prefix = true;
  bool strip_after_control = false;  ///< whitespace after a control token is dropped
  std::vector<std::string> control_tokens;
  std::vector<std::string> stop_tokens;
  std::vector<std::string> stop;

  /// Parts of a Jinja template by which the format is known.
  struct Marks {
    std::vector<std::string> all;   ///< every one is in the text
    std::vector<std::string> none;  ///< no one is
  };
  std::vector<Marks> marks;  ///< any of them suffices
};

/// Throws Error, starting with `where`, when `json` is not of the form or breaks a limit.
ChatFormat chat_format_from_json(const nlohmann::json& json, std::string_view where);

/// The text of chat_templates.json: {"templates": [...]}.
std::string_view builtin_chat_templates();

}  // namespace faststream
