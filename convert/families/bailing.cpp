// Bailing (arXiv:2503.05139), whose models are called Ling and Ring: 1, 2, and hybrids.
#include <nlohmann/json.hpp>

#include "convert/families/delta_net.h"
#include "convert/families/routed_experts.h"

namespace faststream::convert {
namespace {

FamilyModel bailing_in(const FamilySource& source) {
  const JsonView& config = source.config;
  refuse_if(config, "norm_head", "an output matrix with normalized columns");
  refuse_if(config, "multi_gate", "routers of other kinds of input");
  FamilyModel model{plain_decoder_in(config, shape_in(config, {.max_context = 16384}))};
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.attention().out_bias = layer.ffn.bias = config.get("use_bias", false);
  layer.attention().qkv_bias = config.get("use_qkv_bias", false) || layer.ffn.bias;
  Modules& m = model.modules;
  m.embedding = "word_embeddings";
  m.qkv = {"attention.query_key_value"};
  m.attention_out = "attention.dense";
  m.q_norm = "attention.query_layernorm";
  m.k_norm = "attention.key_layernorm";
  m.correction = "mlp.gate.expert_bias";
  name_routed_experts(m);
  const int64_t n_layers = model.config.n_layers();
  use_routed_experts(
      model.config, config,
      sparse_in(config, n_layers, number_of(config, "first_k_dense_replace", kMaxLayers, 0)),
      {.shared = 0});
  use_predicting_layers(model, source.weights,
                        number_of(config, "num_nextn_predict_layers", kMaxLayers, 0));
  return model;
}

// Delta nets whose channels decay by themselves, and in the last layer of each group latent
// attention, whose heads have gates; so have layers behind the last whole group, or not.
FamilyModel hybrid_in(const FamilySource& source, bool rest_attends) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_layers = 42,
                                     .hidden = 2560,
                                     .n_heads = 32,
                                     .n_kv_heads = 32,
                                     .head_dim = 128,
                                     .ffn_hidden = 6144,
                                     .vocab = 157184,
                                     .max_context = 262144,
                                     .norm_eps = 1e-6F,
                                     .rope_theta = 6e6};
  constexpr int64_t kTaps = 64;
  constexpr int64_t kGroup = 6;
  constexpr double kLeastLogDecay = -5;
  PlainShape shape = shape_in(config, kOtherwise);
  shape.max_context =
      count_in(config, key_in(config, {"model_max_length", "max_position_embeddings"}), kMaxContext,
               kOtherwise.max_context);
  LatentAttentionConfig attention = latent_attention_in(
      config, {.kv_rank = 512, .rope_dim = 64, .nope_dim = 128, .value_head_dim = 128});
  attention.q_rank = 0;
  attention.n_heads = shape.n_heads;
  attention.rope = 0;
  attention.head_gate = true;
  const int64_t linear_head_dim = count_in(config, "linear_head_dim", kMaxHeadDim, shape.head_dim);
  shape.head_dim = attention.rope_dim;
  FamilyModel model{plain_decoder_in(config, shape)};
  LayerConfig& first = model.config.layer_kinds[0];
  first.name = "attention";
  first.mixers = {attention};
  DeltaNetConfig mixer = channel_delta_net(
      count_in(config, "linear_num_heads", kMaxHeads, shape.n_heads), linear_head_dim,
      count_in(config, "short_conv_kernel_size", kTaps, 4), first.mixer_norms.before);
  mixer.convolution.activation = first.ffn.activation;
  if (config.get("kda_safe_gate", true)) {
    mixer.least_log_decay = number_in(config, "kda_lower_bound", kLeastLogDecay);
  }
  const int64_t group = count_in(config, "layer_group_size", kMaxLayers, kGroup);
  const std::vector<std::string> types = layer_types_in(
      config, shape.n_layers, {"linear_attention", "full_attention"}, [&](int64_t n) {
        const bool is_rest = n >= shape.n_layers / group * group;
        return (n + 1) % group == 0 || (is_rest && rest_attends) ? 1 : 0;
      });
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    if (types[static_cast<size_t>(n)] == "full_attention") return;
    layer.name = "delta net";
    layer.mixers = {mixer};
  });
  const int64_t dense = number_of(config, "first_k_dense_replace", kMaxLayers, 2);
  use_routed_experts(model.config, config, sparse_in(config, shape.n_layers, dense),
                     {.scale = 2.5});

  Modules& m = model.modules;
  m.interleaved = true;
  m.embedding = "word_embeddings";
  m.latent_q_of_input = "attention.q_proj";
  m.latent_kv = "attention.kv_a_proj_with_mqa";
  m.latent_kv_norm = "attention.kv_a_layernorm";
  m.latent_kv_up = "attention.kv_b_proj";
  m.latent_gate = "attention.g_proj";
  m.attention_out = "attention.dense";
  m.correction = "mlp.gate.expert_bias";
  name_routed_experts(m);
  name_channel_delta_net(m, mixer, "attention.");
  m.recurrent_out = "attention.dense";
  use_predicting_layers(model, source.weights,
                        number_of(config, "num_nextn_predict_layers", kMaxLayers, 0));
  model.finish = split_convolutions;
  return model;
}

}  // namespace

FamilyModel describe_bailing_moe(const FamilySource& source) {
  FamilyModel model = bailing_in(source);
  for (LayerConfig& layer : model.config.layer_kinds) {
    if (!layer.experts) continue;
    layer.experts->router.score = Router::Score::softmax;
    layer.experts->router.correction = false;
  }
  return model;
}

FamilyModel describe_bailing_moe_v2(const FamilySource& source) {
  const JsonView& config = source.config;
  refuse_other(config, "use_qk_norm", true);
  refuse_other(config, "score_function", "sigmoid");
  refuse_other(config, "moe_router_enable_expert_bias", true);
  FamilyModel model = bailing_in(source);
  for (LayerConfig& layer : model.config.layer_kinds) {
    layer.attention().qk_norm = QkNorm::head;
    layer.attention().qk_norm_as = layer.mixer_norms.before;
    // Whatever "norm_topk_prob" says.
    if (layer.experts) layer.experts->router.normalized = layer.experts->router.used > 1;
  }
  return model;
}

FamilyModel describe_bailing_hybrid(const FamilySource& source) { return hybrid_in(source, false); }

// As the authors' code has it.
FamilyModel describe_bailing_moe_v3(const FamilySource& source) {
  const JsonView& config = source.config;
  refuse_other(config, "no_kda_lora", true);
  refuse_other(config, "gated_attention_proj_granularity_type", "head_wise");
  refuse_other(config, "score_function", "sigmoid");
  for (const char* key : {"expert_swiglu_limit_list", "share_expert_swiglu_limit_list"}) {
    const auto limits = config.find(key);
    if (!limits) continue;
    for (const JsonView& limit : limits->elements()) {
      if (!limit.value().is_null() && limit.value() != 0) limit.fail("asks for gates with a limit");
    }
  }
  return hybrid_in(source, true);
}

}  // namespace faststream::convert
