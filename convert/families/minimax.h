// What MiniMax-Text is, whatever kind of file describes it.
#pragma once

#include <string>
#include <vector>

#include "convert/families/modules.h"
#include "models/config.h"

namespace faststream::convert {

/// α, of what a branch adds to, and β, of what it adds.
struct MiniMaxFactors {
  float stream = 1;
  float branch = 1;
};

/// What tells one MiniMax-Text from another, beside the sizes that all models have.
struct MiniMaxShape {
  std::vector<bool> is_linear;  ///< of each layer: whether its attention is
  MiniMaxFactors attention;
  MiniMaxFactors linear_attention;
  MiniMaxFactors ffn;
};

/// Makes a MiniMax-Text of a plain decoder with experts.
void make_minimax(const MiniMaxShape& shape, ModelConfig& model);

/// Names the rows of the first product of linear attention: for each head those of its query, its
/// key and its value.
void name_linear_attention(const ModelConfig& model, const std::string& module, Modules& modules);

/// Multiplies weights by the factors, gives layers' decays and names the norms that stand at the
/// beginning of the next layer.
void finish_minimax(const MiniMaxShape& shape, const Modules& modules, const ModelConfig& model,
                    TensorParts& parts);

}  // namespace faststream::convert
