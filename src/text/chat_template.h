// How a conversation is written for a model.
//
// A checkpoint's template is a Jinja program. FastStream runs none: it knows the common formats as
// data (chat_templates.json), recognizes a format by the checkpoint's own Jinja text, and takes
// further ones from files of the same form (docs/chat-templates.md).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_format.h"
#include "text/message.h"
#include "text/tokenizer.h"

namespace faststream {

/// One chat format. Immutable; any number of threads may use it.
class ChatTemplate {
 public:
  /// From its description in JSON. Throws Error, starting with `where`, when that is not sound.
  static ChatTemplate parse(std::string_view json, std::string_view where);
  /// A built-in one. Throws UsageError for an unknown name, listing the known ones.
  static ChatTemplate named(std::string_view name);
  /// The built-in one whose marks are in a checkpoint's Jinja template; nothing if none fits.
  static std::optional<ChatTemplate> recognize(std::string_view jinja);
  /// Names of the built-in ones.
  static std::vector<std::string> names();

  [[nodiscard]] const std::string& name() const { return format_.name; }

  /// Token ids of a conversation, the begin-of-sequence token included, up to where the assistant's
  /// next answer begins. What users write is plain text: a control token's spelling in a message's
  /// content does not become that token. The tokens for messages[0, n) are a prefix of those for
  /// messages[0, n + 2) when messages[n] is an assistant's with `tokens`, so that a conversation
  /// that goes on keeps its KV cache. Throws UsageError for a role that the format does not have,
  /// or an order of roles that it cannot express.
  [[nodiscard]] std::vector<int32_t> encode(const Tokenizer& tokenizer,
                                            std::span<const Message> messages) const;

  /// At most as many tokens as encode() gives, in a fraction of its time and memory. Throws as
  /// encode() does.
  [[nodiscard]] int64_t min_tokens(const Tokenizer& tokenizer,
                                   std::span<const Message> messages) const;

  /// The same conversation as text, as the checkpoint's own Jinja template writes it: for people
  /// and for tests, as control tokens and messages cannot be told apart in it. `tokens` of messages
  /// are not looked at. Throws as encode() does.
  [[nodiscard]] std::string render(std::span<const Message> messages, std::string_view bos,
                                   std::string_view eos) const;

  /// Tokens of `tokenizer` that end an answer, besides its own end-of-sequence tokens.
  [[nodiscard]] std::vector<int32_t> stop_tokens(const Tokenizer& tokenizer) const;
  /// Texts that end an answer (where a model may write the next turn itself).
  [[nodiscard]] const std::vector<std::string>& stop() const { return format_.stop; }

  using OnTokens = std::function<void(std::span<const int32_t> tokens)>;
  using OnText = std::function<void(std::string_view text, bool continues)>;

 private:
  /// A part of a conversation as it is written: a piece, or tokens in its stead.
  struct Part {
    ChatPiece piece;
    std::span<const int32_t> tokens = {};
  };

  explicit ChatTemplate(ChatFormat format);

  static const std::vector<ChatTemplate>& builtin();
  void check_roles(std::span<const Message> messages) const;
  /// Hands over a conversation in stretches: tokens, and text that is split as a whole.
  /// `continues`: the text goes on with what is before it; else it begins as a text does.
  void write(const Tokenizer& tokenizer, std::span<const Message> messages,
             const OnTokens& on_tokens, const OnText& on_text) const;
  [[nodiscard]] std::vector<Part> lay_out(std::span<const Message> messages, bool use_tokens) const;

  ChatFormat format_;
  bool writes_bos_ = false;  // the format itself, so the tokenizer need not
};

}  // namespace faststream
