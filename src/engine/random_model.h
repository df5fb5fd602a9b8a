// Models with random weights: for benchmarks and tests, so that nobody needs a download.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "model_file/model_image.h"
#include "models/config.h"

namespace faststream {

/// A well-known shape by name ("llama-2-7b", "llama-3-8b", ...), all matrices of `dtype`,
/// embeddings of 16 bits where `dtype` is i8. Throws UsageError for an unknown name, listing the
/// known ones.
ModelConfig named_shape(std::string_view name, DType dtype);
/// Names that named_shape knows.
std::vector<std::string_view> shape_names();

/// A model in memory, without a tokenizer, whose activations stay in a sane range: matrix elements
/// are uniform with variance 1 / in, norms near one. A function of (config, seed).
ModelImage make_random_model(const ModelConfig& config, uint64_t seed);

}  // namespace faststream
