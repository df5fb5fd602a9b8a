// The options of programs that run models on a device.
#pragma once

#include "engine/options.h"

namespace CLI {
class App;
}

namespace faststream {

inline constexpr const char* kDeviceGroup = "Device";

/// Adds those of device, threads, sizes and what runs beside a model to `app`, bound to `engine`.
void add_device_options(CLI::App& app, EngineOptions& engine);

}  // namespace faststream
