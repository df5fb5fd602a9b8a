// Granite 3 of IBM, dense and with experts: Llama with multipliers, but for that of scores and of
// the embedding folded into weights.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "convert/families/state_space.h"

namespace faststream::convert {
namespace {

// config.json's rotation with another base.
RopeConfig rope_with(const JsonView& config, const ModelConfig& model, double theta) {
  nlohmann::json changed = config.value();
  changed["rope_theta"] = theta;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (changed.contains(key) && changed[key].is_object()) changed[key].erase("rope_theta");
  }
  return rope_from_hf(config.with(changed), {.head_dim = model.layer(0).attention().head_dim,
                                             .max_context = model.max_context});
}

// Sinks, windows in all but every fourth layer, and bases of rotations, 0 for none.
void set_windows_and_sinks(ModelConfig& model, const JsonView& config) {
  model.layer_kinds[0].attention().sinks = true;
  set_windows(model, config, window_in(config, 128), [](int64_t n) { return n % 4 != 0; });
  const auto list = config.find("layer_rope_theta");
  if (!list) return;
  std::vector<double> thetas;
  for (const JsonView& theta : list->elements()) thetas.push_back(theta.as<double>());
  if (std::ssize(thetas) != model.n_layers()) list->fail("has not an entry for each layer");
  std::vector<double> known;
  std::vector<RopeConfig> ropes;
  for (const double theta : thetas) {
    if (theta == 0 || std::ranges::find(known, theta) != known.end()) continue;
    known.push_back(theta);
    ropes.push_back(rope_with(config, model, theta));
    ropes.back().name = "rope " + std::to_string(known.size());
  }
  change_layers(model, [&](int64_t n, LayerConfig& layer) {
    const double theta = thetas[static_cast<size_t>(n)];
    layer.attention().rope.reset();
    if (theta == 0) return;
    layer.attention().rope = static_cast<size_t>(std::ranges::find(known, theta) - known.begin());
  });
  model.ropes = std::move(ropes);
}

}  // namespace

FamilyModel describe_granite(const FamilySource& source) {
  FamilyModel model = describe_llama(source);
  const JsonView& config = source.config;
  model.config.embedding.multiplier = number_in(config, "embedding_multiplier", 1);
  model.config.layer_kinds[0].attention().scale = number_in(config, "attention_multiplier", 1);
  model.modules.residual_scale = number_in(config, "residual_multiplier", 1);
  const float scaling = number_in(config, "logits_scaling", 1);
  if (scaling == 0) config.member("logits_scaling").fail("is 0, by which logits are divided");
  model.modules.output_norm_scale = 1 / scaling;
  return model;
}

// The text model of Granite for Docling: its class has numbers of its own where config.json says
// nothing.
FamilyModel describe_granite_docling(const FamilySource& source) {
  nlohmann::json whole = {{"vocab_size", 133800},
                          {"hidden_size", 1024},
                          {"intermediate_size", 2048},
                          {"num_hidden_layers", 28},
                          {"num_attention_heads", 16},
                          {"num_key_value_heads", 4},
                          {"max_position_embeddings", 32768},
                          {"rms_norm_eps", 1e-5},
                          {"tie_word_embeddings", true},
                          {"embedding_multiplier", 12.0},
                          {"logits_scaling", 4.0},
                          {"residual_multiplier", 0.263},
                          {"attention_multiplier", 0.015625}};
  whole.update(source.config.value());
  return describe_granite({source.config.with(whole), source.weights});
}

FamilyModel describe_granitemoe(const FamilySource& source) {
  FamilyModel model = describe_granite(source);
  const JsonView& config = source.config;
  LayerConfig& layer = model.config.layer_kinds[0];
  const int64_t count = count_in(config, "num_local_experts", kMaxExperts, 8);
  use_experts(layer, config, count, 2).router.normalized = true;  // softmax over the chosen ones
  model.modules.router = "block_sparse_moe.router.layer";
  model.modules.experts_gate_up = {"block_sparse_moe.input_linear"};
  model.modules.experts_down = "block_sparse_moe.output_linear";
  return model;
}

FamilyModel describe_granite_swa(const FamilySource& source) {
  FamilyModel model = describe_granite(source);
  set_windows_and_sinks(model.config, source.config);
  return model;
}

FamilyModel describe_granitemoe_swa(const FamilySource& source) {
  FamilyModel model = describe_granitemoe(source);
  set_windows_and_sinks(model.config, source.config);
  Modules& m = model.modules;
  m.router = "block_sparse_moe.router";
  m.experts_gate_up = {"block_sparse_moe.experts.gate_up_proj"};
  m.experts_down = "block_sparse_moe.experts.down_proj";
  m.experts_are_tensors = true;
  return model;
}

FamilyModel describe_granitemoeshared(const FamilySource& source) {
  FamilyModel model = describe_granitemoe(source);
  ExpertsConfig& experts = *model.config.layer_kinds[0].experts;
  experts.shared = experts.each;
  experts.shared.size = number_of(source.config, "shared_intermediate_size", kMaxSize, 0);
  model.modules.shared_gate_up = {"shared_mlp.input_linear"};
  model.modules.shared_down = "shared_mlp.output_linear";
  return model;
}

// Granite 4: state spaces beside attention, experts beside a feed-forward that all tokens use, or
// that alone.
FamilyModel describe_granitemoehybrid(const FamilySource& source) {
  FamilyModel model = describe_granite(source);
  const JsonView& config = source.config;
  if (config.get<std::string>("position_embedding_type", "") != "rope") {
    remove_rotation(model.config);
  }
  LayerConfig& first = model.config.layer_kinds[0];
  first.ffn.size = count_in(config, "shared_intermediate_size", kMaxSize, 1024);
  const int64_t count = config.get("num_local_experts", 8);
  if (count > 0) {
    const FeedForwardConfig shared = first.ffn;
    first.ffn.size = count_in(config, "intermediate_size", kMaxSize, 11008);
    ExpertsConfig& experts =
        use_experts(first, config, count_in(config, "num_local_experts", kMaxExperts, 8), 2);
    experts.router.normalized = true;  // softmax over the chosen ones
    experts.shared = shared;
  }
  first.name = "attention";
  const StateSpaceConfig mixer =
      state_space_in(config, {}, model.config.hidden, first.mixer_norms.before);
  const std::string_view key = key_in(config, {"layers_block_type", "layer_types"});
  const std::vector<std::string> types = layer_types_in(
      config, model.config.n_layers(), {"mamba", "linear_attention", "attention", "full_attention"},
      [](int64_t) { return 0; }, key);
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    if (types[static_cast<size_t>(n)].ends_with("attention") &&
        types[static_cast<size_t>(n)] != "linear_attention") {
      return;
    }
    layer.name = "state space";
    layer.mixers = {mixer};
  });
  Modules& m = model.modules;
  m.router = "block_sparse_moe.router.layer";
  m.experts_gate_up = {"block_sparse_moe.input_linear"};
  m.experts_down = "block_sparse_moe.output_linear";
  m.gate_up = m.shared_gate_up = {"shared_mlp.input_linear"};
  m.down = m.shared_down = "shared_mlp.output_linear";
  name_state_space(m, mixer, "mamba.");
  return model;
}

}  // namespace faststream::convert
