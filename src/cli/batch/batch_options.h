// The options of faststream-run's batch mode.
#pragma once

#include <string>

#include "cli/batch/batch_part.h"
#include "engine/request.h"

namespace CLI {
class App;
}

namespace faststream::cli {

struct BatchOptions {
  std::string input;   ///< a file, or "-" for standard input; empty: no batch
  std::string output;  ///< a file; empty: standard output
  BatchPart part;      ///< of the input
  bool resume = false;
  bool unordered = false;
  bool strict = false;
  bool stats = false;  ///< also say at the end how it was computed
};

/// Adds the options to `app`, bound to `options`, and --logprobs, bound to `defaults`.
void add_batch_options(CLI::App& app, BatchOptions& options, Request& defaults);

}  // namespace faststream::cli
