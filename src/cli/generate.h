// Generating for a user who waits.
#pragma once

#include <functional>
#include <string_view>

#include "engine/engine.h"

namespace faststream::cli {

/// A model that is loaded, and what all requests to it share. Prompts are not used.
struct LoadedEngine {
  Engine engine;
  Request prototype;    ///< what the command line says, and else what the model recommends
  Request recommended;  ///< that alone
};

/// Engine::generate(), with a progress bar on a terminal while a long prompt is processed.
/// `on_text` gets pieces that are not empty; Ctrl-C, or false from it, ends the text with
/// FinishReason::cancelled.
Result generate(Engine& engine, Request request,
                const std::function<bool(std::string_view)>& on_text);

}  // namespace faststream::cli
