// faststream-run --chat.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/chat/chat.h"
#include "cli/chat/chat_lines.h"
#include "cli/chat/chat_options.h"
#include "cli/generate.h"

namespace faststream::cli {

/// Takes lines until there are no more, or /quit. On a terminal Ctrl-C stops an answer, or empties
/// the line; else it ends the chat, with Interrupted. What the chat refuses is told by a notice;
/// returns how often that was.
size_t converse(Chat& chat, LineSource& lines, const ChatOutput& output, bool on_terminal);

struct ChatRun {
  std::filesystem::path model;
  std::string chat_template;            ///< as EngineOptions has it
  std::vector<std::string> given;       ///< options that were given, such as "--top-k"
  std::optional<std::string> question;  ///< to be asked once, instead of talking
  bool stats = false;                   ///< print statistics at the end
};

/// Talks on standard input and output, or asks once; `load` makes the engine once all is checked.
/// Throws Error
/// (also when a line of a script was refused), UsageError or Interrupted.
void chat_command(const ChatOptions& options, const ChatRun& run,
                  const std::function<LoadedEngine()>& load);

}  // namespace faststream::cli
