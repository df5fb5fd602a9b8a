// The kernels of steps that have codes of floats: whose code would leave less of the instruction
// cache to all others.
#include "kernels/cuda/step_kernel/run_step.cuh"

namespace faststream::step_kernel {

Kernel widened_kernel(int head_dim, bool varied, bool mixed) {
  if (mixed) {
    return head_dim <= 128 ? run_kernel<128, VariedRule, true, Packed::widened>
                           : run_kernel<256, VariedRule, true, Packed::widened>;
  }
  if (head_dim > 128) return run_kernel<256, VariedRule, false, Packed::widened>;
  return varied ? run_kernel<128, VariedRule, false, Packed::widened>
                : run_kernel<128, LastRule, false, Packed::widened>;
}

}  // namespace faststream::step_kernel
