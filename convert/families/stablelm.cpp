// StableLM (arXiv:2402.17834).
#include "convert/families/family.h"

namespace faststream::convert {
namespace {

// Norms of heads are modules of their own.
void set_head_norms(const ModelConfig& config, const Checkpoint& /*weights*/, TensorParts& parts) {
  const AttentionConfig& attention = config.layer(0).attention();
  for (int64_t n = 0; n < config.n_layers(); ++n) {
    const std::string layer = "model.layers." + std::to_string(n) + ".self_attn.";
    const auto norms = [&](const std::string& module, int64_t heads) {
      std::vector<TensorPart> all;
      for (int64_t head = 0; head < heads; ++head) {
        all.push_back({.source = layer + module + ".norms." + std::to_string(head) + ".weight",
                       .shape = {attention.head_dim}});
      }
      return all;
    };
    parts[{TensorKind::attention_q_norm, n}] = norms("q_layernorm", attention.n_heads);
    parts[{TensorKind::attention_k_norm, n}] = norms("k_layernorm", attention.n_kv_heads);
  }
}

}  // namespace

FamilyModel describe_stablelm(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_kv_heads = 32, .max_context = 4096};
  FamilyModel model{
      plain_decoder_in(config, shape_in(config, kOtherwise), {.rotated_share = 0.25})};
  set_norms(model.config, layer_norm_in(config, "layer_norm_eps"));
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.attention().qkv_bias = config.get("use_qkv_bias", false);
  layer.parallel = config.get("use_parallel_residual", false);
  if (layer.parallel) layer.ffn_norms = {};
  if (config.get("qk_layernorm", false)) {
    layer.attention().qk_norm = QkNorm::head;
    layer.attention().qk_norm_as = layer_norm_in(config, "layer_norm_eps", false);
    model.finish = set_head_norms;
  }
  return model;
}

}  // namespace faststream::convert
