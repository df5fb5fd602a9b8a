#include "cli/embed/embed_options.h"

#include <CLI/CLI.hpp>

#include "program/option_values.h"

namespace faststream::cli {

void add_embed_options(CLI::App& app, EmbedOptions& options) {
  constexpr const char* kGroup = "Encoders";
  app.add_flag("--embed", options.enabled,
               "Print the vector of each text that an encoder makes: of -p, of -f, or of each line "
               "of --batch or standard input (plain, or JSON with \"text\")")
      ->group(kGroup);
  app.add_option("--rank", options.query,
                 "Print the score that a cross-encoder gives to QUERY with each text")
      ->group(kGroup)
      ->type_name("QUERY")
      ->check(utf8_text());
  app.add_option("--format", options.format,
                 "With --embed or --rank: json lines, or a NumPy file (npy)")
      ->group(kGroup)
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"json", "npy"}))
      ->capture_default_str();
}

}  // namespace faststream::cli
