// Functions of the NVIDIA driver, found by their names: programs start where there is no driver.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "kernels/cuda/cuda_check.h"

namespace faststream {

/// The function as it is from version `since` of CUDA on (12030: 12.3), of the type of the one that
/// <cuda.h> declares; null: the driver is older.
template <typename Function>
Function* driver_function(const char* name, unsigned since) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  cuda_check(cudaGetDriverEntryPointByVersion(name, &function, since, cudaEnableDefault, &found),
             std::string("looking up ") + name);
  return reinterpret_cast<Function*>(function);
}

}  // namespace faststream
