// What Gemma 4 is, whatever kind of file describes it.
#pragma once

#include <cstdint>
#include <vector>

#include "convert/families/modules.h"
#include "models/config.h"
#include "support/json.h"

namespace faststream::convert {

struct Gemma4Layer {
  bool windowed = false;
  int64_t head_dim = 0;
  int64_t n_kv_heads = 0;
  int64_t ffn_size = 0;
};

/// What tells one Gemma 4 from another, beside the sizes that all models have.
struct Gemma4Shape {
  std::vector<Gemma4Layer> layers;
  int64_t window = 0;
  int64_t n_own = 0;       ///< layers, the first ones, that have keys and values of their own
  int64_t input_size = 0;  ///< 0: layers have no inputs
  int64_t n_experts = 0;   ///< 0: none beside the feed-forward
  int64_t experts_used = 0;
  int64_t expert_size = 0;
};

/// Gives layers the heads of "per_layer_config", which Transformers 5.23 writes: {"5": {"head_dim":
/// 512}, ...}.
void set_heads_by_layer(const JsonView& said, std::vector<Gemma4Layer>& layers);

/// The width of heads of layers that are windowed or not, which share a rotation. Throws Error,
/// about `config`, where there are several.
int64_t common_head_dim(const JsonView& config, const std::vector<Gemma4Layer>& layers,
                        bool windowed);

/// Makes a Gemma 4 of a plain decoder, whose norms and activation stay and whose ropes are that of
/// windowed layers and that of others.
void make_gemma4(const Gemma4Shape& shape, ModelConfig& model);

/// What its checkpoints call the modules.
Modules gemma4_modules(const ModelConfig& config, bool keys_as_values);

/// The factor of weights of layer_inputs_norm that belongs to this description.
float gemma4_input_scale();

}  // namespace faststream::convert
