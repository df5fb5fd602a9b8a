// CUDA status codes become errors that a user can act on.
#pragma once

#include <cuda_runtime.h>

#include <string>
#include <string_view>

#include "support/error.h"

namespace faststream {

/// Throws Error "The GPU failed while <doing>: ..." unless `status` is success. `doing` is a verb
/// with its object: "copying a batch".
inline void cuda_check(cudaError_t status, std::string_view doing) {
  if (status == cudaSuccess) return;
  throw Error("The GPU failed while " + std::string(doing) + ": " + cudaGetErrorString(status) +
              " (" + cudaGetErrorName(status) + "); try again, or use --device cpu.");
}

}  // namespace faststream
