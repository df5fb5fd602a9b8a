#include "kernels/cpu/vector_kernels.h"

namespace faststream {

Kernels avx2_kernels() { return vector_kernels(); }

}  // namespace faststream
