// LongCat Flash (arXiv:2509.01322): layers of two attentions and two feed-forwards, with experts
// that read what the first feed-forward reads and are added after the second; here two layers each.
#include <cmath>
#include <string>

#include "convert/families/family.h"

namespace faststream::convert {
namespace {

// Of an odd layer everything is called as of the even one before, but for a number.
void name_second_halves(const ModelConfig& config, const Checkpoint& /*weights*/,
                        TensorParts& parts) {
  for (auto& [id, of_tensor] : parts) {
    if (!is_of_layers(id.kind) || id.n % 2 == 0) continue;
    for (TensorPart& part : of_tensor) {
      for (const std::string module :
           {"self_attn.", "mlps.", "input_layernorm.", "post_attention_layernorm."}) {
        const size_t at = part.source.find(module);
        if (at != std::string::npos) part.source[at + module.size()] = '1';
      }
    }
  }
  static_cast<void>(config);
}

// A layer of one attention and a feed-forward.
void add_longcat_predictor(FamilyModel& model, const Checkpoint& weights) {
  model.predictors.names = {"model.mtp.", "mtp."};
  Modules modules = model.modules;
  modules.layers = "mtp.layers.";
  const std::string layer = modules.layers + "0.";
  if (weights.find(base_in(weights, modules) + layer + "eh_proj.weight") == nullptr) return;
  modules.embedding = "mtp.embed_tokens";
  modules.embedding_norm = layer + "enorm.m";
  modules.hidden_norm = layer + "hnorm.m";
  modules.hidden_projection = layer + "eh_proj";
  modules.output_norm = "mtp.norm";
  modules.attention_norm = "input_layernorm";
  modules.ffn_norm = "post_attention_layernorm";
  for (std::string* name :
       {&modules.latent_q_down, &modules.latent_q_norm, &modules.latent_q, &modules.latent_kv,
        &modules.latent_kv_norm, &modules.latent_kv_up, &modules.attention_out}) {
    constexpr std::string_view kFirst = "self_attn.0.";
    name->replace(0, kFirst.size(), "self_attn.");
  }
  modules.gate_up = {"transformer_layer.mlp.gate_proj", "transformer_layer.mlp.up_proj"};
  modules.down = "transformer_layer.mlp.down_proj";
  const LayerConfig* kind = find_attention_layer(model.config, false);
  static_cast<void>(add_predictor(*kind, 0, std::move(modules), model.config, model.predictors));
}

}  // namespace

FamilyModel describe_longcat_flash(const FamilySource& source) {
  const JsonView& config = source.config;
  refuse_if(config, "router_bias", "a bias of the router");
  constexpr int64_t kLayers = 28;
  PlainShape shape = {.n_layers = 2 * kLayers,
                      .hidden = 6144,
                      .n_heads = 64,
                      .head_dim = 64,
                      .ffn_hidden = 12288,
                      .vocab = 131072,
                      .max_context = 131072,
                      .norm_eps = 1e-5F,
                      .rope_theta = 1e7};
  shape = shape_in(config, shape);
  shape.n_layers = 2 * count_in(config, "num_layers", kMaxLayers / 2, kLayers);
  shape.ffn_hidden = count_in(config, "ffn_hidden_size", kMaxSize, shape.ffn_hidden);
  LatentAttentionConfig attention = latent_attention_in(
      config,
      {.q_rank = 1536, .kv_rank = 512, .rope_dim = 64, .nope_dim = 128, .value_head_dim = 128});
  if (attention.q_rank == 0) config.member("q_lora_rank").fail("must be a number");
  refuse_other(config, "qk_head_dim", attention.q_head_dim());
  shape.head_dim = attention.rope_dim;
  FamilyModel model{plain_decoder_in(config, shape)};
  attention.n_heads = shape.n_heads;
  attention.rope = 0;
  const int64_t count = count_in(config, "n_routed_experts", kMaxExperts, 512);
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    layer.name = n % 2 == 0 ? "first half" : "second half";
    layer.mixers = {attention};
    if (n % 2 != 0) return;
    ExpertsConfig& experts = layer.experts.emplace();
    experts.count = count;
    experts.identities = number_of(config, "zero_expert_num", kMaxExperts, 256);
    experts.deferred = true;
    experts.router.used = static_cast<int32_t>(count_in(config, "moe_topk", kMaxExperts, 12));
    experts.router.correction = true;
    experts.router.scale = number_in(config, "routed_scaling_factor", 6);
    experts.each = experts.shared = layer.ffn;
    experts.each.size = count_in(config, "expert_ffn_hidden_size", kMaxSize, 2048);
    layer.ffn.size = 0;
  });

  Modules& m = model.modules;
  const auto scale_of = [&](int64_t rank) {
    return std::sqrt(static_cast<float>(shape.hidden) / static_cast<float>(rank));
  };
  m.interleaved = true;
  for (int64_t n = 0; n < shape.n_layers; ++n) m.mixer_layers.push_back(n / 2);
  m.ffn_layers = m.mixer_layers;
  m.attention_norm = "input_layernorm.0";
  m.latent_q_down = "self_attn.0.q_a_proj";
  m.latent_q_norm = "self_attn.0.q_a_layernorm";
  m.latent_q_scale = scale_of(attention.q_rank);
  m.latent_q = "self_attn.0.q_b_proj";
  m.latent_kv = "self_attn.0.kv_a_proj_with_mqa";
  m.latent_kv_norm = "self_attn.0.kv_a_layernorm";
  m.latent_kv_scale = scale_of(attention.kv_rank);
  m.latent_kv_up = "self_attn.0.kv_b_proj";
  m.attention_out = "self_attn.0.o_proj";
  m.ffn_norm = "post_attention_layernorm.0";
  m.gate_up = m.shared_gate_up = {"mlps.0.gate_proj", "mlps.0.up_proj"};
  m.down = m.shared_down = "mlps.0.down_proj";
  m.router = "mlp.router.classifier";
  m.correction = "mlp.router.e_score_correction_bias";
  // Transformers stores matrices of experts that do nothing.
  const ExpertsConfig& experts = *model.config.layer(0).experts;
  for (int64_t e = count; e < experts.scored(); ++e) {
    const std::string expert = "mlp.experts." + std::to_string(e) + ".";
    leave_out(m, {expert + "gate_proj", expert + "up_proj"});
  }
  add_longcat_predictor(model, source.weights);
  model.finish = name_second_halves;
  return model;
}

}  // namespace faststream::convert
