// MPT of MosaicML: ALiBi, no biases.
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "convert/families/family.h"

namespace faststream::convert {

std::vector<float> mpt_slopes(int64_t n_heads) {
  constexpr double kMost = 8;
  const auto whole = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n_heads)));
  std::vector<float> slopes;
  const auto add = [&](int64_t first, int64_t step) {
    for (int64_t i = first; i <= whole && std::ssize(slopes) < n_heads; i += step) {
      slopes.push_back(static_cast<float>(
          std::exp2(-kMost * static_cast<double>(i) / static_cast<double>(whole))));
    }
  };
  if (whole == n_heads) {
    add(1, 1);
  } else {
    add(2, 2);
    add(1, 2);
  }
  return slopes;
}

FamilyModel describe_mpt(const FamilySource& source) {
  const JsonView& config = source.config;
  static const nlohmann::json nothing = nlohmann::json::object();
  const auto said = config.find("attn_config");
  const JsonView attn = said ? *said : JsonView(nothing, "attn_config");
  refuse_other(attn, "attn_type", "multihead_attention");
  refuse_other(attn, "alibi", true);
  refuse_other(attn, "alibi_bias_max", 8);
  refuse_if(attn, "qk_ln", "norms of queries and keys");
  refuse_if(attn, "prefix_lm", "tokens of a prefix that see each other");
  if (attn.get("clip_qkv", 0.0) != 0) attn.member("clip_qkv").fail("is not supported");
  PlainShape shape;
  shape.n_layers = count_in(config, "n_layers", kMaxLayers);
  shape.hidden = count_in(config, "d_model");
  shape.n_heads = shape.n_kv_heads = count_in(config, "n_heads", kMaxHeads);
  shape.head_dim = head_dim_of(config, shape);
  shape.ffn_hidden = 4 * shape.hidden;  // whatever "expansion_ratio" says
  shape.vocab = count_in(config, "vocab_size");
  shape.max_context = count_in(config, "max_seq_len", kMaxContext, 2048);
  FamilyModel model{plain_decoder(shape)};
  remove_rotation(model.config);
  model.config.output.tied = config.get("tie_word_embeddings", true);
  set_norms(model.config, layer_norm_in(config, "layer_norm_epsilon", false));
  LayerConfig& layer = model.config.layer_kinds[0];
  AttentionConfig& attention = layer.attention();
  attention.slopes = mpt_slopes(shape.n_heads);
  attention.scale = number_in(attn, "softmax_scale", attention.scale);
  set_plain_ffn(layer, Activation::gelu, false);

  Modules& m = model.modules;
  m.base = "transformer.";
  m.embedding = "wte";
  m.layers = "blocks.";
  m.attention_norm = "norm_1";
  m.qkv = {"attn.Wqkv"};
  m.attention_out = "attn.out_proj";
  m.ffn_norm = "norm_2";
  m.gate_up = {"ffn.up_proj"};
  m.down = "ffn.down_proj";
  m.output_norm = "norm_f";
  return model;
}

}  // namespace faststream::convert
