// Falcon (arXiv:2311.16867): 7B, 40B, 11B, and the older ones with ALiBi.
#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_falcon(const FamilySource& source) {
  const JsonView& config = source.config;
  const bool newer = config.get("new_decoder_architecture", false);
  const bool parallel = newer || config.get("parallel_attn", true);
  const bool one_kv_head = !newer && config.get("multi_query", true);
  PlainShape shape;
  shape.n_layers = count_in(config, key_in(config, {"n_layer", "num_hidden_layers"}), kMaxLayers);
  shape.hidden = count_in(config, "hidden_size");
  shape.n_heads = count_in(config, key_in(config, {"n_head", "num_attention_heads"}), kMaxHeads);
  shape.n_kv_heads = one_kv_head ? 1 : shape.n_heads;
  if (newer) {
    shape.n_kv_heads =
        count_in(config, key_in(config, {"n_head_kv", "num_kv_heads"}), kMaxHeads, shape.n_heads);
  }
  shape.head_dim = head_dim_of(config, shape);
  shape.ffn_hidden = count_in(config, "ffn_hidden_size", kMaxSize, 4 * shape.hidden);
  shape.vocab = count_in(config, "vocab_size");
  shape.max_context = count_in(config, "max_position_embeddings", kMaxContext, 2048);
  FamilyModel model{plain_decoder_in(config, shape, {.tied = true})};
  set_norms(model.config, layer_norm_in(config, "layer_norm_epsilon"));
  LayerConfig& layer = model.config.layer_kinds[0];
  const bool bias = config.get("bias", false);
  set_attention_bias(layer, bias);
  set_plain_ffn(layer, activation_in(config, "activation", "gelu"), bias);
  layer.parallel = parallel;
  const bool two_norms = newer && count_in(config, "num_ln_in_parallel_attn", 2, 2) == 2;
  if (parallel && !two_norms) layer.ffn_norms = {};
  if (config.get("alibi", false)) {
    remove_rotation(model.config);
    layer.attention().slopes = alibi_slopes(shape.n_heads);
    // Here the scores are scaled with the slopes' share in them.
    for (float& slope : layer.attention().slopes) slope *= layer.attention().scale;
  }

  Modules& m = model.modules;
  m.base = "transformer.";
  m.embedding = "word_embeddings";
  m.layers = "h.";
  m.attention_norm = two_norms ? "ln_attn" : "input_layernorm";
  m.qkv = {"self_attention.query_key_value"};
  m.joined_qkv = one_kv_head ? JoinedQkv::by_kind : JoinedQkv::by_kv_head;
  m.attention_out = "self_attention.dense";
  m.ffn_norm = two_norms ? "ln_mlp" : "post_attention_layernorm";
  m.gate_up = {"mlp.dense_h_to_4h"};
  m.down = "mlp.dense_4h_to_h";
  m.output_norm = "ln_f";
  return model;
}

}  // namespace faststream::convert
