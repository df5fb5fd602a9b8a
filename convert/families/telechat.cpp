// TeleChat (arXiv:2401.03804) and TeleChat 2.
#include <algorithm>
#include <cmath>

#include "convert/families/family.h"

namespace faststream::convert {
namespace {

// Its NTK-aware base: for texts up to the length of training, so for those that are shorter too.
double base_of(const JsonView& config, const PlainShape& shape) {
  const auto context =
      static_cast<double>(count_in(config, "training_seqlen", kMaxContext, shape.max_context));
  const auto original = static_cast<double>(count_in(config, "base_seqlen", kMaxContext, 4096));
  const double alpha = std::max(std::exp2(std::ceil(std::log2(context / original) + 1)) - 1, 1.0);
  const auto dims = static_cast<double>(shape.head_dim);
  return 10000 * std::pow(alpha, dims / (dims - 2));
}

// Keys and values lie together head by head; of the products of the feed-forward only the second
// has a bias, of attention's only the last.
void set_parts(const ModelConfig& config, const Checkpoint& /*weights*/, TensorParts& parts) {
  const AttentionConfig& attention = config.layer(0).attention();
  const int64_t head_dim = attention.head_dim;
  for (int64_t n = 0; n < config.n_layers(); ++n) {
    auto& qkv = parts[{TensorKind::attention_qkv, n}];
    const TensorPart joined = qkv[1];
    qkv.resize(1);
    for (const int64_t first : {int64_t{0}, head_dim}) {
      for (int64_t head = 0; head < attention.n_kv_heads; ++head) {
        TensorPart part = joined;
        part.first_row = head * 2 * head_dim + first;
        part.n_rows = head_dim;
        part.shape[0] = attention.k_dim() + attention.v_dim();
        qkv.push_back(std::move(part));
      }
    }
    parts[bias_of({TensorKind::ffn_gate_up, n})] = {
        {.source = "", .shape = {config.layer(n).ffn.up_dim()}}};
  }
}

}  // namespace

FamilyModel describe_telechat(const FamilySource& source) {
  const JsonView& config = source.config;
  refuse_if(config, "apply_residual_connection_post_layernorm",
            "residual connections after the norms");
  PlainShape shape;
  shape.n_layers = count_in(config, "n_layer", kMaxLayers);
  shape.hidden = count_in(config, key_in(config, {"n_embed", "hidden_size"}));
  shape.n_heads = count_in(config, "n_head", kMaxHeads);
  shape.n_kv_heads = count_in(config, "num_key_value_heads", kMaxHeads, shape.n_heads);
  shape.head_dim = head_dim_of(config, shape);
  shape.ffn_hidden = count_in(config, "ffn_hidden_size");
  shape.vocab = count_in(config, "vocab_size");
  shape.max_context = count_in(config, "seq_length", kMaxContext, 8192);
  shape.norm_eps = number_in(config, "layer_norm_epsilon", 1e-5);
  shape.rope_theta = base_of(config, shape);
  FamilyModel model{plain_decoder_in(config, shape, {.tied = true})};
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.attention().out_bias = layer.ffn.bias = true;
  if (config.get("embed_layernorm", false)) model.config.embedding.norm = model.config.output.norm;

  Modules& m = model.modules;
  m.base = "transformer.";
  m.embedding = "word_embeddings";
  m.embedding_norm = "word_embeddings_layernorm";
  m.layers = "h.";
  m.qkv = {"self_attention.query", "self_attention.key_value", "self_attention.key_value"};
  m.attention_out = "self_attention.dense";
  m.output_norm = "ln_f";
  model.finish = set_parts;
  return model;
}

}  // namespace faststream::convert
