#include "engine/device.h"

#include <algorithm>
#include <charconv>
#include <exception>

#include "support/error.h"
#include "support/machine.h"

namespace faststream {
namespace {

constexpr int kMaxThreads = 1024;

std::unique_ptr<Backend> make_cpu(int threads) {
  return make_cpu_backend(threads == 0 ? std::min(available_threads(), kMaxThreads) : threads);
}

std::unique_ptr<Backend> make_cuda(const std::string& device) {
  int index = 0;
  if (device != "cuda") {
    const char* begin = device.data() + std::string("cuda:").size();
    const char* end = device.data() + device.size();
    const auto [stop, status] = std::from_chars(begin, end, index);
    if (status != std::errc() || stop != end || index < 0) {
      throw UsageError("--device " + device +
                       ": the GPU's number must follow the colon, as in cuda:0");
    }
  }
  const int count = cuda_device_count();
  if (count == 0) {
    throw Error("--device " + device + ": no NVIDIA GPU can be used, " + cuda_unavailable_reason() +
                "; use --device cpu");
  }
  if (index >= count) {
    throw Error("--device " + device + ": there is no GPU " + std::to_string(index) +
                ", only 0 to " + std::to_string(count - 1));
  }
  return make_cuda_backend(index);
}

}  // namespace

std::unique_ptr<Backend> choose_backend(const std::string& device, int threads,
                                        size_t bytes_needed) {
  if (threads < 0 || threads > kMaxThreads) {
    throw UsageError("--threads " + std::to_string(threads) + ": give 1 to " +
                     std::to_string(kMaxThreads) + ", or leave it out for all");
  }
  if (device == "cpu") return make_cpu(threads);
  if (device == "cuda" || device.starts_with("cuda:")) return make_cuda(device);
  if (device != "auto") {
    throw UsageError("--device " + device + ": give auto, cpu, cuda or cuda:N");
  }
  if (cuda_device_count() > 0) {
    auto backend = make_cuda_backend(0);
    if (backend->free_memory() >= bytes_needed) return backend;
  }
  return make_cpu(threads);
}

std::vector<DeviceInfo> list_devices() {
  std::vector<DeviceInfo> devices = {{.name = "cpu", .description = {}, .error = {}}};
  for (int gpu = 0; gpu < cuda_device_count(); ++gpu) {
    devices.push_back({.name = "cuda:" + std::to_string(gpu), .description = {}, .error = {}});
  }
  for (DeviceInfo& device : devices) {
    try {
      const std::unique_ptr<Backend> backend = choose_backend(device.name, 0, 0);
      device.description = backend->description();
      device.free_bytes = backend->free_memory();
    } catch (const std::exception& failure) {
      device.error = failure.what();
    }
  }
  return devices;
}

}  // namespace faststream
