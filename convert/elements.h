// Arrays of elements, converted.
#pragma once

#include <cstddef>
#include <span>

#include "support/dtype.h"

namespace faststream {

/// out[i] = element i of `in`, which holds out.size() elements of f32, f16 or bf16 at any
/// alignment.
void widen(const std::byte* in, DType type, std::span<float> out);

/// Element i of `out` (f32, f16 or bf16) = in[i], rounded to nearest even.
void narrow(std::span<const float> in, DType type, std::byte* out);

/// The largest |value|; infinite or NaN when any of the values is. 0 for no values.
float largest_magnitude(std::span<const float> values);

/// The smallest magnitude that narrow() would turn into infinity.
float overflow_magnitude(DType type);

}  // namespace faststream
