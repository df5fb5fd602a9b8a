// The kernels of steps of products and attention alone.
#include "kernels/cuda/step_kernel/run_step.cuh"

namespace faststream::step_kernel {

namespace {

template <int kDim>
Kernel kernel_of(bool varied) {
  return varied ? run_kernel<kDim, VariedRule, false, Packed::none>
                : run_kernel<kDim, LastRule, false, Packed::none>;
}

}  // namespace

Kernel plain_kernel(int head_dim, bool varied) {
  if (head_dim <= 64) return kernel_of<64>(varied);
  if (head_dim <= 128) return kernel_of<128>(varied);
  return kernel_of<256>(varied);
}

}  // namespace faststream::step_kernel
