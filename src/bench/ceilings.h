// The limits of a device, measured: memory by reading, arithmetic by a large product.
#pragma once

#include <cstddef>

#include "backend/backend.h"
#include "bench/step_work.h"

namespace faststream::bench {

/// Reads so many bytes again and again, at least as many as the device's caches hold if these do
/// not hold the model either; and multiplies larger and larger matrices. Takes about a second.
/// weights: the type of a model's matrices.
Ceilings measure_ceilings(Backend& backend, WeightFormat weights, size_t bytes);

}  // namespace faststream::bench
