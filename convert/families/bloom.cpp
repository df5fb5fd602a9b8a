// BLOOM (arXiv:2211.05100).
#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_bloom(const FamilySource& source) {
  const JsonView& config = source.config;
  refuse_if(config, "apply_residual_connection_post_layernorm",
            "residual connections after the norms");
  PlainShape shape;
  shape.n_layers = count_in(config, key_in(config, {"n_layer", "num_hidden_layers"}), kMaxLayers);
  shape.hidden = count_in(config, key_in(config, {"n_embed", "hidden_size"}));
  shape.n_heads = shape.n_kv_heads =
      count_in(config, key_in(config, {"num_attention_heads", "n_head"}), kMaxHeads);
  shape.head_dim = head_dim_of(config, shape);
  shape.ffn_hidden = 4 * shape.hidden;
  shape.vocab = count_in(config, "vocab_size");
  shape.max_context = count_in(config, "seq_length", kMaxContext, 2048);
  FamilyModel model{plain_decoder(shape)};
  remove_rotation(model.config);
  model.config.output.tied = config.get("tie_word_embeddings", true);
  const NormConfig norm = layer_norm_in(config, "layer_norm_epsilon");
  model.config.embedding.norm = norm;
  set_norms(model.config, norm);
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.attention().slopes = alibi_slopes(shape.n_heads);
  set_attention_bias(layer, true);
  set_plain_ffn(layer, Activation::gelu_tanh, true);

  Modules& m = model.modules;
  m.base = "transformer.";
  m.embedding = "word_embeddings";
  m.embedding_norm = "word_embeddings_layernorm";
  m.layers = "h.";
  m.qkv = {"self_attention.query_key_value"};
  m.joined_qkv = JoinedQkv::by_kv_head;
  m.attention_out = "self_attention.dense";
  m.gate_up = {"mlp.dense_h_to_4h"};
  m.down = "mlp.dense_4h_to_h";
  m.output_norm = "ln_f";
  return model;
}

}  // namespace faststream::convert
