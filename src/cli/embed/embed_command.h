// faststream-run's vectors and scores.
#pragma once

#include <optional>
#include <string>

#include "cli/embed/embed_options.h"
#include "engine/embedder.h"

namespace faststream::cli {

struct EmbedTask {
  std::string model;
  std::optional<std::string> text;  ///< the only one; else lines
  std::string input;                ///< a file of lines, or "-" for standard input
  std::string output;               ///< a file; empty: standard output
  EmbedOptions options;
  EmbedderOptions embedder;
  bool stats = false;
};

/// Prints a JSON line for each text: {"index", "embedding"}, or with a query {"index", "score"} (or
/// "scores", of several labels), and the "id" that a JSON line had; or a NumPy file of all. Says on
/// standard error how many texts were cut. A line that is no text has an "error" in place of a
/// vector; a NumPy file, which has no room for that, is then not written. Throws as Embedder does,
/// Error for what cannot be read or written, Interrupted.
void embed_command(const EmbedTask& task);

}  // namespace faststream::cli
