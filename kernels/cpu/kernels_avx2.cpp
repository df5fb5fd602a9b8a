#include "kernels/cpu/integer_dot.h"
#include "kernels/cpu/vector_kernels.h"

namespace faststream {

Kernels avx2_kernels() {
  Kernels kernels = vector_kernels();
  kernels.tiles_i8 = integer_tiles();
  return kernels;
}

}  // namespace faststream
