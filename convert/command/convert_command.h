// faststream-convert's work.
#pragma once

#include "convert/command/convert_options.h"

namespace faststream::convert {

/// Converts a checkpoint, or prints or checks what is in a model file. Throws Error, UsageError or
/// Interrupted.
void convert_command(const ConvertCommandOptions& options);

}  // namespace faststream::convert
