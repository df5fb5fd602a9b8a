// What faststream-serve does.
#pragma once

#include "server/serve_options.h"

namespace faststream::server {

/// Loads the models and answers requests until a signal ends that. Throws UsageError for options
/// that make no sense, Error when a model cannot be loaded or nothing can listen.
void serve_command(const ServeOptions& options);

}  // namespace faststream::server
