// The kernels of steps that have weights of int4: whose code would leave less of the instruction
// cache to all others.
#include "kernels/cuda/step_kernel/run_step.cuh"

namespace faststream::step_kernel {

Kernel int4_kernel(int head_dim, bool varied, bool mixed) {
  if (mixed) {
    return head_dim <= 128 ? run_kernel<128, VariedRule, true, Packed::int4>
                           : run_kernel<256, VariedRule, true, Packed::int4>;
  }
  if (head_dim > 128) return run_kernel<256, VariedRule, false, Packed::int4>;
  return varied ? run_kernel<128, VariedRule, false, Packed::int4>
                : run_kernel<128, LastRule, false, Packed::int4>;
}

}  // namespace faststream::step_kernel
