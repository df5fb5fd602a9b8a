// The kernels of steps of several tokens.
#include "kernels/cuda/step_kernel/run_step.cuh"

namespace faststream::step_kernel {

Kernel tokens_kernel(bool varied) {
  return varied ? run_kernel<kMaxTokenHead, VariedRule, false, Packed::none, true>
                : run_kernel<kMaxTokenHead, LastRule, false, Packed::none, true>;
}

}  // namespace faststream::step_kernel
