// The Llama family: Llama 1, 2, 3, 3.1, 3.2 (arXiv:2302.13971, arXiv:2307.09288, arXiv:2407.21783).
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "models/model.h"

namespace faststream::llama {

std::unique_ptr<Model> make_model(const ModelConfig& config, const WeightLookup& weights,
                                  Backend& backend, const BatchLimits& limits);

/// Every product of a forward pass.
std::vector<ProductBound> products(const ModelConfig& config, const BatchLimits& limits);

size_t activation_bytes(const ModelConfig& config, DType activations, const BatchLimits& limits);

}  // namespace faststream::llama
