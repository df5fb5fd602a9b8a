#include "kernels/cpu/linear/tile_vectors.h"

namespace faststream {

void add_avx512_vnni_kernels(Kernels& kernels) { kernels.tiles_i8 = vector_tiles<true>(); }

}  // namespace faststream
