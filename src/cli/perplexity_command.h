// How well a model predicts a text: --perplexity.
#pragma once

#include <string>

#include "engine/options.h"

namespace faststream::cli {

struct PerplexityOptions {
  std::string model;
  std::string text_file;
  std::string against;  ///< another model file, or empty
  bool json = false;    ///< a line of JSON in place of lines for people
  EngineOptions engine;
};

/// Measures and prints to stdout. Throws Error, UsageError or Interrupted.
void perplexity_command(const PerplexityOptions& options);

}  // namespace faststream::cli
