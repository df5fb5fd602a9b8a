// Gemma 1 to 3 (arXiv:2403.08295, arXiv:2408.00118, arXiv:2503.19786), and T5Gemma
// (arXiv:2504.06225), an encoder and a decoder of Gemma 2, and VaultGemma (arXiv:2510.15001).
#include <cmath>
#include <memory>
#include <utility>

#include "convert/families/family.h"

namespace faststream::convert {
namespace {

constexpr double kQueryScalar = 256;

constexpr PlainShape kOtherwise1 = {.n_layers = 28,
                                    .hidden = 3072,
                                    .n_heads = 16,
                                    .n_kv_heads = 16,
                                    .head_dim = 256,
                                    .ffn_hidden = 24576,
                                    .vocab = 256000,
                                    .max_context = 8192,
                                    .norm_eps = 1e-6F};
constexpr PlainShape kOtherwise2 = {.n_layers = 26,
                                    .hidden = 2304,
                                    .n_heads = 8,
                                    .n_kv_heads = 4,
                                    .head_dim = 256,
                                    .ffn_hidden = 9216,
                                    .vocab = 256000,
                                    .max_context = 8192,
                                    .norm_eps = 1e-6F};
constexpr PlainShape kOtherwise3 = {.n_layers = 26,
                                    .hidden = 2304,
                                    .n_heads = 8,
                                    .n_kv_heads = 4,
                                    .head_dim = 256,
                                    .ffn_hidden = 9216,
                                    .vocab = 262208,
                                    .max_context = 131072,
                                    .norm_eps = 1e-6F,
                                    .rope_theta = 1e6};

// What all three share: weights of norms are 1 + γ, embeddings are scaled, GELU by tanh, which the
// first releases call "gelu".
FamilyModel gemma_in(const JsonView& config, const PlainShape& otherwise,
                     std::string_view rope_of = "") {
  FamilyModel model{
      plain_decoder_in(config, shape_in(config, otherwise), {.tied = true, .rope_of = rope_of})};
  LayerConfig& layer = model.config.layer_kinds[0];
  set_attention_bias(layer, config.get("attention_bias", false));
  layer.ffn.activation = activation_in(config, key_in(config, {"hidden_activation", "hidden_act"}),
                                       "gelu_pytorch_tanh");
  if (layer.ffn.activation == Activation::gelu) layer.ffn.activation = Activation::gelu_tanh;
  model.config.embedding.multiplier = std::sqrt(static_cast<float>(model.config.hidden));
  model.modules.norm_add = 1;
  return model;
}

// Since Gemma 2: norms after the branches too, and a scale of scores of its own.
FamilyModel gemma_with_norms_after(const JsonView& config, const PlainShape& otherwise,
                                   std::string_view rope_of = "") {
  FamilyModel model = gemma_in(config, otherwise, rope_of);
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.mixer_norms.after = layer.mixer_norms.before;
  layer.ffn_norms.after = layer.ffn_norms.before;
  layer.attention().scale = inverse_root(number_in(config, "query_pre_attn_scalar", kQueryScalar));
  model.modules.attention_after_norm = "post_attention_layernorm";
  model.modules.ffn_norm = "pre_feedforward_layernorm";
  model.modules.ffn_after_norm = "post_feedforward_layernorm";
  return model;
}

// A member that may be null, for no cap.
float soft_cap_in(const JsonView& config, std::string_view key, double otherwise) {
  return number_in(config, key, config.has(key) ? 0 : otherwise);
}

// Of Gemma 2: caps, and a window in every other layer.
FamilyModel with_caps_and_windows(FamilyModel model, const JsonView& config) {
  model.config.layer_kinds[0].attention().soft_cap =
      soft_cap_in(config, "attn_logit_softcapping", 50);
  model.config.output.soft_cap = soft_cap_in(config, "final_logit_softcapping", 30);
  set_windows(model.config, config, window_in(config, 4096), [](int64_t n) { return n % 2 == 0; });
  return model;
}

FamilyModel gemma2_in(const JsonView& config) {
  return with_caps_and_windows(gemma_with_norms_after(config, kOtherwise2), config);
}

// One of T5Gemma's two stacks.
FamilyModel t5gemma_stack(const JsonView& config, const std::string& stack) {
  FamilyModel model = gemma2_in(config.member(stack));
  Modules& m = model.modules;
  m.base = "model." + stack + ".";
  m.attention_norm = "pre_self_attn_layernorm";
  m.attention_after_norm = "post_self_attn_layernorm";
  m.cross_norm = "pre_cross_attn_layernorm";
  m.cross_after_norm = "post_cross_attn_layernorm";
  m.cross_qkv = {"cross_attn.q_proj", "cross_attn.k_proj", "cross_attn.v_proj"};
  m.cross_out = "cross_attn.o_proj";
  m.output = "lm_head.out_proj";
  return model;
}

}  // namespace

FamilyModel describe_gemma(const FamilySource& source) {
  return gemma_in(source.config, kOtherwise1);
}

FamilyModel describe_gemma2(const FamilySource& source) { return gemma2_in(source.config); }

// Gemma 2 without the norms after the branches.
FamilyModel describe_vaultgemma(const FamilySource& source) {
  FamilyModel model = gemma_in(source.config, kOtherwise2);
  model.config.layer_kinds[0].attention().scale =
      inverse_root(number_in(source.config, "query_pre_attn_scalar", kQueryScalar));
  model.modules.ffn_norm = "pre_feedforward_layernorm";
  return with_caps_and_windows(std::move(model), source.config);
}

FamilyModel describe_gemma3(const FamilySource& source) {
  const JsonView& config = source.config;
  FamilyModel model = gemma_with_norms_after(config, kOtherwise3, "full_attention");
  LayerConfig& first = model.config.layer_kinds[0];
  first.attention().qk_norm = QkNorm::head;
  first.attention().qk_norm_as = first.mixer_norms.before;
  model.config.output.soft_cap = soft_cap_in(config, "final_logit_softcapping", 0);

  constexpr int64_t kPattern = 6;  // every sixth layer sees all
  const int64_t pattern =
      count_in(config, key_in(config, {"sliding_window_pattern", "_sliding_window_pattern"}),
               kMaxLayers, kPattern);
  // Where tokens see later ones, the window is of both sides together.
  const bool bidirectional = config.get("use_bidirectional_attention", false);
  const int64_t window = window_in(config, 4096);
  set_windows(model.config, config, bidirectional ? window / 2 + 1 : window,
              [&](int64_t n) { return (n + 1) % pattern != 0; });
  if (bidirectional) {
    remove_output(model);
    for (LayerConfig& layer : model.config.layer_kinds) layer.attention().bidirectional = true;
  }
  set_rope_of_windows(model.config, config, config.get("rope_local_base_freq", 10000.0));
  return model;
}

FamilyModel describe_t5gemma(const FamilySource& source) {
  FamilyModel model = t5gemma_stack(source.config, "decoder");
  for (LayerConfig& layer : model.config.layer_kinds) {
    layer.cross_attention.emplace().norms = layer.mixer_norms;
  }
  model.config.output.tied = source.config.get("tie_word_embeddings", true);
  FamilyModel encoder = t5gemma_stack(source.config, "encoder");
  encoder.config.output = {.norm = encoder.config.output.norm, .none = true};
  for (LayerConfig& layer : encoder.config.layer_kinds) {
    layer.attention().bidirectional = true;
    if (layer.attention().window > 0) ++layer.attention().window;  // the last token counts there
  }
  model.config.encoder = std::make_shared<const ModelConfig>(std::move(encoder.config));
  model.encoder_modules = std::move(encoder.modules);
  const JsonView decoder = source.config.member("decoder");
  model.answers.start = decoder.get("bos_token_id", 2);
  return model;
}

}  // namespace faststream::convert
