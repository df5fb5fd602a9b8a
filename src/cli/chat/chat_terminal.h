// Lines that are edited on a terminal, with a history.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "cli/chat/chat_lines.h"

namespace faststream::cli {

/// Where the history of chats is kept: ${XDG_STATE_HOME:-~/.local/state}/faststream/history. Empty
/// where neither variable is set.
std::filesystem::path chat_history_path();

/// Standard input and output, which must be terminals. After survive_interrupts().
class TerminalLines : public LineSource {
 public:
  /// `history`: its file, which is read now, and written when the object goes, for its user's eyes
  /// only. Failing to is no error; empty: there is none.
  explicit TerminalLines(std::filesystem::path history);
  TerminalLines(const TerminalLines&) = delete;
  TerminalLines& operator=(const TerminalLines&) = delete;
  ~TerminalLines() override;

  Event next(bool continues, std::string& line) override;
  void remember(const std::string& text) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace faststream::cli
