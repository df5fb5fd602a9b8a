// The chat's part of faststream-run's command line.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace CLI {
class App;
}

namespace faststream::cli {

struct ChatOptions {
  bool enabled = false;
  std::optional<std::string> system;
  std::string session;   ///< a file, or empty
  std::string messages;  ///< a file with a conversation to answer, or empty
  std::string tools;     ///< files with JSON lists, or empty
  std::string documents;
  std::vector<std::string> template_args;  ///< NAME=VALUE
  bool show_prompt = false;                ///< print what the model would read, and leave
};

/// Adds the options to `app`, bound to `options` and `engine`.
void add_chat_options(CLI::App& app, ChatOptions& options, EngineOptions& engine);

}  // namespace faststream::cli
