// The kernels of steps that have weights of int4: whose code would leave less of the instruction
// cache to all others.
#include "kernels/cuda/step_kernel/run_step.cuh"

namespace faststream::step_kernel {

Kernel int4_kernel(int head_dim, bool varied, bool mixed) {
  return packed_kernel<Packed::int4>(head_dim, varied, mixed);
}

}  // namespace faststream::step_kernel
