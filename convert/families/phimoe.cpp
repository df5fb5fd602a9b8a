// Phi 3.5 MoE (arXiv:2404.14219), whose experts are chosen by SparseMixer (arXiv:2409.12136).
#include "convert/families/family.h"

namespace faststream::convert {
namespace {

// Its LongRoPE has factors of cosines and sines of its own, one for short texts and one for long.
void set_rope_factors(const JsonView& config, RopeConfig& rope) {
  if (rope.long_frequencies.empty()) return;
  const bool is_old = config.find("rope_scaling").has_value();
  const JsonView members = config.member(is_old ? "rope_scaling" : "rope_parameters");
  const float factor = number_in(members, "short_mscale", rope.attention_factor);
  if (number_in(members, "long_mscale", rope.attention_factor) != factor) {
    members.fail("has a \"long_mscale\" that is not \"short_mscale\", which is not supported");
  }
  rope.attention_factor = factor;
}

}  // namespace

FamilyModel describe_phimoe(const FamilySource& source) {
  const JsonView& config = source.config;
  refuse_other(config, "num_experts_per_tok", 2);  // all that a sparse mixer chooses there
  constexpr PlainShape kOtherwise = {.n_layers = 32,
                                     .hidden = 4096,
                                     .n_heads = 32,
                                     .n_kv_heads = 8,
                                     .ffn_hidden = 6400,
                                     .vocab = 32064,
                                     .max_context = 131072,
                                     .norm_eps = 1e-5F,
                                     .rope_theta = 1e6};
  FamilyModel model{plain_decoder_in(config, shape_in(config, kOtherwise))};
  set_norms(model.config, layer_norm_in(config, "rms_norm_eps"));
  set_rope_factors(config, model.config.ropes[0]);
  model.config.output.bias = config.get("lm_head_bias", false);
  LayerConfig& layer = model.config.layer_kinds[0];
  set_attention_bias(layer, config.get("attention_bias", false));
  layer.attention().window = window_in(config, 0);
  const int64_t count = count_in(config, "num_local_experts", kMaxExperts, 16);
  ExpertsConfig& experts = use_experts(layer, config, count, 2);
  experts.router.score = Router::Score::sparse_mixer;
  experts.router.margin = 2 * number_in(config, "router_jitter_noise", 0.01);
  Modules& m = model.modules;
  m.router = "block_sparse_moe.gate";
  m.experts = "block_sparse_moe.experts.";
  m.expert_gate_up = {"w1", "w3"};
  m.expert_down = "w2";
  return model;
}

}  // namespace faststream::convert
