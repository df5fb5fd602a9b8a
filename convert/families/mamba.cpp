// Mamba (arXiv:2312.00752) and Falcon-Mamba, whose layers have no feed-forward, and Jamba
// (arXiv:2403.19887), whose layers do, or experts, and some of which have attention.
#include "convert/families/state_space.h"

namespace faststream::convert {
namespace {

/// The keys that config.json has for a selective scan's sizes.
struct ScanKeys {
  std::string_view state = "state_size";
  std::string_view taps = "conv_kernel";
  std::string_view expand = "expand";
  std::string_view rank = "time_step_rank";
  std::string_view convolution_bias = "use_conv_bias";
  std::string_view bias = "use_bias";
};

SelectiveScanConfig scan_in(const JsonView& config, const ScanKeys& keys, int64_t hidden) {
  constexpr int64_t kTaps = 64;
  constexpr int64_t kHiddenOfRank = 16;  // elements for one of the rank that is "auto"
  SelectiveScanConfig scan;
  scan.channels = count_in(config, keys.expand, kMaxHeads, 2) * hidden;
  scan.state_size = count_in(config, keys.state, kMaxHeadDim, 16);
  const auto rank = config.find(keys.rank);
  scan.step_rank = rank && rank->value().is_number() ? rank->as<int64_t>(1, kMaxSize)
                                                     : (hidden + kHiddenOfRank - 1) / kHiddenOfRank;
  scan.convolution = {.taps = count_in(config, keys.taps, kTaps, 4),
                      .bias = config.get(keys.convolution_bias, true),
                      .activation = activation_in(config, "hidden_act", "silu")};
  scan.bias = config.get(keys.bias, false);
  return scan;
}

// `prefix` begins the modules' names.
void name_scan(Modules& modules, const SelectiveScanConfig& scan, const std::string& prefix) {
  const int64_t gates = scan.step_rank + 2 * scan.state_size;
  modules.recurrent_in = {{prefix + "in_proj", 2 * scan.channels, 0, 2 * scan.channels}};
  modules.recurrent_convolution = prefix + "conv1d";
  modules.recurrent_gates = {{prefix + "x_proj", gates, 0, gates}};
  modules.recurrent_gates_up = prefix + "dt_proj";
  modules.recurrent_decay = prefix + "A_log";
  modules.recurrent_step = prefix + "dt_proj.bias";
  modules.recurrent_skip = prefix + "D";
  modules.recurrent_out = prefix + "out_proj";
}

// Layers that are a selective scan alone, whose latents may have a norm.
FamilyModel scans_alone(const JsonView& config, const NormConfig& of_latents) {
  constexpr int64_t kLayers = 32;
  constexpr int64_t kHidden = 768;
  constexpr int64_t kVocab = 50280;
  // Nothing in it depends on a length, and config.json names none.
  constexpr int64_t kContext = int64_t{1} << 20;
  FamilyModel model{
      plain_decoder({.n_layers = count_in(config, "num_hidden_layers", kMaxLayers, kLayers),
                     .hidden = count_in(config, "hidden_size", kMaxSize, kHidden),
                     .n_heads = 1,
                     .n_kv_heads = 1,
                     .head_dim = 2,
                     .vocab = count_in(config, "vocab_size", kMaxSize, kVocab),
                     .max_context = kContext})};
  const NormConfig norm{.kind = NormKind::rms,
                        .eps = number_in(config, "layer_norm_epsilon", 1e-5)};
  SelectiveScanConfig scan = scan_in(config, {}, model.config.hidden);
  scan.norm = of_latents;
  model.config.ropes.clear();
  model.config.output = {.norm = norm, .tied = config.get("tie_word_embeddings", true)};
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.mixer_norms.before = norm;
  layer.mixers = {scan};
  layer.ffn_norms = {};
  layer.ffn = {};
  Modules& m = model.modules;
  m.base = "backbone.";
  m.embedding = "embeddings";
  m.attention_norm = "norm";
  m.output_norm = "norm_f";
  name_scan(m, scan, "mixer.");
  return model;
}

}  // namespace

FamilyModel describe_mamba(const FamilySource& source) {
  FamilyModel model = scans_alone(source.config, {});
  // The first releases call it so.
  const bool is_old = source.weights.find("backbone.embedding.weight") != nullptr;
  if (is_old) model.modules.embedding = "embedding";
  return model;
}

FamilyModel describe_falcon_mamba(const FamilySource& source) {
  const float eps = number_in(source.config, "mixer_rms_eps", 1e-6);
  return scans_alone(source.config, {.kind = NormKind::rms, .eps = eps});
}

FamilyModel describe_jamba(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_layers = 32,
                                     .hidden = 4096,
                                     .n_heads = 32,
                                     .n_kv_heads = 8,
                                     .ffn_hidden = 14336,
                                     .vocab = 65536,
                                     .max_context = 262144,
                                     .norm_eps = 1e-6F};
  FamilyModel model{plain_decoder_in(config, shape_in(config, kOtherwise))};
  remove_rotation(model.config);
  LayerConfig& first = model.config.layer_kinds[0];
  first.name = "attention";
  const ScanKeys keys{.state = "mamba_d_state",
                      .taps = "mamba_d_conv",
                      .expand = "mamba_expand",
                      .rank = "mamba_dt_rank",
                      .convolution_bias = "mamba_conv_bias",
                      .bias = "mamba_proj_bias"};
  SelectiveScanConfig scan = scan_in(config, keys, model.config.hidden);
  scan.norm = first.mixer_norms.before;
  const auto is_one_of = [&](const char* period, const char* offset, int64_t period_otherwise,
                             int64_t offset_otherwise) {
    return [every = count_in(config, period, kMaxLayers, period_otherwise),
            from = number_of(config, offset, kMaxLayers, offset_otherwise)](int64_t n) {
      return n % every == from;
    };
  };
  const auto attends = is_one_of("attn_layer_period", "attn_layer_offset", 8, 4);
  const auto is_sparse = is_one_of("expert_layer_period", "expert_layer_offset", 2, 1);
  const int64_t n_experts = count_in(config, "num_experts", kMaxExperts, 16);
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    if (!attends(n)) {
      layer.name = "selective scan";
      layer.mixers = {scan};
    }
    if (n_experts == 1 || !is_sparse(n)) return;
    layer.name += " with experts";
    use_experts(layer, config, n_experts, 2);
  });
  Modules& m = model.modules;
  m.ffn_norm = "pre_ff_layernorm";
  m.gate_up = {"feed_forward.gate_proj", "feed_forward.up_proj"};
  m.down = "feed_forward.down_proj";
  m.router = "feed_forward.router";
  m.experts = "feed_forward.experts.";
  m.output_norm = "final_layernorm";
  name_scan(m, scan, "mamba.");
  m.recurrent_gate_norms = {"mamba.dt_layernorm", "mamba.b_layernorm", "mamba.c_layernorm"};
  return model;
}

}  // namespace faststream::convert
