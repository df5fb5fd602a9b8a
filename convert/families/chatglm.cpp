// ChatGLM 2 and 3, and GLM 4 of 9B as first released (arXiv:2406.12793).
#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_chatglm(const FamilySource& source) {
  const JsonView& config = source.config;
  refuse_if(config, "apply_residual_connection_post_layernorm",
            "residual connections after the norms");
  PlainShape shape;
  shape.n_layers = count_in(config, "num_layers", kMaxLayers);
  shape.hidden = count_in(config, "hidden_size");
  shape.n_heads = count_in(config, "num_attention_heads", kMaxHeads);
  shape.head_dim = count_in(config, "kv_channels", kMaxHeadDim);
  const bool groups = config.get("multi_query_attention", true);
  shape.n_kv_heads = groups ? count_in(config, "multi_query_group_num", kMaxHeads) : shape.n_heads;
  shape.ffn_hidden = count_in(config, "ffn_hidden_size");
  shape.vocab = count_in(config, key_in(config, {"padded_vocab_size", "vocab_size"}));
  shape.max_context = count_in(config, "seq_length", kMaxContext);
  shape.norm_eps = number_in(config, "layernorm_epsilon", 1e-5);
  shape.rope_theta = 10000 * config.get("rope_ratio", 1.0);
  FamilyModel model{plain_decoder_in(config, shape, {.rotated_share = 0.5})};
  if (!config.get("rmsnorm", true)) {
    set_norms(model.config, layer_norm_in(config, "layernorm_epsilon"));
  }
  if (!config.get("post_layer_norm", true)) model.config.output.norm = {};
  LayerConfig& layer = model.config.layer_kinds[0];
  const bool bias = config.get("add_bias_linear", false);
  layer.attention().qkv_bias = bias || config.get("add_qkv_bias", true);
  layer.attention().out_bias = layer.ffn.bias = bias;

  Modules& m = model.modules;
  m.base = "transformer.";
  m.embedding = "embedding.word_embeddings";
  m.layers = "encoder.layers.";
  m.qkv = {"self_attention.query_key_value"};
  m.joined_qkv = groups ? JoinedQkv::by_kind : JoinedQkv::by_kv_head;
  m.attention_out = "self_attention.dense";
  m.gate_up = {"mlp.dense_h_to_4h"};
  m.down = "mlp.dense_4h_to_h";
  m.output_norm = "encoder.final_layernorm";
  m.output = "transformer.output_layer";
  m.interleaved = true;
  m.unused = {"rotary_pos_emb.inv_freq"};
  // Of tokenization_chatglm.py; ChatGLM 2 never gives those of roles.
  model.control_tokens = {.tokens = {"[MASK]", "[gMASK]", "[sMASK]", "sop", "eop", "<|system|>",
                                     "<|user|>", "<|assistant|>", "<|observation|>"},
                          .prefix = {"[gMASK]", "sop"},
                          .ends = {"<|user|>", "<|observation|>"}};
  return model;
}

}  // namespace faststream::convert
