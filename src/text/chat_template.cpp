#include "text/chat_template.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "support/error.h"
#include "support/json.h"
#include "support/utf8.h"

namespace faststream {
namespace {

using Kind = ChatPiece::Kind;

bool has_bos(const ChatLiteral& literal) {
  return std::any_of(literal.begin(), literal.end(),
                     [](const ChatPiece& piece) { return piece.kind == Kind::bos; });
}

std::string plain_text(const ChatLiteral& literal) {
  std::string text;
  for (const ChatPiece& piece : literal) text += piece.text;
  return text;
}

/// What stands between a turn's prefix and suffix. `carried`: text that it holds before the
/// content.
std::string turn_body(const ChatTurn& turn, std::string carried, std::string_view content) {
  if (turn.strip == ChatStrip::content) content = strip_left(strip_right(content));
  carried += content;
  if (turn.strip != ChatStrip::turn) return carried;
  return std::string(strip_left(strip_right(carried)));
}

/// Makes stretches of the parts of a conversation, as ChatTemplate::write() hands them over.
class Writer {
 public:
  Writer(const Tokenizer& tokenizer, const ChatFormat& format,
         const ChatTemplate::OnTokens& on_tokens, const ChatTemplate::OnText& on_text)
      : tokenizer_(tokenizer),
        format_(format),
        on_tokens_(on_tokens),
        on_text_(on_text),
        continues_(!format.dummy_prefix) {}

  void add(const ChatPiece& piece) {
    const TokenizerConfig& config = tokenizer_.config();
    switch (piece.kind) {
      case Kind::text:
        return add_text(piece.text);
      case Kind::control:
        if (const auto id = tokenizer_.find_token(piece.text)) return add_control(*id);
        return add_text(piece.text);
      case Kind::bos:
        if (config.bos) add_control(*config.bos);
        return;
      case Kind::eos:
        if (!config.eos.empty()) add_control(config.eos.front());
        return;
    }
  }

  void add_tokens(std::span<const int32_t> tokens) {
    finish();
    on_tokens_(tokens);
    continues_ = true;
    strips_ = false;
  }

  /// Hands over the text since the last token.
  void finish() {
    if (!pending_.empty()) on_text_(pending_, continues_);
    pending_.clear();
  }

 private:
  void add_text(std::string_view text) {
    if (strips_) text = strip_left(text);
    if (!text.empty()) strips_ = false;
    pending_ += text;
  }

  void add_control(int32_t id) {
    finish();
    on_tokens_({&id, 1});
    continues_ = !format_.dummy_prefix;
    strips_ = format_.strip_after_control;
  }

  const Tokenizer& tokenizer_;
  const ChatFormat& format_;
  const ChatTemplate::OnTokens& on_tokens_;
  const ChatTemplate::OnText& on_text_;
  std::string pending_;  // text since the last token
  bool continues_;       // pending_ goes on with what is before it; else it begins as a text does
  bool strips_ = false;  // whitespace is dropped until other text comes
};

/// Splits plain text, which never becomes a control token of the format.
class PlainTextEncoder {
 public:
  PlainTextEncoder(const Tokenizer& tokenizer, const ChatFormat& format) : tokenizer_(tokenizer) {
    const TokenizerConfig& config = tokenizer.config();
    reserved_ = config.eos;
    if (config.bos) reserved_.push_back(*config.bos);
    for (const auto* tokens : {&format.control_tokens, &format.stop_tokens}) {
      for (const std::string& token : *tokens) {
        if (const auto id = tokenizer.find_token(token)) reserved_.push_back(*id);
      }
    }
  }

  /// Appends the ids. Where the tokenizer would make a reserved token, the text is cut in halves
  /// until every such spelling is in parts.
  void encode(std::string_view text, bool continues, std::vector<int32_t>& out) const {
    const std::vector<int32_t> ids =
        continues ? tokenizer_.encode_continuation(text) : tokenizer_.encode(text, false);
    const size_t half = middle(text);
    if (half == 0 || std::none_of(ids.begin(), ids.end(), [this](int32_t id) {
          return std::find(reserved_.begin(), reserved_.end(), id) != reserved_.end();
        })) {
      out.insert(out.end(), ids.begin(), ids.end());
      return;
    }
    encode(text.substr(0, half), continues, out);
    encode(text.substr(half), true, out);
  }

 private:
  /// Where a character begins nearest after the middle of `text`, else before it; 0 where there is
  /// but one.
  static size_t middle(std::string_view text) {
    const auto begins = [text](size_t at) {
      return (static_cast<unsigned char>(text[at]) & 0xC0U) != 0x80U;
    };
    for (size_t at = (text.size() + 1) / 2; at < text.size(); ++at) {
      if (begins(at)) return at;
    }
    for (size_t at = text.size() / 2; at > 0; --at) {
      if (begins(at)) return at;
    }
    return 0;
  }

  const Tokenizer& tokenizer_;
  std::vector<int32_t> reserved_;
};

}  // namespace

ChatTemplate::ChatTemplate(ChatFormat format) : format_(std::move(format)) {
  for (const ChatLiteral* literal :
       {&format_.begin, &format_.user.prefix, &format_.user.suffix, &format_.assistant.prefix,
        &format_.assistant.suffix, &format_.generation_prompt}) {
    writes_bos_ = writes_bos_ || has_bos(*literal);
  }
}

ChatTemplate ChatTemplate::parse(std::string_view json, std::string_view where) {
  constexpr size_t kLargest = 1 << 20;
  if (json.size() > kLargest) {
    throw Error(std::string(where) + ": is larger than 1 MB, so it is no chat template");
  }
  return ChatTemplate(chat_format_from_json(parse_json_object(json, where), where));
}

const std::vector<ChatTemplate>& ChatTemplate::builtin() {
  static const std::vector<ChatTemplate> templates = [] {
    constexpr std::string_view kWhere = "the built-in chat templates";
    const nlohmann::json file = parse_json_object(builtin_chat_templates(), kWhere);
    std::vector<ChatTemplate> parsed;
    for (const nlohmann::json& format : file.at("templates")) {
      parsed.push_back(ChatTemplate(chat_format_from_json(format, kWhere)));
    }
    return parsed;
  }();
  return templates;
}

std::vector<std::string> ChatTemplate::names() {
  std::vector<std::string> all;
  for (const ChatTemplate& known : builtin()) all.push_back(known.name());
  return all;
}

ChatTemplate ChatTemplate::named(std::string_view name) {
  std::string names;
  for (const ChatTemplate& known : builtin()) {
    if (known.name() == name) return known;
    names += (names.empty() ? "" : ", ") + known.name();
  }
  throw UsageError("the chat template \"" + std::string(name) + "\" is unknown; known are " +
                   names);
}

std::optional<ChatTemplate> ChatTemplate::recognize(std::string_view jinja) {
  const auto contains = [jinja](const std::string& mark) {
    return jinja.find(mark) != std::string_view::npos;
  };
  const auto fits = [&](const ChatFormat::Marks& marks) {
    return std::all_of(marks.all.begin(), marks.all.end(), contains) &&
           std::none_of(marks.none.begin(), marks.none.end(), contains);
  };
  for (const ChatTemplate& known : builtin()) {
    const std::vector<ChatFormat::Marks>& marks = known.format_.marks;
    if (std::any_of(marks.begin(), marks.end(), fits)) return known;
  }
  return std::nullopt;
}

void ChatTemplate::check_roles(std::span<const Message> messages) const {
  if (messages.empty()) throw UsageError("the conversation has no messages");
  const std::string needs = "the chat template " + name() + " needs ";
  const bool has_system = messages.front().role == "system";
  bool users_turn = true;
  bool any_user = false;
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    const std::string which = "message " + std::to_string(i + 1);
    if (role == "system") {
      if (i > 0) {
        throw UsageError(which + (has_system ? " is a second system message; give only one"
                                             : " is a system message, which must be the first"));
      }
      if (!format_.system) {
        throw UsageError("the chat template " + name() +
                         " has no system messages; write it into the first user message");
      }
      continue;
    }
    if (role != "user" && role != "assistant") {
      throw UsageError(which + " has an unknown role; give system, user or assistant");
    }
    if (format_.alternate && (role == "user") != users_turn) {
      throw UsageError(which + " is not the " + (users_turn ? "user's" : "assistant's") + "; " +
                       needs + "user and assistant messages by turns, the user's first");
    }
    users_turn = !users_turn;
    any_user = any_user || role == "user";
  }
  if (format_.alternate && users_turn) {
    throw UsageError(needs + "a user message as the last one");
  }
  if (format_.system_in_first_user && !any_user) {
    throw UsageError(needs + "a user message to put the system message into");
  }
}

std::vector<ChatTemplate::Part> ChatTemplate::lay_out(std::span<const Message> messages,
                                                      bool use_tokens) const {
  check_roles(messages);
  std::vector<Part> parts;
  const auto write = [&parts](const ChatLiteral& literal) {
    for (const ChatPiece& piece : literal) parts.push_back({.piece = piece});
  };
  const auto write_turn = [&](const ChatTurn& turn, std::string body) {
    write(turn.prefix);
    parts.push_back({.piece = {.text = std::move(body)}});
    write(turn.suffix);
  };

  write(format_.begin);
  std::string carried;  // by the first user turn
  const bool has_system = messages.front().role == "system";
  if (has_system || format_.default_system) {
    const ChatTurn& turn = *format_.system;
    std::string body =
        turn_body(turn, "", has_system ? messages.front().content : *format_.default_system);
    if (format_.system_in_first_user) {
      carried = plain_text(turn.prefix) + body + plain_text(turn.suffix);
    } else {
      write_turn(turn, std::move(body));
    }
  }
  for (const Message& message : messages.subspan(has_system ? 1 : 0)) {
    if (message.role == "user") {
      write_turn(format_.user,
                 turn_body(format_.user, std::exchange(carried, {}), message.content));
    } else if (use_tokens && !message.tokens.empty()) {
      write(format_.generation_prompt);
      parts.push_back({.piece = {}, .tokens = message.tokens});
      write(format_.assistant.suffix);
    } else {
      write_turn(format_.assistant, turn_body(format_.assistant, "", message.content));
    }
  }
  write(format_.generation_prompt);
  return parts;
}

void ChatTemplate::write(const Tokenizer& tokenizer, std::span<const Message> messages,
                         const OnTokens& on_tokens, const OnText& on_text) const {
  Writer writer(tokenizer, format_, on_tokens, on_text);
  if (!writes_bos_ && tokenizer.config().add_bos) writer.add({.kind = Kind::bos, .text = {}});
  for (const Part& part : lay_out(messages, true)) {
    if (part.tokens.empty()) {
      writer.add(part.piece);
    } else {
      writer.add_tokens(part.tokens);
    }
  }
  writer.finish();
}

std::vector<int32_t> ChatTemplate::encode(const Tokenizer& tokenizer,
                                          std::span<const Message> messages) const {
  const PlainTextEncoder encoder(tokenizer, format_);
  std::vector<int32_t> ids;
  write(
      tokenizer, messages,
      [&](std::span<const int32_t> tokens) { ids.insert(ids.end(), tokens.begin(), tokens.end()); },
      [&](std::string_view text, bool continues) { encoder.encode(text, continues, ids); });
  return ids;
}

int64_t ChatTemplate::min_tokens(const Tokenizer& tokenizer,
                                 std::span<const Message> messages) const {
  int64_t n = 0;
  write(
      tokenizer, messages,
      [&](std::span<const int32_t> tokens) { n += static_cast<int64_t>(tokens.size()); },
      [&](std::string_view text, bool) { n += tokenizer.min_tokens(text); });
  return n;
}

std::string ChatTemplate::render(std::span<const Message> messages, std::string_view bos,
                                 std::string_view eos) const {
  std::string text;
  for (const Part& part : lay_out(messages, false)) {
    const Kind kind = part.piece.kind;
    text += kind == Kind::bos ? bos : kind == Kind::eos ? eos : part.piece.text;
  }
  return text;
}

std::vector<int32_t> ChatTemplate::stop_tokens(const Tokenizer& tokenizer) const {
  std::vector<int32_t> ids;
  for (const std::string& token : format_.stop_tokens) {
    if (const auto id = tokenizer.find_token(token)) ids.push_back(*id);
  }
  return ids;
}

}  // namespace faststream
