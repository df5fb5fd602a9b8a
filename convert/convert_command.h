// faststream-convert's work.
#pragma once

#include "convert/convert_options.h"

namespace faststream {

/// Converts a checkpoint, or prints or checks what is in a model file. Throws Error, UsageError or
/// Interrupted.
void convert_command(const ConvertCommandOptions& options);

}  // namespace faststream
