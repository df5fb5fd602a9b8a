#include "kernels/cpu/isa/vector_kernels.h"
#include "kernels/cpu/linear/integer_dot.h"

namespace faststream {

Kernels avx2_kernels() {
  Kernels kernels = vector_kernels();
  kernels.tiles_i8 = integer_tiles();
  return kernels;
}

}  // namespace faststream
