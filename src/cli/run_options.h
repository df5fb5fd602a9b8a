// The command line of faststream-run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/batch/batch_options.h"
#include "cli/chat/chat_options.h"
#include "cli/embed/embed_options.h"
#include "engine/engine.h"

namespace CLI {
class App;
}

namespace faststream::cli {

struct RunOptions {
  std::string model;
  std::optional<std::string> prompt;       ///< -p
  std::optional<std::string> prompt_file;  ///< -f; without either, standard input
  std::string perplexity_file;             ///< measure instead of generating, on this text
  std::string against;                     ///< a reference model for it
  bool list_devices = false;               ///< instead of all else
  bool json = false;                       ///< how either is printed
  BatchOptions batch;
  EmbedOptions embed;
  ChatOptions chat;
  EngineOptions engine;
  Request request;                 ///< all but its prompt
  std::vector<std::string> given;  ///< options that were given, such as "--beams"
  std::string notices;             ///< lines about those that have no effect
  bool echo = false;
  bool stats = false;
  bool tokenize = false;
};

/// Adds the options to `app`, bound to `options`, with help that teaches.
void add_run_options(CLI::App& app, RunOptions& options);

}  // namespace faststream::cli
