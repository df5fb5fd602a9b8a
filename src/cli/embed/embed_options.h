// The options of faststream-run's vectors and scores.
#pragma once

#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace faststream::cli {

struct EmbedOptions {
  bool enabled = false;              ///< --embed
  std::optional<std::string> query;  ///< --rank
  std::string format = "json";       ///< or "npy"
};

/// Adds the options to `app`, bound to `options`.
void add_embed_options(CLI::App& app, EmbedOptions& options);

}  // namespace faststream::cli
