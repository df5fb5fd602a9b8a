// DeepSeek V2 (arXiv:2405.04434), V3 (arXiv:2412.19437) and V3.2, and what has their layers: Kimi
// K2, A.X K1, Mistral 4, GLM 4.7 Flash, GLM 5, Youtu, MiniCPM 3, and with plain attention the text
// models of DeepSeek VL2 and OCR.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "convert/families/family.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

// What a configuration class has where config.json says nothing.
struct Defaults {
  PlainShape shape;
  LatentAttentionConfig attention = {
      .q_rank = 1536, .kv_rank = 512, .rope_dim = 64, .nope_dim = 128, .value_head_dim = 128};
  int64_t dense_layers = 3;
  int64_t experts = 256;
  int64_t experts_used = 8;
  int64_t expert_size = 2048;
  int64_t shared_experts = 1;
  RouterConfig router = {.score = Router::Score::sigmoid,
                         .correction = true,
                         .groups = 8,
                         .groups_used = 4,
                         .normalized = true,
                         .scale = 2.5F};
};

constexpr PlainShape kV3Shape = {.n_layers = 61,
                                 .hidden = 7168,
                                 .n_heads = 128,
                                 .n_kv_heads = 128,
                                 .head_dim = 64,
                                 .ffn_hidden = 18432,
                                 .vocab = 129280,
                                 .max_context = 4096,
                                 .norm_eps = 1e-6F};

// The layers with experts.
std::vector<bool> sparse_layers(const JsonView& config, int64_t n_layers, int64_t dense_layers) {
  std::vector<bool> sparse;
  if (const auto types = config.find("mlp_layer_types")) {
    for (const JsonView& type : types->elements()) {
      const auto name = type.as<std::string>();
      if (name != "dense" && name != "sparse") type.fail("is " + in_quotes(name) + ", not known");
      sparse.push_back(name == "sparse");
    }
    if (static_cast<int64_t>(sparse.size()) != n_layers) {
      types->fail("has another number of entries than there are layers");
    }
    return sparse;
  }
  const auto first = config.get<int64_t>("first_k_dense_replace", dense_layers);
  for (int64_t n = 0; n < n_layers; ++n) sparse.push_back(n >= first);
  return sparse;
}

void refuse_unless(const JsonView& config, std::string_view key, std::string_view wanted) {
  if (const auto value = config.find(key); value && value->as<std::string>() != wanted) {
    value->fail("is " + in_quotes(value->as<std::string>()) + ", which is not supported");
  }
}

RouterConfig router_in(const JsonView& config, RouterConfig router) {
  const auto groups = [&](std::string_view key, int32_t otherwise) {
    return static_cast<int32_t>(
        std::max<int64_t>(1, count_or_null_in(config, key, kMaxExperts, otherwise)));
  };
  router.groups = groups("n_group", router.groups);
  router.groups_used = groups("topk_group", router.groups_used);
  router.normalized = config.get("norm_topk_prob", router.normalized);
  router.scale = number_in(config, "routed_scaling_factor", router.scale);
  return router;
}

void use_deepseek_experts(ModelConfig& model, const JsonView& config, const Defaults& defaults,
                          const RouterConfig& router) {
  constexpr const char* kStep = "moe_layer_freq";
  if (config.get<int64_t>(kStep, 1) != 1) config.member(kStep).fail("is not supported but for 1");
  const int64_t count = count_in(config, "n_routed_experts", kMaxExperts, defaults.experts);
  const int64_t size = count_in(config, "moe_intermediate_size", kMaxSize, defaults.expert_size);
  const int64_t shared =
      count_or_null_in(config, "n_shared_experts", kMaxExperts, defaults.shared_experts);
  const std::vector<bool> sparse = sparse_layers(config, model.n_layers(), defaults.dense_layers);
  change_layers(model, [&](int64_t n, LayerConfig& layer) {
    if (!sparse[static_cast<size_t>(n)]) return;
    layer.name += " with experts";
    FeedForwardConfig of_all = layer.ffn;
    of_all.size = shared * size;
    ExpertsConfig& experts = use_experts(layer, config, count, defaults.experts_used);
    const int32_t used = experts.router.used;
    experts.router = router;
    experts.router.used = used;
    experts.each.size = size;
    experts.each.bias = false;
    if (shared > 0) experts.shared = of_all;
  });
}

// Layers of latent attention, dense.
FamilyModel latent_decoder(const JsonView& config, const PlainShape& otherwise,
                           const LatentAttentionConfig& attention_otherwise, bool tied = false) {
  PlainShape shape = shape_in(config, otherwise);
  if (shape.n_kv_heads != shape.n_heads) {
    config.fail("has \"num_key_value_heads\" that are not \"num_attention_heads\"");
  }
  LatentAttentionConfig attention = latent_attention_in(config, attention_otherwise);
  shape.head_dim = attention.rope_dim;
  FamilyModel model{plain_decoder_in(config, shape, {.tied = tied})};
  attention.n_heads = shape.n_heads;
  attention.rope = 0;
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.mixers = {attention};
  layer.ffn.bias = config.get("mlp_bias", false);
  model.modules.interleaved = config.get("rope_interleave", true);
  return model;
}

FamilyModel describe(const FamilySource& source, const Defaults& defaults,
                     const RouterConfig& router, bool latent = true) {
  const JsonView& config = source.config;
  FamilyModel model = latent
                          ? latent_decoder(config, defaults.shape, defaults.attention)
                          : FamilyModel{plain_decoder_in(config, shape_in(config, defaults.shape))};
  use_deepseek_experts(model.config, config, defaults, router);
  Modules& m = model.modules;
  m.shared_gate_up = {"mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"};
  m.shared_down = "mlp.shared_experts.down_proj";
  use_predicting_layers(
      model, source.weights,
      count_or_null_in(config, key_in(config, {"num_nextn_predict_layers", "num_mtp_layers"}),
                       kMaxLayers, 0));
  return model;
}

FamilyModel describe_like_v2(const FamilySource& source, bool latent) {
  const JsonView& config = source.config;
  Defaults defaults{.shape = {.n_layers = 32,
                              .hidden = 4096,
                              .n_heads = 32,
                              .head_dim = 64,
                              .ffn_hidden = 11008,
                              .vocab = 102400,
                              .max_context = 2048,
                              .norm_eps = 1e-6F},
                    .dense_layers = 0,
                    .experts = 64,
                    .experts_used = 0,
                    .expert_size = 1407,
                    .shared_experts = 2,
                    .router = {.group_score = Router::GroupScore::largest}};
  if (!latent) defaults.shape.head_dim = 0;
  refuse_unless(config, "scoring_func", "softmax");
  refuse_if(config, "norm_topk_prob", "weights of experts that are normalised");
  RouterConfig router = router_in(config, defaults.router);
  const auto method = config.get<std::string>("topk_method", "greedy");
  if (method == "greedy") {
    router.groups = router.groups_used = 1;
  } else if (method != "group_limited_greedy") {
    config.member("topk_method").fail("is " + in_quotes(method) + ", which is not supported");
  }
  return describe(source, defaults, router, latent);
}

FamilyModel describe_like_v3(const FamilySource& source, const Defaults& defaults) {
  const JsonView& config = source.config;
  refuse_unless(config, "scoring_func", "sigmoid");
  refuse_unless(config, "topk_method", "noaux_tc");
  return describe(source, defaults, router_in(config, defaults.router));
}

// While a text is no longer than what the indexer chooses, each token sees all before it, whatever
// the indexer says. Longer texts are refused.
FamilyModel describe_with_indexer(const FamilySource& source, const Defaults& defaults) {
  FamilyModel model = describe_like_v3(source, defaults);
  const int64_t budget = count_in(source.config, "index_topk", kMaxContext, 2048);
  end_context(model.config, budget, ContextEnd::sparse_attention);
  model.modules.left_out.emplace_back("self_attn.indexer.");
  model.modules.without_left_out = longest_text(model.config.max_context);
  return model;
}

Defaults of_glm_5() {
  Defaults defaults{.shape = {.n_layers = 78,
                              .hidden = 6144,
                              .n_heads = 64,
                              .n_kv_heads = 64,
                              .head_dim = 64,
                              .ffn_hidden = 12288,
                              .vocab = 154880,
                              .max_context = 202752,
                              .norm_eps = 1e-5F}};
  defaults.attention.q_rank = 2048;
  defaults.attention.nope_dim = 192;
  defaults.attention.value_head_dim = 256;
  defaults.router.groups = defaults.router.groups_used = 1;
  return defaults;
}

}  // namespace

LatentAttentionConfig latent_attention_in(const JsonView& config,
                                          const LatentAttentionConfig& otherwise) {
  LatentAttentionConfig attention = otherwise;
  attention.q_rank = count_or_null_in(config, "q_lora_rank", kMaxSize, otherwise.q_rank);
  attention.kv_rank = count_in(config, "kv_lora_rank", kMaxHeadDim, otherwise.kv_rank);
  attention.rope_dim = count_in(config, "qk_rope_head_dim", kMaxHeadDim, otherwise.rope_dim);
  attention.nope_dim = count_in(config, "qk_nope_head_dim", kMaxHeadDim, otherwise.nope_dim);
  attention.value_head_dim = count_in(config, "v_head_dim", kMaxHeadDim, otherwise.value_head_dim);
  attention.bias = config.get("attention_bias", otherwise.bias);
  constexpr float kEps = 1e-6F;  // whatever that of other norms
  attention.latent_norm = {.kind = NormKind::rms, .eps = kEps};
  const auto factor = static_cast<float>(yarn_score_factor(config));
  attention.scale = factor * inverse_root(static_cast<double>(attention.q_head_dim()));
  return attention;
}

FamilyModel describe_deepseek_v2(const FamilySource& source) {
  return describe_like_v2(source, source.config.get("use_mla", true));
}

FamilyModel describe_deepseek_ocr2(const FamilySource& source) {
  return describe_like_v2(source, false);
}

FamilyModel describe_deepseek_v3(const FamilySource& source) {
  return describe_like_v3(source, {.shape = kV3Shape});
}

// With a norm of what experts give; releases route without a correction.
FamilyModel describe_axk1(const FamilySource& source) {
  Defaults defaults{.shape = kV3Shape, .dense_layers = 1, .experts = 192};
  defaults.shape.n_heads = defaults.shape.n_kv_heads = 64;
  defaults.shape.vocab = 163840;
  defaults.shape.max_context = 32768;
  FamilyModel model = describe_like_v3(source, defaults);
  bool is_corrected = false;
  for (const auto& [name, tensor] : source.weights.tensors()) {
    is_corrected = is_corrected || name.ends_with(model.modules.correction);
  }
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    if (layer.experts) {
      layer.experts->router.correction = is_corrected;
      layer.ffn_norms.after = layer.ffn_norms.before;
    } else {  // releases have one that is not used
      leave_out(model.modules, {"layers." + std::to_string(n) + ".post_mlp_layernorm"});
    }
  });
  model.modules.ffn_after_norm = "post_mlp_layernorm";
  return model;
}

// Queries of positions beyond the original context are scaled by them, which latent attention does
// not know: longer texts are refused.
FamilyModel describe_mistral4(const FamilySource& source) {
  const JsonView& config = source.config;
  Defaults defaults{.shape = {.n_layers = 36,
                              .hidden = 4096,
                              .n_heads = 32,
                              .n_kv_heads = 32,
                              .head_dim = 64,
                              .ffn_hidden = 12288,
                              .vocab = 131072,
                              .max_context = 1048576,
                              .norm_eps = 1e-6F},
                    .attention = {.q_rank = 1024,
                                  .kv_rank = 256,
                                  .rope_dim = 64,
                                  .nope_dim = 64,
                                  .value_head_dim = 128},
                    .dense_layers = 0,
                    .experts = 128,
                    .experts_used = 4,
                    .router = {.normalized = true}};
  FamilyModel model = describe(source, defaults, router_in(config, defaults.router));
  const auto& attention = model.config.layer_kinds[0].get<LatentAttentionConfig>();
  const auto head_dim = static_cast<double>(attention.q_head_dim());
  const JsonView rope = config.member("rope_parameters");
  // What is rotated is said as a share of a whole head, of which a fraction of an element is none.
  model.config.ropes = {rope_from_hf(
      config, {.head_dim = attention.q_head_dim(),
               .max_context = model.config.max_context,
               .rotated_share = (static_cast<double>(attention.rope_dim) + 0.5) / head_dim})};
  if (rope.get("llama_4_scaling_beta", 0.0) != 0) {
    const int64_t original = count_in(rope, "original_max_position_embeddings", kMaxContext);
    end_context(model.config, original, ContextEnd::scaled_queries);
  }
  use_joined_experts(model.modules, source.weights, base_in(source.weights, model.modules));
  return model;
}

FamilyModel describe_deepseek_v32(const FamilySource& source) {
  Defaults defaults{.shape = kV3Shape};
  defaults.shape.max_context = 163840;
  return describe_with_indexer(source, defaults);
}

FamilyModel describe_glm4_moe_lite(const FamilySource& source) {
  Defaults defaults{.shape = {.n_layers = 47,
                              .hidden = 2048,
                              .n_heads = 20,
                              .n_kv_heads = 20,
                              .head_dim = 64,
                              .ffn_hidden = 10240,
                              .vocab = 154880,
                              .max_context = 202752,
                              .norm_eps = 1e-5F},
                    .dense_layers = 1,
                    .experts = 64,
                    .experts_used = 4,
                    .expert_size = 1536};
  defaults.attention.q_rank = 768;
  defaults.attention.nope_dim = 192;
  defaults.attention.value_head_dim = 256;
  defaults.router.groups = defaults.router.groups_used = 1;
  defaults.router.scale = 1.8F;
  return describe_like_v3(source, defaults);
}

FamilyModel describe_youtu(const FamilySource& source) {
  constexpr PlainShape kOtherwise = {.n_layers = 32,
                                     .hidden = 2048,
                                     .n_heads = 16,
                                     .n_kv_heads = 16,
                                     .head_dim = 64,
                                     .ffn_hidden = 6144,
                                     .vocab = 128256,
                                     .max_context = 131072,
                                     .norm_eps = 1e-6F};
  FamilyModel model = latent_decoder(source.config, kOtherwise, Defaults{}.attention, true);
  model.config.layer_kinds[0].ffn.bias = false;  // whatever "mlp_bias" says
  return model;
}

// MiniCPM 3 (arXiv:2404.06395): with multipliers, folded into weights but for the embedding's.
FamilyModel describe_minicpm3(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_layers = 62,
                                     .hidden = 2560,
                                     .n_heads = 40,
                                     .head_dim = 32,
                                     .ffn_hidden = 6400,
                                     .vocab = 73448,
                                     .max_context = 32768,
                                     .norm_eps = 1e-5F};
  LatentAttentionConfig attention = {
      .q_rank = 768, .kv_rank = 256, .rope_dim = 32, .nope_dim = 64, .value_head_dim = 64};
  if (!config.find("v_head_dim")) {
    attention.value_head_dim = head_dim_of(config, shape_in(config, kOtherwise));
  }
  FamilyModel model = latent_decoder(config, kOtherwise, attention, true);
  model.modules.interleaved = false;
  const auto hidden = static_cast<float>(model.config.hidden);
  const auto of_class = [&](std::string_view key, double otherwise, float of_null) {
    return config.has(key) && !config.find(key) ? of_null : number_in(config, key, otherwise);
  };
  const float root = std::sqrt(static_cast<float>(model.config.n_layers()));
  model.config.embedding.multiplier = number_in(config, "scale_emb", 12);
  model.modules.residual_scale = of_class("scale_depth", 1.4, root) / root;
  model.modules.output_norm_scale = of_class("dim_model_base", 256, hidden) / hidden;
  return model;
}

FamilyModel describe_glm_moe_dsa(const FamilySource& source) {
  return describe_with_indexer(source, of_glm_5());
}

}  // namespace faststream::convert
