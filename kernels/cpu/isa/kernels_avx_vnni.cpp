#include "kernels/cpu/linear/int4_dot.h"
#include "kernels/cpu/linear/integer_dot.h"

namespace faststream {

void add_avx_vnni_kernels(Kernels& kernels) {
  kernels.tiles_i8 = integer_tiles();
  kernels.tiles_i4 = int4_dots();
}

}  // namespace faststream
