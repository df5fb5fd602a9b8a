#include "convert/gguf/gguf_gemma4.h"

#include <string>
#include <utility>
#include <vector>

#include "convert/families/family.h"
#include "convert/families/gemma4.h"

namespace faststream::convert {
namespace {

// Whole numbers that may be 0, and are where nothing is said.
int64_t size_in(const GgufSource& source, std::string_view name, int64_t most) {
  const int64_t size = source.metadata().find_integer(source.key(name)).value_or(0);
  if (size < 0 || size > most) source.fail(name, "is out of range");
  return size;
}

Gemma4Shape layers_in(const GgufSource& source, const ModelConfig& config) {
  const int64_t n_layers = config.n_layers();
  constexpr int64_t kPattern = 6;
  const std::vector<bool> windowed = source.windowed_layers(n_layers, kPattern);
  const std::vector<int64_t> n_kv_heads =
      source.counts("attention.head_count_kv", n_layers, kMaxHeads);
  const std::vector<int64_t> ffn_sizes = source.counts("feed_forward_length", n_layers, kMaxSize);
  const int64_t wide = config.layer(0).attention().head_dim;
  const int64_t of_windowed = source.count("attention.key_length_swa", kMaxHeadDim, wide);
  Gemma4Shape shape;
  for (size_t n = 0; n < static_cast<size_t>(n_layers); ++n) {
    shape.layers.push_back({.windowed = windowed[n],
                            .head_dim = windowed[n] ? of_windowed : wide,
                            .n_kv_heads = n_kv_heads[n],
                            .ffn_size = ffn_sizes[n]});
  }
  shape.window = source.count("attention.sliding_window", kMaxContext);
  shape.n_own = n_layers - size_in(source, "attention.shared_kv_layers", n_layers - 1);
  shape.input_size = size_in(source, "embedding_length_per_layer_input", kMaxSize);
  if (const auto& experts = config.layer(0).experts) {
    shape.n_experts = experts->count;
    shape.experts_used = experts->router.used;
    shape.expert_size = experts->each.size;
  }
  return shape;
}

// Windowed layers' before that of others, which is there already.
void set_rope_of_windows(const GgufSource& source, int64_t head_dim, ModelConfig& config) {
  const double theta = source.number("rope.freq_base_swa", 10000);
  if (theta <= 0) source.fail("rope.freq_base_swa", "is not above 0");
  RopeConfig rope;
  rope.name = "windowed";
  rope.frequencies =
      plain_frequencies(theta, source.count("rope.dimension_count_swa", head_dim, head_dim));
  config.ropes.insert(config.ropes.begin(), std::move(rope));
}

void set_modules(const GgufSource& source, const ModelConfig& config, Modules& m) {
  m.layer_inputs = "per_layer_token_embd";
  m.layer_inputs_projection = "per_layer_model_proj";
  m.layer_inputs_norm = "per_layer_proj_norm";
  m.layer_inputs_norm_scale = gemma4_input_scale();
  m.router_norm = "ffn_gate_inp.scale";
  m.router_norm_scale = inverse_root(static_cast<double>(config.hidden));
  m.expert_scales = "ffn_down_exps.scale";
  m.experts_norm = "pre_ffw_norm_2";
  m.experts_after_norm = "post_ffw_norm_2";
  m.shared_gate_up = m.gate_up;
  m.shared_down = m.down;
  m.shared_after_norm = "post_ffw_norm_1";
  m.input_gate = "inp_gate";
  m.input_out = "proj";
  m.input_after_norm = "post_norm";
  m.stream_scale = "layer_output_scale.weight";
  for (int64_t n = 0; n < config.n_layers(); ++n) {
    const std::string layer = m.layers + std::to_string(n) + ".";
    const AttentionConfig& attention = config.layer(n).attention();
    const bool has_values = source.weights().find(layer + "attn_v.weight") != nullptr;
    if (attention.window == 0 && !has_values) m.keys_as_values.insert(n);
    if (!attention.kv_of) continue;
    // Files may hold keys and values of layers that have none.
    leave_out(m, {layer + "attn_k", layer + "attn_v", layer + "attn_k_norm"});
  }
}

}  // namespace

void adjust_gemma4(const GgufSource& source, GgufFamilyModel& model) {
  const Gemma4Shape shape = layers_in(source, model.config);
  set_rope_of_windows(source,
                      source.count("attention.key_length_swa", kMaxHeadDim,
                                   model.config.layer(0).attention().head_dim),
                      model.config);
  make_gemma4(shape, model.config);
  set_modules(source, model.config, model.modules);
}

}  // namespace faststream::convert
