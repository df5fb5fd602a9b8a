// Apertus (arXiv:2509.14233).
#include <nlohmann/json.hpp>

#include "convert/families/family.h"

namespace faststream::convert {
namespace {

// Without a rule of its own: Llama 3's.
RopeConfig rope_in(const JsonView& config, const PlainShape& shape) {
  const RopeShape rope{
      .head_dim = shape.head_dim, .max_context = shape.max_context, .theta = shape.rope_theta};
  if (config.find("rope_scaling") || config.find("rope_parameters")) {
    return rope_from_hf(config, rope);
  }
  const nlohmann::json otherwise = {{"rope_parameters",
                                     {{"rope_type", "llama3"},
                                      {"factor", 8.0},
                                      {"original_max_position_embeddings", 8192},
                                      {"low_freq_factor", 1.0},
                                      {"high_freq_factor", 4.0}}}};
  return rope_from_hf(JsonView(otherwise, "the default rope_parameters"), rope);
}

}  // namespace

FamilyModel describe_apertus(const FamilySource& source) {
  const JsonView& config = source.config;
  refuse_other(config, "hidden_act", "xielu");
  refuse_other(config, "qk_norm", true);
  refuse_other(config, "post_norm", false);
  constexpr PlainShape kOtherwise = {.max_context = 65536, .norm_eps = 1e-5F, .rope_theta = 12e6};
  const PlainShape shape = shape_in(config, kOtherwise);
  FamilyModel model{plain_decoder(shape)};
  model.config.ropes = {rope_in(config, shape)};
  model.config.output.tied = config.get("tie_word_embeddings", false);
  LayerConfig& layer = model.config.layer_kinds[0];
  set_attention_bias(layer, config.get("attention_bias", false));
  layer.attention().qk_norm = QkNorm::head;
  layer.attention().qk_norm_as = layer.mixer_norms.before;
  set_plain_ffn(layer, Activation::none, false);
  layer.ffn.xielu = true;
  model.modules.attention_norm = "attention_layernorm";
  model.modules.ffn_norm = "feedforward_layernorm";
  model.modules.gate_up = {"mlp.up_proj"};
  model.modules.unused.push_back(model.modules.xielu + ".eps");  // where exp(x) - 1 is cut off
  return model;
}

}  // namespace faststream::convert
