// Checkpoints that are quantized already: their matrices are read as any others.
#pragma once

#include <functional>
#include <set>
#include <string>

#include "convert/checkpoint.h"
#include "support/json.h"

namespace faststream::convert {

/// Joins the tensors that each quantized matrix has in a checkpoint to one tensor with values, as
/// config.json's "quantization_config" says how, and drops what says how activations were to be
/// rounded. Returns the names of biases that some ways of quantizing leave where the model has
/// none: all of their elements are 0, so they can be left out. Throws Error for methods and options
/// that are not supported, and when tensors do not fit together.
std::set<std::string, std::less<>> join_quantized(const JsonView& config, Checkpoint& checkpoint);

}  // namespace faststream::convert
