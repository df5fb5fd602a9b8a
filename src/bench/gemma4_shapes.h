// What is not plain in Gemma 4's shapes.
#pragma once

#include "models/config.h"

namespace faststream::bench {

/// Gemma 4 26B-A4B: a window of 1,024 in five of six layers, 8 of 128 experts beside a
/// feed-forward.
void make_gemma4_26b_a4b(ModelConfig& config);

/// Gemma 4 E4B: a window of 512, inputs of each layer, 18 layers that read earlier ones' keys.
void make_gemma4_e4b(ModelConfig& config);

}  // namespace faststream::bench
