// NomicBERT (arXiv:2402.01613): BERT with rotations and a gated feed-forward without biases.
#include "convert/families/family.h"

namespace faststream::convert {

// config.json has GPT-2's names in the first releases, and BERT's since Transformers has the class.
FamilyModel describe_nomic_bert(const FamilySource& source) {
  const JsonView& config = source.config;
  for (const char* key : {"prenorm", "qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias",
                          "rotary_emb_interleaved", "use_rms_norm", "parallel_block"}) {
    refuse_if(config, key, "another kind of layers");
  }
  PlainShape shape;
  shape.n_layers =
      count_in(config, key_in(config, {"n_layer", "num_hidden_layers"}), kMaxLayers, 12);
  shape.hidden = count_in(config, key_in(config, {"n_embd", "hidden_size"}), kMaxSize, 768);
  shape.n_heads = shape.n_kv_heads =
      count_in(config, key_in(config, {"n_head", "num_attention_heads"}), kMaxHeads, 12);
  shape.head_dim = head_dim_of(config, shape);
  shape.ffn_hidden = count_in(config, key_in(config, {"n_inner", "intermediate_size"}), kMaxSize,
                              4 * shape.hidden);
  shape.vocab = count_in(config, "vocab_size", kMaxSize, 30528);
  shape.max_context = count_in(config, key_in(config, {"n_positions", "max_position_embeddings"}),
                               kMaxContext, 2048);
  constexpr double kTheta = 1000;
  shape.rope_theta = config.get("rotary_emb_base", kTheta);
  NormConfig norm = layer_norm_in(config, key_in(config, {"layer_norm_epsilon", "layer_norm_eps"}));

  FamilyModel model{post_norm_encoder(shape, norm, Activation::silu)};
  model.config.ropes = {rope_from_hf(
      config,
      {.head_dim = shape.head_dim, .max_context = shape.max_context, .theta = shape.rope_theta},
      "")};
  model.config.embedding.segments = count_in(config, "type_vocab_size", kMaxSize, 2);
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.attention().rope = 0;
  set_attention_bias(layer, false);
  layer.ffn.gated = true;
  layer.ffn.bias = false;

  Modules& m = model.modules;
  m.base = "nomic_bert.";
  m.embedding = "embeddings.word_embeddings";
  m.segments = "embeddings.token_type_embeddings";
  m.embedding_norm = "emb_ln";
  m.layers = "encoder.layers.";
  m.qkv = {"attn.Wqkv"};
  m.attention_out = "attn.out_proj";
  m.attention_stream_norm = "norm1";
  m.gate_up = {"mlp.fc12", "mlp.fc11"};
  m.down = "mlp.fc2";
  m.ffn_stream_norm = "norm2";
  return model;
}

}  // namespace faststream::convert
