#include "text/chat_format.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "support/error.h"

namespace faststream {
namespace {

using nlohmann::json;

constexpr size_t kLongestString = 16384;  // bytes
constexpr size_t kLongestName = 64;
constexpr size_t kLongestList = 64;

/// What comes from the file, for a message: quoted, on one line.
std::string in_quotes(std::string_view text) {
  constexpr size_t kShown = 64;
  std::string start(text.substr(0, kShown));
  if (text.size() > kShown) start += "...";
  return json(start).dump(-1, ' ', true, json::error_handler_t::replace);
}

/// Reads the members of one JSON object; finish() refuses those that nobody asked for.
class ObjectReader {
 public:
  /// `path`: of the object inside the file, empty for the file itself.
  ObjectReader(const json& object, std::string path, std::string_view where)
      : object_(object), path_(std::move(path)), where_(where) {
    if (!object.is_object()) refuse("", "is not a JSON object");
  }

  [[noreturn]] void refuse(std::string_view key, const std::string& what) const {
    std::string place = path_;
    if (!key.empty()) place += (place.empty() ? "" : ".") + std::string(key);
    throw Error(std::string(where_) + ": " +
                (place.empty() ? "the chat template" : in_quotes(place)) + " " + what);
  }

  const json* find(const char* key) {
    known_.emplace_back(key);
    const auto found = object_.find(key);
    return found == object_.end() ? nullptr : &*found;
  }

  const json& get(const char* key) {
    const json* value = find(key);
    if (value == nullptr) refuse(key, "is missing, but every chat template needs it");
    return *value;
  }

  std::string string(const json& value, const char* key) const {
    if (!value.is_string()) refuse(key, "is not a string");
    const auto& text = value.get_ref<const std::string&>();
    if (text.size() > kLongestString) {
      refuse(key, "is longer than " + std::to_string(kLongestString) + " bytes; shorten it");
    }
    return text;
  }

  std::string optional_string(const char* key) {
    const json* value = find(key);
    return value == nullptr ? "" : string(*value, key);
  }

  bool flag(const char* key, bool otherwise) {
    const json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) refuse(key, "is not true or false");
    return value->get<bool>();
  }

  /// Strings, none empty; an absent list is an empty one.
  std::vector<std::string> strings(const char* key) {
    std::vector<std::string> texts;
    const json* list = find(key);
    if (list == nullptr) return texts;
    check_list(*list, key);
    for (const json& value : *list) {
      texts.push_back(string(value, key));
      if (texts.back().empty()) refuse(key, "holds an empty string; remove it");
    }
    return texts;
  }

  void check_list(const json& list, const char* key) const {
    if (!list.is_array()) refuse(key, "is not a list");
    if (list.size() > kLongestList) {
      refuse(key, "has more than " + std::to_string(kLongestList) + " entries; remove some");
    }
  }

  void finish() const {
    for (const auto& [key, value] : object_.items()) {
      if (std::find(known_.begin(), known_.end(), key) == known_.end()) {
        refuse("", "has the unknown member " + in_quotes(key) + "; remove it or correct its name");
      }
    }
  }

 private:
  const json& object_;
  std::string path_;
  std::string_view where_;
  std::vector<std::string> known_;
};

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

ChatStrip parse_strip(ObjectReader& reader) {
  const json* value = reader.find("strip");
  if (value == nullptr || *value == "none") return ChatStrip::none;
  if (*value == "content") return ChatStrip::content;
  if (*value == "turn") return ChatStrip::turn;
  reader.refuse("strip", R"(is not "none", "content" or "turn")");
}

ChatTurn parse_turn(ObjectReader& reader, std::span<const std::string> control_tokens) {
  return {.prefix = parse_literal(reader.optional_string("prefix"), control_tokens),
          .suffix = parse_literal(reader.optional_string("suffix"), control_tokens),
          .strip = parse_strip(reader)};
}

void parse_system(const json& value, ChatFormat& format, std::string_view where) {
  ObjectReader reader(value, "system", where);
  format.system = parse_turn(reader, format.control_tokens);
  format.system_in_first_user = reader.flag("in_first_user", false);
  if (const json* text = reader.find("default")) {
    format.default_system = reader.string(*text, "default");
  }
  const auto has_tokens = [](const ChatLiteral& literal) {
    return std::any_of(literal.begin(), literal.end(),
                       [](const ChatPiece& piece) { return piece.kind != ChatPiece::Kind::text; });
  };
  if (format.system_in_first_user &&
      (has_tokens(format.system->prefix) || has_tokens(format.system->suffix))) {
    reader.refuse("", "is in the first user turn, so it cannot have tokens of its own");
  }
  reader.finish();
}

ChatTurn parse_role(const char* role, const json& value, const ChatFormat& format,
                    std::string_view where) {
  ObjectReader reader(value, role, where);
  ChatTurn turn = parse_turn(reader, format.control_tokens);
  reader.finish();
  return turn;
}

ChatFormat::Marks parse_marks(const json& value, std::string_view where) {
  ObjectReader reader(value, "marks", where);
  ChatFormat::Marks marks{.all = reader.strings("all"), .none = reader.strings("none")};
  if (marks.all.empty()) reader.refuse("all", "has no entries, so the marks would fit everything");
  reader.finish();
  return marks;
}

bool is_name(std::string_view text) {
  constexpr std::string_view kCharacters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_";
  return !text.empty() && text.size() <= kLongestName &&
         text.find_first_not_of(kCharacters) == std::string_view::npos;
}

}  // namespace

ChatFormat chat_format_from_json(const json& value, std::string_view where) {
  ObjectReader reader(value, "", where);
  ChatFormat format;
  format.name = reader.string(reader.get("name"), "name");
  if (!is_name(format.name)) {
    reader.refuse("name", "is not a name of 1 to 64 letters, digits, dots, dashes and underscores");
  }
  format.control_tokens = reader.strings("control_tokens");
  for (const std::string& token : format.control_tokens) {
    // A single character could not be kept apart from the same character in a message.
    if (token.size() == 1) reader.refuse("control_tokens", "holds a token of one character");
  }
  format.stop_tokens = reader.strings("stop_tokens");
  format.stop = reader.strings("stop");
  format.begin = parse_literal(reader.optional_string("begin"), format.control_tokens);
  if (const json* system = reader.find("system")) parse_system(*system, format, where);
  format.user = parse_role("user", reader.get("user"), format, where);
  format.assistant = parse_role("assistant", reader.get("assistant"), format, where);
  format.generation_prompt = parse_literal(
      reader.string(reader.get("generation_prompt"), "generation_prompt"), format.control_tokens);
  format.alternate = reader.flag("alternate", false);
  format.dummy_prefix = reader.flag("dummy_prefix", true);
  format.strip_after_control = reader.flag("strip_after_control", false);
  if (const json* list = reader.find("marks")) {
    reader.check_list(*list, "marks");
    for (const json& marks : *list) format.marks.push_back(parse_marks(marks, where));
  }
  reader.finish();
  return format;
}

}  // namespace faststream
