#include "cli/chat/chat_input.h"

#include <utility>

#include "support/utf8.h"

namespace faststream::cli {
namespace {

constexpr std::string_view kBlockMark = "\"\"\"";

std::optional<ChatInput> message(std::string text) {
  if (strip_left(text).empty()) return std::nullopt;
  return ChatInput{.command = {}, .text = std::move(text)};
}

std::optional<ChatInput> parse(std::string_view text) {
  if (text.starts_with("//")) return message(std::string(text.substr(1)));
  if (!text.starts_with('/')) return message(std::string(text));
  const size_t end = text.find_first_of(kAsciiBlanks);
  ChatInput input;
  input.command = text.substr(1, end == std::string_view::npos ? end : end - 1);
  if (end != std::string_view::npos) input.text = without_blanks(text.substr(end));
  return input;
}

}  // namespace

std::string ChatInput::typed() const {
  if (command) return "/" + *command + (text.empty() ? "" : " " + text);
  return (text.starts_with('/') ? "/" : "") + text;
}

std::optional<ChatInput> InputAssembler::add(std::string_view line) {
  const bool is_mark = without_blanks(line) == kBlockMark;
  if (block_ && is_mark) return finish();
  if (!block_ && !continued_ && is_mark) {
    block_ = true;
    return std::nullopt;
  }
  continued_ = !block_ && line.ends_with('\\');
  if (continued_) line.remove_suffix(1);
  text_ += line;
  text_ += '\n';
  return unfinished() ? std::nullopt : finish();
}

std::optional<ChatInput> InputAssembler::finish() {
  std::string text = std::exchange(text_, {});
  const bool was_block = block_;
  clear();
  if (text.ends_with('\n')) text.pop_back();
  return was_block ? message(std::move(text)) : parse(text);
}

void InputAssembler::clear() {
  text_.clear();
  block_ = false;
  continued_ = false;
}

}  // namespace faststream::cli
