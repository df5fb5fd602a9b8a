// The kernels of steps that have weights of fp8, whose codes warpgroups multiply.
#include "kernels/cuda/step_kernel/run_step.cuh"

namespace faststream::step_kernel {

Kernel e4m3_kernel(int head_dim, bool varied, bool mixed) {
  return packed_kernel<Packed::e4m3>(head_dim, varied, mixed);
}

}  // namespace faststream::step_kernel
