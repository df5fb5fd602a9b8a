// nanochat: norms have no weights, and heads turn the other way.
#include "convert/families/family.h"

namespace faststream::convert {
namespace {

// Of each head the second half comes first: what turns one way in one order, turns the other way in
// the other.
std::vector<TensorPart> swapped_halves(const TensorPart& heads, int64_t n_heads, int64_t head_dim) {
  std::vector<TensorPart> parts;
  for (int64_t head = 0; head < n_heads; ++head) {
    for (const int64_t half : {1, 0}) {
      TensorPart part = heads;
      part.first_row = head * head_dim + half * head_dim / 2;
      part.n_rows = head_dim / 2;
      parts.push_back(std::move(part));
    }
  }
  return parts;
}

void swap_halves(const ModelConfig& config, const Checkpoint& /*weights*/, TensorParts& parts) {
  const AttentionConfig& attention = config.layer(0).attention();
  for (int64_t n = 0; n < config.n_layers(); ++n) {
    const TensorId qkv{TensorKind::attention_qkv, n};
    for (const TensorId& id : {qkv, bias_of(qkv)}) {
      const auto found = parts.find(id);
      if (found == parts.end()) continue;
      std::vector<TensorPart>& of_tensor = found->second;
      std::vector<TensorPart> all =
          swapped_halves(of_tensor[0], attention.n_heads, attention.head_dim);
      const auto keys = swapped_halves(of_tensor[1], attention.n_kv_heads, attention.head_dim);
      all.insert(all.end(), keys.begin(), keys.end());
      all.push_back(of_tensor[2]);
      of_tensor = std::move(all);
    }
  }
}

}  // namespace

FamilyModel describe_nanochat(const FamilySource& source) {
  const JsonView& config = source.config;
  FamilyModel model{plain_decoder_in(config, shape_in(config))};
  LayerConfig& layer = model.config.layer_kinds[0];
  set_attention_bias(layer, config.get("attention_bias", false));
  layer.attention().qk_norm = QkNorm::head;
  layer.attention().qk_norm_as = layer.mixer_norms.before;
  layer.attention().qk_norm_after_rope = true;
  set_plain_ffn(layer, activation_in(config, "hidden_act", "relu2"), false);
  model.config.embedding.norm = layer.mixer_norms.before;
  constexpr const char* kCap = "final_logit_softcapping";
  model.config.output.soft_cap = number_in(config, kCap, config.has(kCap) ? 0 : 15);
  Modules& m = model.modules;
  m.embedding_norm = m.attention_norm = m.q_norm = m.k_norm = m.ffn_norm = m.output_norm = "";
  m.gate_up = {"mlp.fc1"};
  m.down = "mlp.fc2";
  model.finish = swap_halves;
  return model;
}

}  // namespace faststream::convert
