// Facts about llama.cpp's architectures are from its src/models and conversion scripts.
#include "convert/gguf/gguf_hybrids.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "convert/families/delta_net.h"
#include "convert/families/family.h"
#include "convert/families/minimax.h"
#include "convert/families/nemotron_h.h"
#include "convert/families/qwen3_5.h"
#include "convert/families/state_space.h"
#include "convert/gguf/gguf_architectures.h"
#include "convert/gguf/gguf_experts.h"
#include "convert/gguf/gguf_layers.h"

namespace faststream::convert {
namespace {

int64_t taps_in(const GgufSource& source) {
  constexpr int64_t kMost = 64;
  return source.count("ssm.conv_kernel", kMost);
}

// What is left of "ssm.inner_size" for each of so many heads.
int64_t inner_head_dim(const GgufSource& source, int64_t heads) {
  constexpr std::string_view kName = "ssm.inner_size";
  const int64_t inner = source.count(kName, kMaxSize);
  if (inner % heads != 0) source.fail(kName, "is not a multiple of \"ssm.time_step_rank\"");
  return source.in_range(kName, inner / heads, kMaxHeadDim);
}

// The convolution's, the decay's and what else is called alike whatever the mixer.
void name_recurrence(Modules& m) {
  m.recurrent_convolution = "ssm_conv1d";
  m.recurrent_decay = "ssm_a";
  m.decay_is_rate = true;
  m.recurrent_step = "ssm_dt.bias";
  m.recurrent_skip = "ssm_d";
  m.recurrent_norm = "ssm_norm";
  m.recurrent_out = "ssm_out";
}

bool is_recurrent(const GgufSource& source, int64_t n) {
  return source.layer_has(n, "ssm_conv1d.weight");
}

// Layers that have a state, of a model whose other layers have attention.
void set_recurrent_layers(const GgufSource& source, const Mixer& mixer, const char* name,
                          ModelConfig& model) {
  model.layer_kinds[0].name = "attention";
  change_layers(model, [&](int64_t n, LayerConfig& layer) {
    if (!is_recurrent(source, n)) return;
    layer.name = name;
    layer.mixers = {mixer};
  });
}

DeltaNetConfig delta_net_in(const GgufSource& source, const NormConfig& norm) {
  DeltaNetConfig mixer;
  mixer.n_key_heads = source.count("ssm.group_count", kMaxHeads);
  mixer.n_value_heads = source.count("ssm.time_step_rank", kMaxHeads);
  mixer.key_head_dim = source.count("ssm.state_size", kMaxHeadDim);
  mixer.value_head_dim = inner_head_dim(source, mixer.n_value_heads);
  mixer.convolution = {.taps = taps_in(source), .activation = Activation::silu};
  mixer.norm = norm;
  if (mixer.n_value_heads % mixer.n_key_heads != 0) {
    source.fail("ssm.time_step_rank", "is not a multiple of \"ssm.group_count\"");
  }
  return mixer;
}

DeltaNetConfig set_delta_nets(const GgufSource& source, GgufFamilyModel& model) {
  LayerConfig& first = model.config.layer_kinds[0];
  first.attention().output_gate = true;
  if (first.experts) first.experts->router.normalized = true;
  const DeltaNetConfig mixer = delta_net_in(source, first.mixer_norms.before);
  set_recurrent_layers(source, mixer, "delta net", model.config);
  name_recurrence(model.modules);
  return mixer;
}

// Rows of a module for each head of values, in their order; there they are by their number within
// the heads that share a key.
void add_rows_by_head(const std::vector<int64_t>& heads, const std::string& module, int64_t before,
                      int64_t rows, std::vector<RecurrentRows>& all) {
  const int64_t of = before + static_cast<int64_t>(heads.size()) * rows;
  if (before > 0) all.push_back({module, of, 0, before});
  for (const int64_t head : heads) all.push_back({module, of, before + head * rows, rows});
}

StateSpaceConfig state_space_in(const GgufSource& source, const NormConfig& norm) {
  StateSpaceConfig mixer;
  mixer.n_heads = source.count("ssm.time_step_rank", kMaxHeads);
  mixer.head_dim = inner_head_dim(source, mixer.n_heads);
  mixer.n_groups = source.count("ssm.group_count", kMaxHeads);
  mixer.state_size = source.count("ssm.state_size", kMaxHeadDim);
  mixer.convolution = {.taps = taps_in(source),
                       .bias = source.a_layer_has("ssm_conv1d.bias"),
                       .activation = Activation::silu};
  mixer.in_bias = source.a_layer_has("ssm_in.bias");
  mixer.out_bias = source.a_layer_has("ssm_out.bias");
  mixer.norm = norm;
  return mixer;
}

void name_state_spaces(const StateSpaceConfig& mixer, Modules& m) {
  name_state_space(m, mixer, "");
  for (auto* all : {&m.recurrent_in, &m.recurrent_gates}) {
    for (RecurrentRows& rows : *all) rows.module = "ssm_in";
  }
  name_recurrence(m);
}

SelectiveScanConfig scan_in(const GgufSource& source) {
  return {.channels = source.count("ssm.inner_size", kMaxSize),
          .state_size = source.count("ssm.state_size", kMaxHeadDim),
          .step_rank = source.count("ssm.time_step_rank", kMaxSize),
          .convolution = {.taps = taps_in(source),
                          .bias = source.a_layer_has("ssm_conv1d.bias"),
                          .activation = Activation::silu},
          .bias = source.a_layer_has("ssm_in.bias"),
          .norm = {}};
}

void name_scans(const SelectiveScanConfig& scan, Modules& m) {
  const int64_t gates = scan.step_rank + 2 * scan.state_size;
  m.recurrent_in = {{"ssm_in", 2 * scan.channels, 0, 2 * scan.channels}};
  m.recurrent_gates = {{"ssm_x", gates, 0, gates}};
  m.recurrent_gates_up = "ssm_dt";
  name_recurrence(m);
}

// Delta nets whose channels decay by themselves, in the layers that have strengths of writing; the
// others' attention is latent. `has_latents`: gates are made of latents as wide as a head.
DeltaNetConfig set_channel_delta_nets(const GgufSource& source,
                                      const LatentAttentionConfig& attention, bool has_latents,
                                      GgufFamilyModel& model) {
  LayerConfig& first = model.config.layer_kinds[0];
  first.mixers = {attention};
  first.name = "attention";
  const std::vector<int64_t> strengths = source.shape_in_layer("ssm_beta.weight");
  const int64_t heads = strengths.size() == 2 ? strengths[0] : 1;  // check_tensors() looks again
  const int64_t head_dim = source.count("kda.head_dim", kMaxHeadDim);
  DeltaNetConfig mixer = channel_delta_net(source.in_range("kda.head_dim", heads, kMaxHeads),
                                           head_dim, taps_in(source), first.mixer_norms.before);
  if (has_latents) mixer.decay_rank = mixer.gate_rank = head_dim;
  mixer.least_log_decay = static_cast<float>(source.number("kda.gate_lower_bound", 0));
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    if (!source.layer_has(n, "ssm_beta.weight")) return;
    layer.name = "delta net";
    layer.mixers = {mixer};
  });
  set_routers(source, model, {});
  Modules& m = model.modules;
  m.recurrent_in = {{"attn_q", mixer.k_dim(), 0, mixer.k_dim()},
                    {"attn_k", mixer.k_dim(), 0, mixer.k_dim()},
                    {"attn_v", mixer.v_dim(), 0, mixer.v_dim()}};
  name_recurrence(m);
  m.recurrent_out = m.attention_out;
  return mixer;
}

// Whose convolutions are tensors for queries, for keys and for values.
void use_three_convolutions(const ModelConfig& config, TensorParts& parts) {
  for (int64_t n = 0; n < config.n_layers(); ++n) {
    const auto* mixer = config.layer(n).find<DeltaNetConfig>();
    if (mixer == nullptr) continue;
    std::vector<TensorPart>& convolution = parts[{TensorKind::recurrent_convolution, n}];
    const TensorPart joined = convolution[0];
    convolution.clear();
    for (const auto& [name, channels] :
         {std::pair{"_q", mixer->k_dim()}, {"_k", mixer->k_dim()}, {"_v", mixer->v_dim()}}) {
      TensorPart part = joined;
      part.source.insert(part.source.rfind(".weight"), name);
      part.shape[0] = channels;
      convolution.push_back(std::move(part));
    }
  }
}

}  // namespace

// Files of the first converter have all of a delta net's first products in one.
void adjust_qwen3next(const GgufSource& source, GgufFamilyModel& model) {
  const DeltaNetConfig mixer = set_delta_nets(source, model);
  Modules& m = model.modules;
  if (source.a_layer_has("ssm_in.weight")) {
    name_products_by_head(mixer, "ssm_in", m);
  } else {
    const int64_t qkv = 2 * mixer.k_dim() + mixer.v_dim();
    m.recurrent_in = {{"attn_qkv", qkv, 0, qkv}, {"attn_gate", mixer.v_dim(), 0, mixer.v_dim()}};
  }
  name_gates_by_head(mixer, "ssm_ba", m);
}

void adjust_qwen35(const GgufSource& source, GgufFamilyModel& model) {
  const DeltaNetConfig mixer = set_delta_nets(source, model);
  Modules& m = model.modules;
  const int64_t sharing = mixer.n_value_heads / mixer.n_key_heads;  // a key
  for (int64_t head = 0; head < mixer.n_value_heads; ++head) {
    m.value_heads.push_back(head % sharing * mixer.n_key_heads + head / sharing);
  }
  const int64_t value = mixer.value_head_dim;
  add_rows_by_head(m.value_heads, "attn_qkv", 2 * mixer.k_dim(), value, m.recurrent_in);
  add_rows_by_head(m.value_heads, "attn_gate", 0, value, m.recurrent_in);
  add_rows_by_head(m.value_heads, "ssm_alpha", 0, 1, m.recurrent_gates);
  add_rows_by_head(m.value_heads, "ssm_beta", 0, 1, m.recurrent_gates);
}

// Delta nets whose channels decay by themselves, and latent attention without rotation.
void adjust_kimi_linear(const GgufSource& source, GgufFamilyModel& model) {
  LatentAttentionConfig attention = latent_attention_of(source, model);
  attention.rope.reset();
  remove_rotation(model.config);
  const DeltaNetConfig mixer = set_channel_delta_nets(source, attention, true, model);
  const int64_t heads = mixer.n_value_heads;
  Modules& m = model.modules;
  m.recurrent_gates = {{"ssm_beta", heads, 0, heads},
                       {"ssm_f_a", mixer.decay_rank, 0, mixer.decay_rank},
                       {"ssm_g_a", mixer.gate_rank, 0, mixer.gate_rank}};
  m.recurrent_gates_up = "ssm_f_b";
  m.recurrent_factors = "ssm_g_b";
  model.finish = use_three_convolutions;
}

// Ling 3: the same without latents of gates, and latent attention whose heads have gates. Rates of
// decays are above 0 there.
void adjust_bailingmoe3(const GgufSource& source, GgufFamilyModel& model) {
  for (const std::string_view name : {"swiglu_clamp_exp", "swiglu_clamp_shexp"}) {
    const std::vector<float> limits = source.metadata().numbers(source.key(name));
    if (std::ranges::all_of(limits, [](float limit) { return limit == 0; })) continue;
    source.fail(name, "asks for gates that are cut off, which are not supported");
  }
  if (source.has("rope.dimension_sections")) {
    source.fail("rope.dimension_sections",
                "asks for positions in pictures, which are not supported for this architecture");
  }
  if (!source.metadata().find_boolean(source.key("kda.safe_gate")).value_or(true)) {
    source.fail("kda.safe_gate", "is false, which llama.cpp does not run either");
  }
  LatentAttentionConfig attention = latent_attention_of(source, model);
  attention.head_gate = true;
  const DeltaNetConfig mixer = set_channel_delta_nets(source, attention, false, model);
  if (!(mixer.least_log_decay < 0)) source.fail("kda.gate_lower_bound", "is not below 0");
  const int64_t heads = mixer.n_value_heads;
  Modules& m = model.modules;
  m.latent_gate = "attn_gate";
  m.recurrent_in.push_back({"ssm_g_a", mixer.v_dim(), 0, mixer.v_dim()});
  m.recurrent_gates = {{"ssm_f_a", mixer.n_decays(), 0, mixer.n_decays()},
                       {"ssm_beta", heads, 0, heads}};
  std::map<std::string, std::shared_ptr<const std::vector<float>>> logarithms;
  for (int64_t n = 0; n < model.config.n_layers(); ++n) {
    if (model.config.layer(n).find<DeltaNetConfig>() == nullptr) continue;
    const std::string name = m.layers + std::to_string(n) + "." + m.recurrent_decay;
    auto rates = source.vector(name, heads);
    if (!rates) continue;  // check_tensors() says that it is missing
    for (float& rate : *rates) rate = std::log(rate);
    m.unused.push_back(name);
    logarithms[name] = std::make_shared<const std::vector<float>>(*std::move(rates));
  }
  model.finish = [logarithms](const ModelConfig& config, TensorParts& parts) {
    use_three_convolutions(config, parts);
    for (auto& [id, of_tensor] : parts) {
      if (id.kind != TensorKind::recurrent_decay) continue;
      TensorPart& part = of_tensor.at(0);
      const auto found = logarithms.find(part.source);
      if (found == logarithms.end()) continue;
      part = {.source = "", .shape = {static_cast<int64_t>(found->second->size())}};
      part.values = found->second;
    }
  };
}

void adjust_mamba(const GgufSource& source, GgufFamilyModel& model) {
  LayerConfig& layer = model.config.layer_kinds[0];
  SelectiveScanConfig scan = scan_in(source);
  if (source.metadata().find_boolean(source.key("ssm.dt_b_c_rms")).value_or(false)) {
    scan.norm = {.kind = NormKind::rms, .eps = 1e-6F};  // as Transformers; without weights
  }
  layer.mixers = {scan};
  layer.ffn = {};
  name_scans(scan, model.modules);
}

void adjust_jamba(const GgufSource& source, GgufFamilyModel& model) {
  SelectiveScanConfig scan = scan_in(source);
  scan.norm = model.config.layer_kinds[0].mixer_norms.before;
  set_recurrent_layers(source, scan, "selective scan", model.config);
  name_scans(scan, model.modules);
  model.modules.recurrent_gate_norms = {"ssm_dt_norm", "ssm_b_norm", "ssm_c_norm"};
}

void adjust_mamba2(const GgufSource& source, GgufFamilyModel& model) {
  LayerConfig& layer = model.config.layer_kinds[0];
  const StateSpaceConfig mixer = state_space_in(source, layer.mixer_norms.before);
  layer.mixers = {mixer};
  layer.ffn = {};
  name_state_spaces(mixer, model.modules);
}

void adjust_granite(const GgufSource& source, GgufFamilyModel& model) {
  model.config.embedding.multiplier = static_cast<float>(source.number("embedding_scale", 1));
  LayerConfig& layer = model.config.layer_kinds[0];
  AttentionConfig& attention = layer.attention();
  attention.scale = static_cast<float>(source.number("attention.scale", attention.scale));
  model.modules.residual_scale = static_cast<float>(source.number("residual_scale", 1));
  const double scale = source.number("logit_scale", 1);
  if (scale == 0) source.fail("logit_scale", "is 0, by which logits are divided");
  model.modules.output_norm_scale = static_cast<float>(1 / scale);
  if (layer.experts) layer.experts->router.normalized = true;
  // A switch of rotations: whoever wrote the file had no better name for it.
  if (!source.metadata().find_boolean(source.key("rope.scaling.finetuned")).value_or(true)) {
    remove_rotation(model.config);
  }
}

// Sinks, windows as a list says, and maybe layers without rotation.
void adjust_granite_swa(const GgufSource& source, GgufFamilyModel& model) {
  constexpr std::string_view kPattern = "attention.sliding_window_pattern";
  constexpr std::string_view kRotated = "attention.rope_pattern";
  adjust_granite(source, model);
  if (!source.has(kPattern)) source.fail(kPattern, "is missing");
  set_windows(source, model, 1);
  const std::vector<bool> rotated = source.metadata().booleans(source.key(kRotated));
  if (rotated.empty()) return;
  if (rotated.size() != model.config.layers.size()) {
    source.fail(kRotated, "has not an entry for each layer");
  }
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    if (rotated[static_cast<size_t>(n)]) return;
    layer.name += " without rotation";
    layer.attention().rope.reset();
  });
}

// Granite 4 and Bamba.
void adjust_granitehybrid(const GgufSource& source, GgufFamilyModel& model) {
  adjust_granite(source, model);
  const StateSpaceConfig mixer =
      state_space_in(source, model.config.layer_kinds[0].mixer_norms.before);
  set_recurrent_layers(source, mixer, "state space", model.config);
  name_state_spaces(mixer, model.modules);
  model.modules.interleaved_heads = true;  // though Bamba rotates a part
}

// All multipliers are folded into weights. Files have the norm before the feed-forward without the
// ending of a weight.
void adjust_falcon_h1(const GgufSource& source, GgufFamilyModel& model) {
  LayerConfig& layer = model.config.layer_kinds[0];
  const NormConfig norm = layer.mixer_norms.before;
  const bool normalizes = source.a_layer_has("ssm_norm.weight");
  const StateSpaceConfig mixer = state_space_in(source, normalizes ? norm : NormConfig{});
  layer.mixers.emplace_back(mixer);
  layer.mixer_norms.after = {};
  layer.ffn_norms.before = norm;
  Modules& m = model.modules;
  m.attention_after_norm = "";
  m.ffn_norm = "ffn_norm";
  name_state_spaces(mixer, m);
  model.finish = [](const ModelConfig&, TensorParts& parts) {
    for (auto& [id, of_tensor] : parts) {
      if (id.kind != TensorKind::ffn_norm) continue;
      std::string& name = of_tensor.at(0).source;
      name.erase(name.rfind(".weight"));
    }
  };
}

// What branches add to is scaled, and what they add is not.
void adjust_minimax_01(const GgufSource& source, GgufFamilyModel& model) {
  constexpr std::string_view kScale = "residual_scale";
  const MiniMaxFactors factors{.stream = static_cast<float>(source.number(kScale, 1))};
  if (!(factors.stream > 0)) source.fail(kScale, "is not above 0");
  if (!model.config.layer_kinds[0].experts) source.fail("expert_count", "is missing");
  MiniMaxShape shape{
      .is_linear = {}, .attention = factors, .linear_attention = factors, .ffn = factors};
  for (int64_t n = 0; n < model.config.n_layers(); ++n) {
    shape.is_linear.push_back(source.layer_has(n, "attn_qkv.weight"));
  }
  make_minimax(shape, model.config);
  Modules& m = model.modules;
  m.embedding_norm = m.layers + "0." + m.attention_norm;
  m.attention_stream_norm = m.ffn_norm;
  m.ffn_stream_norm = m.attention_norm;
  name_linear_attention(model.config, "attn_qkv", m);
  m.recurrent_norm = "attn_norm_2";
  m.recurrent_factors = "attn_gate";
  m.recurrent_out = m.attention_out;
  model.finish = [shape, m](const ModelConfig& of_model, TensorParts& parts) {
    finish_minimax(shape, m, of_model, parts);
  };
}

void adjust_nemotron_h(const GgufSource& source, GgufFamilyModel& model) {
  ModelConfig& config = model.config;
  set_routers(source, model, {});
  const LayerConfig& first = config.layer_kinds[0];
  NemotronBlocks blocks;
  blocks.state_space = state_space_in(source, first.mixer_norms.before);
  blocks.state_space.least_step = 0.001F;  // as Transformers; llama.cpp leaves it out
  blocks.feed_forward = first.ffn;
  const std::vector<int64_t> down = source.shape_in_layer("ffn_down.weight");
  if (down.size() == 2) blocks.feed_forward.size = down[1];
  if (first.experts) blocks.experts = *first.experts;
  const int64_t n_blocks = config.n_layers();
  for (int64_t n = 0; n < n_blocks; ++n) {
    const bool attends = source.layer_has(n, "attn_output.weight");
    const bool has_experts = source.layer_has(n, "ffn_gate_inp.weight");
    if (has_experts && !first.experts) {
      source.fail("expert_count", "is missing, though there are routers");
    }
    blocks.order.push_back(is_recurrent(source, n) ? NemotronBlock::state_space
                           : attends               ? NemotronBlock::attention
                           : has_experts           ? NemotronBlock::experts
                                                   : NemotronBlock::feed_forward);
  }
  if (!make_nemotron_h(blocks, config, model.modules)) {
    source.fail("block_count", "counts a feed-forward that follows no mixer");
  }
  model.modules.ffn_norm = model.modules.attention_norm;
  name_state_spaces(blocks.state_space, model.modules);
}

}  // namespace faststream::convert
