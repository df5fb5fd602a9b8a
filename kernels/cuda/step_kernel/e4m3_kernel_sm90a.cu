// The kernels of steps that have weights of fp8, whose codes warpgroups multiply.
#include "kernels/cuda/step_kernel/run_step.cuh"

namespace faststream::step_kernel {

Kernel e4m3_kernel(int head_dim, bool varied, bool mixed) {
  if (mixed) {
    return head_dim <= 128 ? run_kernel<128, VariedRule, true, Packed::e4m3>
                           : run_kernel<256, VariedRule, true, Packed::e4m3>;
  }
  if (head_dim > 128) return run_kernel<256, VariedRule, false, Packed::e4m3>;
  return varied ? run_kernel<128, VariedRule, false, Packed::e4m3>
                : run_kernel<128, LastRule, false, Packed::e4m3>;
}

}  // namespace faststream::step_kernel
