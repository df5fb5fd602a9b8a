// Facts about llama.cpp's architectures are from its src/models and conversion scripts.
#include "convert/gguf/gguf_gemma4.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "convert/families/family.h"
#include "convert/families/gemma3n.h"

namespace faststream::convert {
namespace {

// Whole numbers that may be 0, and are where nothing is said.
int64_t size_in(const GgufSource& source, std::string_view name, int64_t most) {
  const int64_t size = source.metadata().find_integer(source.key(name)).value_or(0);
  if (size < 0 || size > most) source.fail(name, "is out of range");
  return size;
}

Gemma4Shape layers_in(const GgufSource& source, const ModelConfig& config, int64_t pattern) {
  const int64_t n_layers = config.n_layers();
  const std::vector<bool> windowed = source.windowed_layers(n_layers, pattern);
  const std::vector<int64_t> n_kv_heads =
      source.counts("attention.head_count_kv", n_layers, kMaxHeads);
  const std::vector<int64_t> ffn_sizes = source.counts("feed_forward_length", n_layers, kMaxSize);
  const int64_t wide = config.layer(0).attention().head_dim;
  const int64_t of_windowed = source.count("attention.key_length_swa", kMaxHeadDim, wide);
  Gemma4Shape shape;
  for (size_t n = 0; n < static_cast<size_t>(n_layers); ++n) {
    shape.layers.push_back({.windowed = windowed[n],
                            .head_dim = windowed[n] ? of_windowed : wide,
                            .n_kv_heads = n_kv_heads[n],
                            .ffn_size = ffn_sizes[n]});
  }
  shape.window = source.count("attention.sliding_window", kMaxContext);
  shape.n_own = n_layers - size_in(source, "attention.shared_kv_layers", n_layers - 1);
  shape.input_size = size_in(source, "embedding_length_per_layer_input", kMaxSize);
  if (const auto& experts = config.layer(0).experts) {
    shape.n_experts = experts->count;
    shape.experts_used = experts->router.used;
    shape.expert_size = experts->each.size;
  }
  return shape;
}

// Windowed layers' before that of others, which is there already.
void set_rope_of_windows(const GgufSource& source, int64_t head_dim, ModelConfig& config) {
  const double theta = source.number("rope.freq_base_swa", 10000);
  if (theta <= 0) source.fail("rope.freq_base_swa", "is not above 0");
  RopeConfig rope;
  rope.name = "windowed";
  rope.frequencies =
      plain_frequencies(theta, source.count("rope.dimension_count_swa", head_dim, head_dim));
  config.ropes.insert(config.ropes.begin(), std::move(rope));
}

// Those of both; files may hold keys and values of layers that have none.
void set_modules(const ModelConfig& config, Modules& m) {
  m.layer_inputs = "per_layer_token_embd";
  m.layer_inputs_projection = "per_layer_model_proj";
  m.layer_inputs_norm = "per_layer_proj_norm";
  m.layer_inputs_norm_scale = gemma4_input_scale();
  m.input_gate = "inp_gate";
  m.input_out = "proj";
  m.input_after_norm = "post_norm";
  for (int64_t n = 0; n < config.n_layers(); ++n) {
    if (!config.layer(n).attention().kv_of) continue;
    const std::string layer = m.layers + std::to_string(n) + ".";
    leave_out(m, {layer + "attn_k", layer + "attn_v", layer + "attn_k_norm"});
  }
}

void set_modules_of_gemma4(const GgufSource& source, const ModelConfig& config, Modules& m) {
  set_modules(config, m);
  m.router_norm = "ffn_gate_inp.scale";
  m.router_norm_scale = inverse_root(static_cast<double>(config.hidden));
  m.expert_scales = "ffn_down_exps.scale";
  m.experts_norm = "pre_ffw_norm_2";
  m.experts_after_norm = "post_ffw_norm_2";
  m.shared_gate_up = m.gate_up;
  m.shared_down = m.down;
  m.shared_after_norm = "post_ffw_norm_1";
  m.stream_scale = "layer_output_scale.weight";
  for (int64_t n = 0; n < config.n_layers(); ++n) {
    const bool has_values = source.layer_has(n, "attn_v.weight");
    if (config.layer(n).attention().window == 0 && !has_values) m.keys_as_values.insert(n);
  }
}

// A layer of which all gates stay has an infinite cutoff below them. Files that say nothing are as
// llama.cpp runs all.
std::vector<std::optional<float>> cutoffs_in(const GgufSource& source, int64_t n_layers) {
  constexpr std::string_view kName = "activation_sparsity_scale";
  constexpr size_t kSparseLayers = 10;
  constexpr float kOf95Percent = 1.6448534F;
  std::vector<std::optional<float>> cutoffs(static_cast<size_t>(n_layers));
  const std::vector<float> said = source.metadata().numbers(source.key(kName), true);
  if (!source.has(kName)) {
    std::fill_n(cutoffs.begin(), std::min(kSparseLayers, cutoffs.size()), kOf95Percent);
  } else if (said.size() != cutoffs.size()) {
    source.fail(kName, "has not a number for each layer");
  }
  for (size_t n = 0; n < said.size(); ++n) {
    if (!std::isinf(said[n])) cutoffs[n] = said[n];
  }
  return cutoffs;
}

void set_modules_of_gemma3n(const ModelConfig& config, Modules& m) {
  set_modules(config, m);
  m.altup_in = "altup_proj";
  m.altup_norm = "altup_router_norm";
  m.altup_gates = "altup_router";
  m.altup_gates_scale = gemma3n_gates_scale(config);
  m.altup_predict = "altup_predict_coef";
  m.altup_correct = "altup_correct_coef";
  m.altup_out = "altup_unembd_proj";
  m.laurel_in = "laurel_l";
  m.laurel_out = "laurel_r";
  m.laurel_norm = "laurel_post_norm";
  m.input_scale = "altup_correct_scale.weight";
}

// What is a matrix for each other stream elsewhere is one tensor here.
void join_streams(const ModelConfig& config, const Modules& m, TensorParts& parts) {
  for (auto& [id, of_tensor] : parts) {
    if (id.kind != TensorKind::altup_in && id.kind != TensorKind::altup_out) continue;
    const bool is_in = id.kind == TensorKind::altup_in;
    TensorPart all;
    all.source = (is_in ? m.altup_in : m.altup_out) + ".weight";
    all.shape = {config.altup.streams - 1, config.hidden, config.hidden};
    of_tensor = {std::move(all)};
  }
}

}  // namespace

void adjust_gemma3n(const GgufSource& source, GgufFamilyModel& model) {
  constexpr int64_t kPattern = 5;
  constexpr int64_t kStreams = 4;
  constexpr double kSoftCap = 30;
  if (size_in(source, "altup.active_idx", kMostParts) != 0) {
    source.fail("altup.active_idx", "is not 0, and another stream than the first is not supported");
  }
  ModelConfig& config = model.config;
  set_rope_of_windows(source, config.layer(0).attention().head_dim, config);
  config.output.soft_cap = static_cast<float>(source.number("final_logit_softcapping", kSoftCap));
  Gemma4Shape layers = layers_in(source, config, kPattern);
  layers.input_size = source.count("embedding_length_per_layer_input", kMaxSize);
  const std::vector<int64_t> laurel = source.shape_in_layer("laurel_l.weight");
  make_gemma3n(layers,
               {.streams = source.count("altup.num_inputs", kMostParts, kStreams),
                .laurel_rank = laurel.size() == 2 ? laurel[0] : 1,  // check_tensors() looks again
                .cutoffs = cutoffs_in(source, config.n_layers())},
               config);
  set_modules_of_gemma3n(config, model.modules);
  model.finish = [modules = model.modules](const ModelConfig& of_model, TensorParts& parts) {
    join_streams(of_model, modules, parts);
  };
}

void adjust_gemma4(const GgufSource& source, GgufFamilyModel& model) {
  constexpr int64_t kPattern = 6;
  const Gemma4Shape shape = layers_in(source, model.config, kPattern);
  set_rope_of_windows(source,
                      source.count("attention.key_length_swa", kMaxHeadDim,
                                   model.config.layer(0).attention().head_dim),
                      model.config);
  make_gemma4(shape, model.config);
  set_modules_of_gemma4(source, model.config, model.modules);
}

}  // namespace faststream::convert
