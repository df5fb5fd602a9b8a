// Chooses the device that a model runs on.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace faststream {

/// A GPU with less free memory beside the weights is not worth its use.
inline constexpr size_t kLeastRoom = size_t{512} << 20;  // bytes

/// The backend for "auto", "cpu", "cuda" or "cuda:N". "auto" is the first GPU if `bytes_needed` are
/// free on it, else the CPU. threads: 0 for all available. Throws UsageError for any other text or
/// a thread count out of range, Error when the device is not there.
std::unique_ptr<Backend> choose_backend(const std::string& device, int threads,
                                        size_t bytes_needed);

/// A device that a model can run on.
struct DeviceInfo {
  std::string name;         ///< that choose_backend() takes: "cpu", "cuda:0"
  std::string description;  ///< Backend::description(), where it can be used
  size_t free_bytes = 0;    ///< Backend::free_memory(), likewise
  std::string error;        ///< why it cannot
};

/// The CPU, with all threads that the process may use, and all GPUs.
std::vector<DeviceInfo> list_devices();

}  // namespace faststream
