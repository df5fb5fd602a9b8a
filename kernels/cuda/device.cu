// Which GPUs there are. Works on machines without a driver: the runtime is linked statically and
// looks for libcuda when it is first asked.
#include <cuda_runtime.h>

#include "kernels/cuda/cuda_backend.h"

namespace faststream {

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // a later launch check must not find this one
    return 0;
  }
  return count;
}

std::string cuda_unavailable_reason() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess) return count > 0 ? "" : "this machine has no NVIDIA GPU";
  cudaGetLastError();
  switch (status) {
    case cudaErrorNoDevice:
      return "this machine has no NVIDIA GPU";
    case cudaErrorInsufficientDriver: {
      // The runtime says the same for "no driver" and "a driver that is too old".
      int driver = 0;
      if (cudaDriverGetVersion(&driver) != cudaSuccess) cudaGetLastError();
      return driver == 0 ? "no NVIDIA driver is installed"
                         : "the NVIDIA driver is too old for this program";
    }
    default:
      return std::string("the NVIDIA driver says: ") + cudaGetErrorString(status);
  }
}

std::unique_ptr<Backend> make_cuda_backend(int device) {
  const int count = cuda_device_count();
  if (count == 0) {
    throw Error("There is no GPU to use: " + cuda_unavailable_reason() + "; use --device cpu.");
  }
  if (device < 0 || device >= count) {
    throw Error("There is no GPU " + std::to_string(device) + ": this machine has " +
                std::to_string(count) + ", numbered from 0; choose one with --device cuda:N.");
  }
  return std::make_unique<CudaBackend>(device);
}

}  // namespace faststream
