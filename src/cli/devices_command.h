// What models can run on: --list-devices.
#pragma once

namespace faststream::cli {

/// Prints a line for each device to stdout, or a line of JSON, and why there is no GPU to stderr.
void devices_command(bool json);

}  // namespace faststream::cli
