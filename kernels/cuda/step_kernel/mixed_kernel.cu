// The kernel of steps that have convolutions, recurrences or norms of their own. It is another one
// than that of products and attention, which has the registers to itself.
#include "kernels/cuda/step_kernel/run_step.cuh"

namespace faststream::step_kernel {

Kernel mixed_kernel(int head_dim, bool varied) {
  if (head_dim <= 128) return run_kernel<128, VariedRule, true, Packed::none>;
  return varied ? run_kernel<256, VariedRule, true, Packed::none>
                : run_kernel<256, LastRule, true, Packed::none>;
}

}  // namespace faststream::step_kernel
