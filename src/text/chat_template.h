// How a conversation is written for a model: by a checkpoint's own Jinja template, or a built-in
// one. docs/chat-templates.md is for users.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_variables.h"
#include "text/jinja/template.h"
#include "text/message.h"
#include "text/tokenizer.h"

namespace faststream {

/// A conversation as a chat template wrote it.
class ChatText {
 public:
  /// For people: special tokens and their spellings in messages cannot be told apart in it.
  [[nodiscard]] const std::string& text() const { return text_.bytes(); }

  /// Token ids up to where the assistant's next answer begins. What users write is plain text: the
  /// spelling of a special token in a message does not become that token. An answer that came with
  /// its tokens is written with them, where its whole content is in the text, but for white space
  /// around it; so the tokens of a conversation that goes on begin with those it had.
  /// `parses_special`: the spellings of special tokens become those tokens wherever they are.
  [[nodiscard]] std::vector<int32_t> encode(const Tokenizer& tokenizer,
                                            bool parses_special = false) const;

  /// At most as many tokens as encode(tokenizer) gives, in a fraction of its time and memory.
  /// Counts no further once there are more than `enough`.
  [[nodiscard]] int64_t min_tokens(const Tokenizer& tokenizer, int64_t enough) const;

 private:
  friend class ChatTemplate;

  /// Tokens that stand for bytes of the text.
  struct Known {
    size_t begin = 0;
    size_t end = 0;
    std::vector<int32_t> tokens = {};
    bool is_answer = false;  ///< else a special token that a variable names
  };
  [[nodiscard]] std::vector<Known> known(const Tokenizer& tokenizer) const;

  jinja::Text text_;
  std::vector<Known> answers_;
  bool leaves_bos_ = false;  ///< the tokenizer's configuration says whether it begins the text
};

/// Immutable; any number of threads may use it.
class ChatTemplate {
 public:
  /// Jinja. Throws Error, starting with `where`, when it cannot be parsed. `tool_use`: the one for
  /// conversations with tools; empty: the same. `special_tokens`: their spellings by the names of
  /// variables, {"bos_token": "<s>", "additional_special_tokens": [...]}; the tokenizer's BOS and
  /// EOS where it has no "bos_token" and "eos_token".
  ChatTemplate(std::string_view jinja, std::string_view where, std::string_view tool_use = {},
               const nlohmann::json* special_tokens = nullptr);
  /// What a model file or a checkpoint has: Jinja, or {"default": Jinja, "tool_use": Jinja}. Throws
  /// Error as the constructor does, and for other JSON.
  static ChatTemplate from_json(const nlohmann::json& chat_template, std::string_view where,
                                const nlohmann::json* special_tokens = nullptr);
  /// A built-in one. Throws UsageError for an unknown name, listing the known ones.
  static ChatTemplate named(std::string_view name, const nlohmann::json* special_tokens = nullptr);
  /// Names of the built-in ones.
  static std::vector<std::string> names();

  /// Renders as Transformers' apply_chat_template does, but for tools that the template knows
  /// nothing of: it is given them as text (text/generic_tools.h). Throws Error, which names the
  /// template, where that fails or refuses the conversation; UsageError for JSON in `prompt` that
  /// is none, and for a variable of its own that the program sets.
  [[nodiscard]] ChatText write(const ChatPrompt& prompt,
                               const jinja::LocalTime& now = jinja::local_time_now()) const;

  /// Tokens of `tokenizer` that end an answer, besides its own end-of-sequence tokens: those of a
  /// built-in template, and the well-known ends of turns that another one writes.
  [[nodiscard]] std::vector<int32_t> stop_tokens(const Tokenizer& tokenizer) const;
  /// Whether conversations' "tools" or "documents" can be in what it writes: it has that name.
  [[nodiscard]] bool mentions(std::string_view name) const;
  /// Texts that end an answer (where a model may write the next turn itself).
  [[nodiscard]] const std::vector<std::string>& stop() const { return stop_; }

 private:
  [[nodiscard]] jinja::Text render(const ChatPrompt& prompt, bool with_generation_prompt,
                                   const jinja::LocalTime& now) const;
  [[nodiscard]] jinja::Text render(const ChatPrompt& prompt, TextArguments arguments,
                                   bool with_generation_prompt, const jinja::LocalTime& now) const;
  void find_answers(const ChatPrompt& prompt, const jinja::LocalTime& now, ChatText& written) const;

  jinja::Template default_;
  std::optional<jinja::Template> tool_use_;
  jinja::Dict special_tokens_;
  std::vector<std::string> stop_tokens_;
  std::vector<std::string> stop_;
  bool is_builtin_ = false;
};

}  // namespace faststream
