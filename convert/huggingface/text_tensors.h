// The text model's tensors of a multimodal checkpoint.
#pragma once

#include <string>
#include <vector>

#include "convert/source_model.h"

namespace faststream::convert {

/// What a tensor is called in a checkpoint of the text model alone; empty where it is another
/// model's.
std::string name_in_text_model(const std::string& name);

/// "vision_tower" of "vision_tower.layers.0.weight", and of the same after "model.".
std::string module_group(const std::string& name);

/// Leaves the text model's tensors, with the names that they have in a checkpoint of their own, and
/// says which others there were.
std::vector<LeftOut> keep_text_tensors(Checkpoint& weights);

}  // namespace faststream::convert
