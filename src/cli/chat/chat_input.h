// What is typed into a chat: lines become messages and commands.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace faststream::cli {

/// A message, or a command such as "/set top-k 5".
struct ChatInput {
  std::optional<std::string> command;  ///< its name without the slash; absent: a message
  std::string text;                    ///< the message, or the command's argument, perhaps empty

  /// As one text to type again: what a history keeps.
  [[nodiscard]] std::string typed() const;
};

/// Joins lines to inputs. A line that ends in a backslash goes on in the next one. A line """
/// begins a message of many lines, and another ends it. Other than there, a slash begins a command
/// and two slashes a message that begins with one. Blank inputs are passed over.
class InputAssembler {
 public:
  /// Takes a line without its newline; returns the input that it completes, if any.
  std::optional<ChatInput> add(std::string_view line);
  /// The end of all lines ends an unfinished input, too.
  std::optional<ChatInput> finish();
  /// Whether an input has begun and not ended.
  [[nodiscard]] bool unfinished() const { return block_ || continued_; }
  /// Forgets what is unfinished.
  void clear();

 private:
  std::string text_;  // lines so far, each with its newline
  bool block_ = false;
  bool continued_ = false;
};

}  // namespace faststream::cli
