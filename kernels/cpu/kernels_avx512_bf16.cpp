#include "kernels/cpu/tile_vectors.h"

namespace faststream {

void add_avx512_bf16_kernels(Kernels& kernels) { kernels.tiles_bf16 = vector_tiles<false>(); }

}  // namespace faststream
