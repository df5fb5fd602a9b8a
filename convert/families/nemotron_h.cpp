// Nemotron-H (arXiv:2504.03624), dense and with experts: its layers are a state space, attention
// without rotation, a feed-forward or experts alone, each with a norm before it.
#include "convert/families/nemotron_h.h"

#include <algorithm>

#include "convert/families/state_space.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

using Block = NemotronBlock;

Block block_named(const JsonView& list, std::string_view name) {
  if (name == "mamba" || name == "linear_attention" || name == "M") return Block::state_space;
  if (name == "attention" || name == "full_attention" || name == "*") return Block::attention;
  if (name == "mlp" || name == "-") return Block::feed_forward;
  if (name == "moe" || name == "E") return Block::experts;
  list.fail("has " + in_quotes(name) + ", a type of layers that is not supported");
}

std::vector<Block> blocks_in(const JsonView& config) {
  std::vector<Block> blocks;
  const std::string_view key = key_in(config, {"layers_block_type", "layer_types"});
  if (const auto list = config.find(key)) {
    for (const JsonView& each : list->elements()) {
      blocks.push_back(block_named(each, each.as<std::string>()));
    }
  } else {
    const JsonView pattern = config.member("hybrid_override_pattern");
    for (const char block : pattern.as<std::string>()) {
      blocks.push_back(block_named(pattern, {&block, 1}));
    }
  }
  return blocks;
}

ExpertsConfig experts_in(const JsonView& config, const FeedForwardConfig& ffn) {
  refuse_if_present(config, "moe_latent_size", "experts of another width");
  ExpertsConfig experts;
  experts.count = count_in(config, "n_routed_experts", kMaxExperts, 8);
  experts.router.used =
      static_cast<int32_t>(count_in(config, "num_experts_per_tok", kMaxExperts, 2));
  experts.router.score = Router::Score::sigmoid;
  experts.router.correction = true;
  experts.router.groups = static_cast<int32_t>(count_in(config, "n_group", kMaxExperts, 1));
  experts.router.groups_used = static_cast<int32_t>(count_in(config, "topk_group", kMaxExperts, 1));
  experts.router.normalized = config.get("norm_topk_prob", true);
  experts.router.scale = number_in(config, "routed_scaling_factor", 1);
  experts.each = experts.shared = ffn;
  experts.each.size = count_in(config, "moe_intermediate_size", kMaxSize, 7688);
  experts.shared.size = count_in(config, "moe_shared_expert_intermediate_size", kMaxSize, 7688);
  return experts;
}

}  // namespace

bool make_nemotron_h(const NemotronBlocks& blocks, ModelConfig& model, Modules& modules) {
  const LayerConfig attention = model.layer_kinds[0];
  std::vector<LayerConfig> layers;
  for (size_t n = 0; n < blocks.order.size(); ++n) {
    const Block block = blocks.order[n];
    if (block == Block::state_space || block == Block::attention) {
      LayerConfig& layer = layers.emplace_back(attention);
      layer.name = block == Block::attention ? "attention" : "state space";
      if (block == Block::state_space) layer.mixers = {blocks.state_space};
      layer.ffn_norms = {};
      layer.ffn = {};
      layer.experts.reset();
      modules.mixer_layers.push_back(static_cast<int64_t>(n));
      modules.ffn_layers.push_back(-1);
      continue;
    }
    if (layers.empty() || modules.ffn_layers.back() >= 0) return false;
    LayerConfig& layer = layers.back();
    modules.ffn_layers.back() = static_cast<int64_t>(n);
    layer.ffn_norms.before = attention.mixer_norms.before;
    if (block == Block::experts) {
      layer.name += " with experts";
      layer.experts = blocks.experts;
    } else {
      layer.name += " with feed-forward";
      layer.ffn = blocks.feed_forward;
    }
  }
  set_layers(model, std::move(layers));
  return true;
}

namespace {

// Attention and experts, which are layers of their own there.
void add_nemotron_predictor(FamilyModel& model, const NemotronBlocks& blocks,
                            const Checkpoint& weights) {
  model.predictors.names = {"mtp."};
  const auto attends = std::ranges::find_if(model.config.layer_kinds, [](const LayerConfig& layer) {
    return layer.find<AttentionConfig>() != nullptr;
  });
  if (attends == model.config.layer_kinds.end() || blocks.experts.count == 0 ||
      weights.find("mtp.layers.0.eh_proj.weight") == nullptr) {
    return;
  }
  LayerConfig layer = *attends;
  layer.ffn = {};
  layer.ffn_norms.before = layer.mixer_norms.before;
  layer.experts = blocks.experts;
  Modules modules = model.modules;
  modules.base = "mtp.";
  modules.embedding_norm = "layers.0.enorm";
  modules.hidden_norm = "layers.0.hnorm";
  modules.hidden_projection = "layers.0.eh_proj";
  modules.output_norm = "layers.1.final_layernorm";
  if (!add_predictor(layer, 0, std::move(modules), model.config, model.predictors)) return;
  model.predictors.each.back().ffn_layers = {1};
}

}  // namespace

FamilyModel describe_nemotron_h(const FamilySource& source) {
  const JsonView& config = source.config;
  const std::vector<Block> blocks = blocks_in(config);
  constexpr PlainShape kOtherwise = {.n_layers = 1,
                                     .hidden = 4096,
                                     .n_heads = 32,
                                     .n_kv_heads = 8,
                                     .head_dim = 128,
                                     .ffn_hidden = 21504,
                                     .vocab = 131072,
                                     .max_context = 4096};
  PlainShape shape = shape_in(config, kOtherwise);
  shape.norm_eps = number_in(config, "layer_norm_epsilon", 1e-5);
  FamilyModel model{plain_decoder(shape)};
  remove_rotation(model.config);
  model.config.output.tied = config.get("tie_word_embeddings", false);
  const LayerConfig& attention = model.config.layer_kinds[0];
  const StateSpaceKeys keys{
      .heads = "mamba_num_heads",
      .head_dim = "mamba_head_dim",
      .groups = key_in(config, {"mamba_n_groups", "n_groups"}),
      .state = "ssm_state_size",
      .taps = key_in(config, {"mamba_d_conv", "conv_kernel"}),
      .expand = key_in(config, {"mamba_expand", "expand"}),
      .convolution_bias = key_in(config, {"mamba_conv_bias", "use_conv_bias"}),
      .bias = "use_bias",
      .activation = "mamba_hidden_act",
      .groups_otherwise = 8,
      .state_otherwise = 128};
  StateSpaceConfig mixer = state_space_in(config, keys, shape.hidden, attention.mixer_norms.before);
  mixer.least_step = number_in(config, "time_step_min", 0.001);
  mixer.most_step.reset();
  FeedForwardConfig ffn = attention.ffn;
  ffn.gated = false;
  ffn.activation = activation_in(config, "mlp_hidden_act", "relu2");
  ffn.bias = config.get("mlp_bias", false);

  NemotronBlocks all{.order = blocks, .state_space = mixer, .feed_forward = ffn, .experts = {}};
  if (std::ranges::find(blocks, Block::experts) != blocks.end()) {
    all.experts = experts_in(config, ffn);
  }
  Modules& m = model.modules;
  if (!make_nemotron_h(all, model.config, m)) {
    config.fail("a feed-forward that follows no mixer is not supported");
  }
  m.base = "backbone.";
  m.embedding = "embeddings";
  m.attention_norm = m.ffn_norm = "norm";
  m.qkv = {"mixer.q_proj", "mixer.k_proj", "mixer.v_proj"};
  m.attention_out = "mixer.o_proj";
  m.gate_up = {"mixer.up_proj"};
  m.down = "mixer.down_proj";
  m.router = "mixer.gate";
  m.correction = "mixer.gate.e_score_correction_bias";
  m.experts = "mixer.experts.";
  m.expert_gate_up = {"up_proj"};
  m.shared_gate_up = {"mixer.shared_experts.up_proj"};
  m.shared_down = "mixer.shared_experts.down_proj";
  m.output_norm = "norm_f";
  name_state_space(m, mixer, "mixer.");
  add_nemotron_predictor(model, all, source.weights);
  return model;
}

}  // namespace faststream::convert
