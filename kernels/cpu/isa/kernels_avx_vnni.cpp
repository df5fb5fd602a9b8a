#include "kernels/cpu/linear/integer_dot.h"

namespace faststream {

void add_avx_vnni_kernels(Kernels& kernels) { kernels.tiles_i8 = integer_tiles(); }

}  // namespace faststream
