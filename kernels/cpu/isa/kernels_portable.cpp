#include "kernels/cpu/isa/vector_kernels.h"

namespace faststream {

Kernels portable_kernels() { return vector_kernels(); }

}  // namespace faststream
