// The kernels of steps that have codes of floats: whose code would leave less of the instruction
// cache to all others.
#include "kernels/cuda/step_kernel/run_step.cuh"

namespace faststream::step_kernel {

Kernel widened_kernel(int head_dim, bool varied, bool mixed) {
  return packed_kernel<Packed::widened>(head_dim, varied, mixed);
}

}  // namespace faststream::step_kernel
