#include "kernels/cpu/isa/vector_kernels.h"

namespace faststream {

Kernels avx512_kernels() { return vector_kernels(); }

}  // namespace faststream
