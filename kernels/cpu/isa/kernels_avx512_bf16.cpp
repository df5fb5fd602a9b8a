#include "kernels/cpu/linear/tile_vectors.h"

namespace faststream {

void add_avx512_bf16_kernels(Kernels& kernels) {
  kernels.tiles_bf16 = vector_tiles<false>();
  kernels.tiles_i8_wide = vector_tiles_without_dot<false, Gathered::widened>(0);
}

}  // namespace faststream
