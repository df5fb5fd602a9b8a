// GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"), and StarCoder
// 1 (arXiv:2305.06161), which is one whose heads share keys and values.
#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_gpt2(const FamilySource& source) {
  const JsonView& config = source.config;
  PlainShape shape = gpt2_shape_in(config);
  shape.max_context = count_in(config, key_in(config, {"n_positions", "n_ctx"}), kMaxContext);
  FamilyModel model{plain_decoder(shape)};

  model.config.embedding.positions = shape.max_context;
  remove_rotation(model.config);
  model.config.output.tied = config.get("tie_word_embeddings", true);
  set_norms(model.config, layer_norm_in(config, "layer_norm_epsilon"));
  LayerConfig& first = model.config.layer_kinds[0];
  set_attention_bias(first, true);
  set_plain_ffn(first, activation_in(config, "activation_function", "gelu_new"), true);
  if (!config.get("scale_attn_weights", true)) first.attention().scale = 1;
  if (config.get("scale_attn_by_inverse_layer_idx", false)) {
    change_layers(model.config, [](int64_t n, LayerConfig& layer) {
      layer.name = "layer " + std::to_string(n);
      layer.attention().scale /= static_cast<float>(n + 1);
    });
  }

  Modules& m = model.modules;
  m.base = "transformer.";
  m.embedding = "wte";
  m.positions = "wpe";
  m.layers = "h.";
  m.attention_norm = "ln_1";
  m.qkv = {"attn.c_attn"};
  m.attention_out = "attn.c_proj";
  m.ffn_norm = "ln_2";
  m.gate_up = {"mlp.c_fc"};
  m.down = "mlp.c_proj";
  m.output_norm = "ln_f";
  m.transposed = true;
  m.unused = {".attn.bias", ".attn.masked_bias"};
  return model;
}

FamilyModel describe_gpt_bigcode(const FamilySource& source) {
  FamilyModel model = describe_gpt2(source);
  const bool shares = source.config.get("multi_query", true);
  for (LayerConfig& layer : model.config.layer_kinds) {
    if (shares) layer.attention().n_kv_heads = 1;
  }
  model.modules.joined_qkv = shares ? JoinedQkv::by_kind : JoinedQkv::by_kv_head;
  model.modules.transposed = false;
  return model;
}

}  // namespace faststream::convert
