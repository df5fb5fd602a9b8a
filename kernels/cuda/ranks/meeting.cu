#include "kernels/cuda/ranks/meeting.h"

#include <cuda.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>

#include "kernels/cuda/driver.h"

namespace faststream {

bool all_agree(RankLink& link, bool own) {
  const std::span<const std::byte> all = link.gather(std::as_bytes(std::span(&own, 1)));
  return std::ranges::all_of(all, [](std::byte b) { return b != std::byte{0}; });
}

std::string host_name() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  return host.data();
}

std::string gpu_name(int device) {
  std::array<char, 64> bus{};
  cuda_check(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device),
             "reading the GPU's properties");
  return host_name() + ' ' + bus.data();
}

bool loads_kernels_late() {
  using GetMode = decltype(cuModuleGetLoadingMode);
  constexpr unsigned kSince = 11070;
  GetMode* get_mode = driver_function<GetMode>("cuModuleGetLoadingMode", kSince);
  CUmoduleLoadingMode mode{};
  return get_mode == nullptr || get_mode(&mode) != CUDA_SUCCESS || mode != CU_MODULE_EAGER_LOADING;
}

}  // namespace faststream
