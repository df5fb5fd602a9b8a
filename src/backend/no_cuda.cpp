// A build without CUDA: there are no GPUs.
#ifndef FASTSTREAM_HAS_CUDA

#include "backend/backend.h"
#include "support/error.h"

namespace faststream {

int cuda_device_count() { return 0; }

std::string cuda_unavailable_reason() { return "this build has no CUDA support"; }

std::unique_ptr<Backend> make_cuda_backend(int /*device*/) {
  throw Error("There is no GPU to use: " + cuda_unavailable_reason() +
              "; build with the CUDA toolkit, or use --device cpu.");
}

}  // namespace faststream

#endif
