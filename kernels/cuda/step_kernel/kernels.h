// Which kernel runs a step.
#pragma once

#include <cstdint>

#include "kernels/cuda/ranks/peer_sums.h"
#include "kernels/cuda/step_kernel/instruction.h"
#include "kernels/cuda/step_kernel/rows.cuh"

namespace faststream::step_kernel {

/// What the step before has used: its rows, and its terms of sums over ranks.
struct Used {
  Pieces rows;
  UsedTerms terms;
};

/// run_kernel(), for steps whose heads have some number of dimensions at most.
using Kernel = void (*)(const Instruction*, int, RowMemory, Used);

/// That of steps of products and attention, and that of others, or of wide heads. head_dim: the
/// largest; varied: some rule is no LastRule.
Kernel plain_kernel(int head_dim, bool varied);
Kernel mixed_kernel(int head_dim, bool varied);
/// That of steps of several tokens.
Kernel tokens_kernel(bool varied);
/// Those of steps that have packed weights. mixed: they are mixed_kernel()'s otherwise.
Kernel int4_kernel(int head_dim, bool varied, bool mixed);
Kernel widened_kernel(int head_dim, bool varied, bool mixed);
Kernel e4m3_kernel(int head_dim, bool varied, bool mixed);

}  // namespace faststream::step_kernel
