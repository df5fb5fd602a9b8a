#include "kernels/cpu/linear/int4_dot.h"
#include "kernels/cpu/linear/tile_vectors.h"

namespace faststream {

void add_avx512_vnni_kernels(Kernels& kernels) {
  kernels.tiles_i8 = vector_tiles<true>();
  kernels.tiles_i4 = vector_tiles_without_dot<true, Gathered::chosen_flipped>(kMostInt4DotRows);
  kernels.tiles_i4.pack_dot = pack_int4;
  kernels.tiles_i4.dot = int4_dot;
}

}  // namespace faststream
