// Facts about llama.cpp's architectures are from its src/models and conversion scripts.
#include "convert/gguf/gguf_experts.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "convert/families/family.h"
#include "convert/gguf/gguf_layers.h"

namespace faststream::convert {
namespace {

Router::Score score_in(const GgufSource& source, Router::Score otherwise) {
  constexpr std::string_view kName = "expert_gating_func";
  constexpr int64_t kSoftmax = 1;
  constexpr int64_t kSigmoid = 2;
  const int64_t function = source.metadata().find_integer(source.key(kName)).value_or(0);
  if (function == 0) return otherwise;
  if (function == kSoftmax) return Router::Score::softmax;
  if (function != kSigmoid) {
    source.fail(kName, "is another function of scores than softmax and sigmoid");
  }
  return Router::Score::sigmoid;
}

// The shapes of layers with experts are those of all others, so that these are set at once.
template <typename Change>
void change_experts(ModelConfig& model, const Change& change) {
  for (LayerConfig& layer : model.layer_kinds) {
    if (layer.experts) change(*layer.experts);
  }
}

}  // namespace

void set_routers(const GgufSource& source, GgufFamilyModel& model, const RouterDefaults& defaults) {
  change_experts(model.config, [&](ExpertsConfig& experts) {
    RouterConfig& router = experts.router;
    router.score = score_in(source, defaults.score);
    router.group_score = router.score == Router::Score::sigmoid ? Router::GroupScore::two_best
                                                                : Router::GroupScore::largest;
    router.groups = static_cast<int32_t>(source.count("expert_group_count", kMaxExperts, 1));
    const int64_t used = source.count("expert_group_used_count", kMaxExperts, 1);
    router.groups_used = std::min(router.groups, static_cast<int32_t>(used));
    router.normalized = source.metadata()
                            .find_boolean(source.key("expert_weights_norm"))
                            .value_or(defaults.normalized);
    const auto scale = static_cast<float>(source.number("expert_weights_scale", 1));
    router.scale = scale == 0 ? 1 : scale;  // 0 stands for none
  });
}

void adjust_routed(const GgufSource& source, GgufFamilyModel& model) {
  set_routers(source, model, {});
}

// Weights are normalized, whatever the metadata say, here and where softmax is used below.
void adjust_minimax_m2(const GgufSource& source, GgufFamilyModel& model) {
  set_routers(source, model, {});
  change_experts(model.config, [](ExpertsConfig& experts) { experts.router.normalized = true; });
}

void adjust_ernie4_5_moe(const GgufSource& /*source*/, GgufFamilyModel& model) {
  change_experts(model.config, [](ExpertsConfig& experts) { experts.router.normalized = true; });
}

void adjust_bailingmoe(const GgufSource& source, GgufFamilyModel& model) {
  set_routers(source, model, {.score = Router::Score::softmax, .normalized = false});
}

void adjust_exaone_moe(const GgufSource& source, GgufFamilyModel& model) {
  constexpr int64_t kPattern = 4;
  set_windows(source, model, kPattern);
  rotate_windows_alone(model.config);
  set_routers(source, model, {.normalized = false});
}

void adjust_afmoe(const GgufSource& source, GgufFamilyModel& model) {
  constexpr int64_t kPattern = 4;
  model.config.embedding.multiplier = std::sqrt(static_cast<float>(model.config.hidden));
  model.config.layer_kinds[0].attention().output_gate = true;
  model.modules.output_gate = "attn_gate";
  set_windows(source, model, kPattern);
  rotate_windows_alone(model.config);
  set_routers(source, model, {});
}

// Windowed layers have KV heads of their own, and values are narrower than keys.
void adjust_mimo2(const GgufSource& source, GgufFamilyModel& model) {
  constexpr std::string_view kKvHeads = "attention.head_count_kv";
  constexpr int64_t kPattern = 6;
  const int64_t v_head_dim = source.count("attention.value_length", kMaxHeadDim);
  const std::vector<int64_t> kv_heads = source.of_layers(kKvHeads);
  set_windows(source, model, kPattern);
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    AttentionConfig& attention = layer.attention();
    attention.n_kv_heads = source.in_range(kKvHeads, kv_heads[static_cast<size_t>(n)], kMaxHeads);
    attention.value_head_dim = v_head_dim;
    attention.sinks = source.layer_has(n, "attn_sinks.weight");
  });
  set_plain_rope_of_windows(source, model, source.number("rope.freq_base", 10000));
  model.modules.value_scale = static_cast<float>(source.number("attention.value_scale", 1));
  set_routers(source, model, {});
}

namespace {

// The heads of each layer, whose sums have gates: one for each, or for each of its elements.
void set_gated_heads(const GgufSource& source, GgufFamilyModel& model, Activation gate) {
  constexpr std::string_view kHeads = "attention.head_count";
  const std::vector<int64_t> n_heads = source.of_layers(kHeads);
  const std::vector<int64_t> gates = source.shape_in_layer("attn_gate.weight");
  const bool of_heads =
      gates.empty() || gates[0] < model.config.layer_kinds[0].attention().sums_dim();
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    AttentionConfig& attention = layer.attention();
    attention.n_heads = source.in_range(kHeads, n_heads[static_cast<size_t>(n)], kMaxHeads);
    attention.output_gate = true;
    attention.head_gate = of_heads;
    attention.gate = gate;
  });
  model.modules.output_gate = "attn_gate";
}

// Limits of gates by layer; 0 stands for none.
std::vector<float> limits_of(const GgufSource& source, std::string_view name, int64_t n_layers) {
  std::vector<float> limits = source.metadata().numbers(source.key(name));
  if (limits.empty()) limits.resize(static_cast<size_t>(n_layers));
  if (limits.size() < static_cast<size_t>(n_layers)) source.fail(name, "has too few numbers");
  return limits;
}

}  // namespace

void adjust_laguna(const GgufSource& source, GgufFamilyModel& model) {
  constexpr int64_t kPattern = 4;
  const int64_t n_layers = model.config.n_layers();
  set_windows(source, model, source.windowed_layers(n_layers, kPattern, FullLayer::first));
  set_gated_heads(source, model, Activation::softplus);
  if (window_of(source) > 0) {
    set_plain_rope_of_windows(source, model, source.number("rope.freq_base", 10000));
  }
  set_routers(source, model, {});
}

// Layers without a window rotate half of a head, by the first of the factors of all pairs.
void adjust_step35(const GgufSource& source, GgufFamilyModel& model) {
  constexpr std::string_view kFactor = "rope.scaling.factor";
  if (source.number(kFactor, 0) != 0) source.fail(kFactor, "asks for a rule that is not supported");
  ModelConfig& config = model.config;
  const double theta = source.number("rope.freq_base", 10000);
  const int64_t n_layers = config.n_layers();
  set_windows(source, model, 1);
  set_gated_heads(source, model, Activation::sigmoid);
  set_plain_rope_of_windows(source, model, theta);
  const auto factors = source.vector("rope_freqs.weight", config.ropes[0].dims() / 2);
  std::vector<float>& frequencies = config.ropes[0].frequencies;
  frequencies = plain_frequencies(theta, config.ropes[0].dims() / 2);
  for (size_t i = 0; factors && i < frequencies.size(); ++i) frequencies[i] /= (*factors)[i];
  set_routers(source, model, {});
  const std::vector<float> limits = limits_of(source, "swiglu_clamp_exp", n_layers);
  const std::vector<float> of_all = limits_of(source, "swiglu_clamp_shexp", n_layers);
  change_layers(config, [&](int64_t n, LayerConfig& layer) {
    const auto at = static_cast<size_t>(n);
    set_gate_limit(layer.ffn, of_all[at]);
    if (!layer.experts) return;
    set_gate_limit(layer.experts->each, limits[at]);
    set_gate_limit(layer.experts->shared, of_all[at]);
  });
}

void adjust_hunyuan_moe(const GgufSource& /*source*/, GgufFamilyModel& model) {
  model.config.layer_kinds[0].attention().qk_norm_after_rope = true;
  change_experts(model.config, [](ExpertsConfig& experts) { experts.router.normalized = true; });
}

// Chunks of 8192 positions in three of four layers; the others rotate nothing and scale queries. A
// window of 0 says that nothing of this is so.
void adjust_llama4(const GgufSource& source, GgufFamilyModel& model) {
  constexpr int64_t kPositions = 8192;
  constexpr int64_t kInterval = 4;
  constexpr int64_t kExpertsWithoutNorms = 128;  // Maverick
  const bool in_chunks = !source.has("attention.sliding_window") || window_of(source) != 0;
  const auto& experts = model.config.layer_kinds[0].experts;
  const bool has_norms = !experts || experts->count != kExpertsWithoutNorms;
  change_experts(model.config, [](ExpertsConfig& each) {
    each.router.score = Router::Score::sigmoid;
    each.router.weighs_input = true;
  });
  const std::vector<bool> windowed = source.windowed_layers(model.config.n_layers(), kInterval);
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    AttentionConfig& attention = layer.attention();
    layer.name = "plain";
    if (in_chunks && windowed[static_cast<size_t>(n)]) {
      layer.name = "chunked";
      attention.window = kPositions;
      attention.window_in_blocks = true;
    }
    if (in_chunks && (n + 1) % kInterval == 0) {
      layer.name += " without rotation";
      attention.rope.reset();
      attention.query_scaling = 0.1F;
      attention.query_scaling_from = kPositions;
      attention.query_scaling_ahead = 1;
    } else if (has_norms) {
      attention.qk_norm = QkNorm::head;
      attention.qk_norm_as = layer.mixer_norms.before;
      attention.qk_norm_after_rope = true;
    }
  });
  model.modules.q_norm = model.modules.k_norm = "";
}

// The mean of what experts and the shared one give. The first layers rotate in any case.
void adjust_cohere2moe(const GgufSource& source, GgufFamilyModel& model) {
  constexpr int64_t kPattern = 4;
  model.config.layer_kinds[0].parallel = true;
  model.modules.output_norm_scale = static_cast<float>(source.number("logit_scale", 1));
  set_routers(source, model, {.normalized = false});
  change_experts(model.config, [&](ExpertsConfig& experts) {
    if (experts.shared.size == 0) return;
    experts.router.scale *= 0.5F;
    model.modules.shared_scale = 0.5F;
  });
  set_windows(source, model, kPattern);
  const int64_t n_dense =
      source.metadata().find_integer(source.key("leading_dense_block_count")).value_or(0);
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    if (n < n_dense || layer.attention().window > 0) return;
    layer.name += " without rotation";
    layer.attention().rope.reset();
  });
}

void adjust_mellum(const GgufSource& source, GgufFamilyModel& model) {
  constexpr int64_t kPattern = 4;
  change_experts(model.config, [](ExpertsConfig& experts) { experts.router.normalized = true; });
  if (window_of(source) <= 0) return;
  set_windows(source, model, kPattern);
  set_plain_rope_of_windows(source, model, source.number("rope.freq_base", 10000));
}

}  // namespace faststream::convert
