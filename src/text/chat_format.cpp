#include "text/chat_format.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "support/json.h"

namespace faststream {
namespace {

using nlohmann::json;

constexpr size_t kLongestString = 16384;  // bytes
constexpr size_t kLongestName = 64;
constexpr size_t kLongestList = 64;

std::string read_string(const JsonView& value) {
  auto text = value.as<std::string>();
  if (text.size() > kLongestString) {
    value.fail("is longer than " + std::to_string(kLongestString) + " bytes; shorten it");
  }
  return text;
}

std::vector<JsonView> read_list(const JsonView& list) {
  auto elements = list.elements();
  if (elements.size() > kLongestList) {
    list.fail("has more than " + std::to_string(kLongestList) + " entries; remove some");
  }
  return elements;
}

/// Strings, none empty; an absent list is an empty one.
std::vector<std::string> read_strings(const JsonView& object, std::string_view key) {
  std::vector<std::string> texts;
  const auto list = object.find(key);
  if (!list) return texts;
  for (const JsonView& value : read_list(*list)) {
    texts.push_back(read_string(value));
    if (texts.back().empty()) value.fail("is an empty string; remove it");
  }
  return texts;
}

/// Tells "{bos}", "{eos}" and control tokens (the longest that fits) in `text` from plain text.
ChatLiteral parse_literal(std::string_view text, std::span<const std::string> control_tokens) {
  constexpr std::string_view kBos = "{bos}";
  constexpr std::string_view kEos = "{eos}";
  using Kind = ChatPiece::Kind;
  ChatLiteral literal;
  while (!text.empty()) {
    size_t length = 0;
    Kind kind = Kind::text;
    if (text.starts_with(kBos) || text.starts_with(kEos)) {
      kind = text.starts_with(kBos) ? Kind::bos : Kind::eos;
      length = kBos.size();
    }
    for (const std::string& token : control_tokens) {
      if (token.size() > length && text.starts_with(token)) {
        kind = Kind::control;
        length = token.size();
      }
    }
    if (kind != Kind::text) {
      literal.push_back({kind, std::string(kind == Kind::control ? text.substr(0, length) : "")});
    } else {
      length = 1;
      if (literal.empty() || literal.back().kind != Kind::text) literal.push_back({});
      literal.back().text += text.front();
    }
    text.remove_prefix(length);
  }
  return literal;
}

/// An absent text is an empty one.
ChatLiteral read_literal(const JsonView& object, std::string_view key,
                         std::span<const std::string> control_tokens) {
  const auto value = object.find(key);
  return value ? parse_literal(read_string(*value), control_tokens) : ChatLiteral();
}

ChatStrip read_strip(const JsonView& turn) {
  const auto value = turn.find("strip");
  if (!value || value->value() == "none") return ChatStrip::none;
  if (value->value() == "content") return ChatStrip::content;
  if (value->value() == "turn") return ChatStrip::turn;
  value->fail(R"(is not "none", "content" or "turn")");
}

ChatTurn read_turn(const JsonView& turn, std::span<const std::string> control_tokens) {
  return {.prefix = read_literal(turn, "prefix", control_tokens),
          .suffix = read_literal(turn, "suffix", control_tokens),
          .strip = read_strip(turn)};
}

void read_system(const JsonView& system, ChatFormat& format) {
  system.allow_only({"prefix", "suffix", "strip", "in_first_user", "default"});
  format.system = read_turn(system, format.control_tokens);
  format.system_in_first_user = system.get("in_first_user", false);
  if (const auto text = system.find("default")) format.default_system = read_string(*text);
  const auto has_tokens = [](const ChatLiteral& literal) {
    return std::any_of(literal.begin(), literal.end(),
                       [](const ChatPiece& piece) { return piece.kind != ChatPiece::Kind::text; });
  };
  if (format.system_in_first_user &&
      (has_tokens(format.system->prefix) || has_tokens(format.system->suffix))) {
    system.fail("is in the first user turn, so it cannot have tokens of its own");
  }
}

ChatTurn read_role(const JsonView& role, const ChatFormat& format) {
  role.allow_only({"prefix", "suffix", "strip"});
  return read_turn(role, format.control_tokens);
}

ChatFormat::Marks read_marks(const JsonView& marks) {
  marks.allow_only({"all", "none"});
  ChatFormat::Marks read{.all = read_strings(marks, "all"), .none = read_strings(marks, "none")};
  if (read.all.empty()) {
    marks.fail("has no entries in \"all\", so the marks would fit everything");
  }
  return read;
}

bool is_name(std::string_view text) {
  constexpr std::string_view kCharacters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_";
  return !text.empty() && text.size() <= kLongestName &&
         text.find_first_not_of(kCharacters) == std::string_view::npos;
}

}  // namespace

ChatFormat chat_format_from_json(const json& value, std::string_view where) {
  const JsonView file(value, where);
  file.allow_only({"name", "control_tokens", "stop_tokens", "stop", "begin", "system", "user",
                   "assistant", "generation_prompt", "alternate", "dummy_prefix",
                   "strip_after_control", "marks"});
  ChatFormat format;
  format.name = file.get<std::string>("name");
  if (!is_name(format.name)) {
    file.member("name").fail(
        "is not a name of 1 to 64 letters, digits, dots, dashes and underscores");
  }
  format.control_tokens = read_strings(file, "control_tokens");
  for (const std::string& token : format.control_tokens) {
    // A single character could not be kept apart from the same character in a message.
    if (token.size() == 1) {
      file.member("control_tokens").fail("holds a token of one character");
    }
  }
  format.stop_tokens = read_strings(file, "stop_tokens");
  format.stop = read_strings(file, "stop");
  format.begin = read_literal(file, "begin", format.control_tokens);
  if (const auto system = file.find("system")) read_system(*system, format);
  format.user = read_role(file.member("user"), format);
  format.assistant = read_role(file.member("assistant"), format);
  format.generation_prompt =
      parse_literal(read_string(file.member("generation_prompt")), format.control_tokens);
  format.alternate = file.get("alternate", false);
  format.dummy_prefix = file.get("dummy_prefix", true);
  format.strip_after_control = file.get("strip_after_control", false);
  if (const auto list = file.find("marks")) {
    for (const JsonView& marks : read_list(*list)) format.marks.push_back(read_marks(marks));
  }
  return format;
}

}  // namespace faststream
