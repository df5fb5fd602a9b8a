// What a batch's output was begun with, so that a resumed run does not go on with something else.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "engine/options.h"
#include "engine/request.h"

namespace faststream::cli {

/// The model, and the options that decide texts and what lines say of them, but for the seed,
/// which lines have themselves.
struct BatchOrigin {
  /// By option, "--model" included, the values of those that were given; of files and long texts a
  /// hash, so that equal contents have equal values.
  using Options = std::map<std::string, std::string, std::less<>>;

  std::string model_name;  ///< of its file, without folders
  Options options;

  /// {"model_name", "options"}.
  [[nodiscard]] std::string to_json() const;
  /// False where the text is none of these.
  static bool from_json(std::string_view text, BatchOrigin& origin);
};

/// Of a run with this model and these options. `asked`: what the command line says of requests.
/// Throws Error when a file cannot be read.
BatchOrigin batch_origin(const std::filesystem::path& model, const EngineOptions& engine,
                         const Request& asked);

/// Throws Error, beginning with the output's name, where the former run's texts would be others
/// than this one's.
void check_same_origin(const BatchOrigin& former, const BatchOrigin& now,
                       const std::string& output);

}  // namespace faststream::cli
