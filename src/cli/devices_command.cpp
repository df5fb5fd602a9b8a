#include "cli/devices_command.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "backend/backend.h"
#include "engine/device.h"
#include "program/output.h"
#include "support/progress.h"

namespace faststream::cli {
namespace {

void print_json(const DeviceInfo& device) {
  nlohmann::ordered_json members = {{"device", device.name}};
  if (device.error.empty()) {
    members.update({{"description", device.description}, {"free_bytes", device.free_bytes}});
  } else {
    members["error"] = device.error;
  }
  print(members.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + '\n');
}

void print_line(const DeviceInfo& device) {
  constexpr size_t kWidth = 8;
  const std::string rest =
      device.error.empty() ? device.description + ", " + format_bytes(device.free_bytes) + " free"
                           : device.error;
  print(device.name + std::string(kWidth - std::min(kWidth - 1, device.name.size()), ' ') + rest +
        '\n');
}

}  // namespace

void devices_command(bool json) {
  for (const DeviceInfo& device : list_devices()) json ? print_json(device) : print_line(device);
  if (cuda_device_count() == 0) {
    print_notice("no NVIDIA GPU can be used, " + cuda_unavailable_reason() + '\n');
  }
}

}  // namespace faststream::cli
