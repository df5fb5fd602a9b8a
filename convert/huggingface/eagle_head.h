// Heads of EAGLE-3 (arXiv:2503.01840), which are checkpoints of their own beside a model's.
#pragma once

#include <filesystem>

#include "convert/source_model.h"

namespace faststream::convert {

/// Gives a model the head in this folder as its predictor, in place of those that it has. The
/// folder is laid out as EAGLE's authors, SpecForge or vLLM's speculators write it: a config.json
/// of one Llama layer, and in safetensors or pytorch_model.bin fc, midlayer or layers.0, norm, and
/// where they are its own lm_head and embed_tokens; d2t says how far each row of lm_head is from
/// its token. Throws Error, naming the folder or the file, when something is missing, unknown or
/// does not fit the model.
void add_eagle_head(const std::filesystem::path& folder, SourceModel& model);

}  // namespace faststream::convert
