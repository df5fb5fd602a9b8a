#include "kernels/cpu/isa/vector_kernels.h"
#include "kernels/cpu/linear/int4_dot.h"
#include "kernels/cpu/linear/integer_dot.h"

namespace faststream {

Kernels avx2_kernels() {
  Kernels kernels = vector_kernels();
  kernels.tiles_i8 = integer_tiles();
  kernels.tiles_i4 = int4_dots();
  return kernels;
}

}  // namespace faststream
