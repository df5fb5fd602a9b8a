// Which tensors of a Llama checkpoint make up which tensor of the model file.
#pragma once

#include <string>

#include "convert/source_model.h"

namespace faststream {

/// Parts by the names of Transformers' LlamaForCausalLM ("model.layers.0.self_attn.q_proj.weight",
/// ...). `interleaved`: Q and K keep the members of a rotary pair side by side, as in llama2.c.
TensorParts llama_parts(const ModelConfig& config, bool interleaved);

}  // namespace faststream
