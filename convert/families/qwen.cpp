// Qwen 2 (arXiv:2407.10671) and Qwen 3 (arXiv:2505.09388), dense and with experts, and the text
// models of VL and Omni.
#include <algorithm>

#include "convert/families/family.h"

namespace faststream::convert {
namespace {

// Those without experts, which differ in head_dim.
constexpr PlainShape kDenseOtherwise = {.n_layers = 32,
                                        .hidden = 4096,
                                        .n_heads = 32,
                                        .n_kv_heads = 32,
                                        .ffn_hidden = 22016,
                                        .vocab = 151936,
                                        .max_context = 32768,
                                        .norm_eps = 1e-6F};
constexpr int64_t kMaxWindowLayers = 28;

// A window may be named and yet not be in use.
int64_t used_window(const JsonView& config) {
  return config.get("use_sliding_window", false) ? window_in(config, 4096) : 0;
}

// The layers from max_window_layers on have the window.
void set_last_windows(ModelConfig& model, const JsonView& config) {
  const auto first = config.get("max_window_layers", kMaxWindowLayers);
  set_windows(model, config, used_window(config), [&](int64_t n) { return n >= first; });
}

void norm_each_head(const JsonView& config, LayerConfig& layer) {
  set_attention_bias(layer, config.get("attention_bias", false));
  layer.attention().qk_norm = QkNorm::head;
  layer.attention().qk_norm_as = layer.mixer_norms.before;
}

// Has experts in the layers that config.json does not name as dense.
void set_experts(ModelConfig& model, const JsonView& config, int64_t count, int64_t used,
                 const FeedForwardConfig& shared) {
  const int64_t step = count_in(config, "decoder_sparse_step", kMaxLayers, 1);
  std::vector<int64_t> dense;
  if (const auto list = config.find("mlp_only_layers")) {
    dense = list->integers<int64_t>(0, kMaxLayers);
  }
  change_layers(model, [&](int64_t n, LayerConfig& layer) {
    if ((n + 1) % step != 0 || std::ranges::find(dense, n) != dense.end()) return;
    layer.name += " with experts";
    ExpertsConfig& experts = use_experts(layer, config, count, used);
    experts.router.normalized = config.get("norm_topk_prob", false);
    experts.each.size = count_in(config, "moe_intermediate_size");
    experts.shared = shared;
    experts.shared_gate = shared.size != 0;
  });
}

}  // namespace

FamilyModel describe_qwen2(const FamilySource& source) {
  const JsonView& config = source.config;
  FamilyModel model{plain_decoder_in(config, shape_in(config, kDenseOtherwise))};
  model.config.layer_kinds[0].attention().qkv_bias = true;
  set_last_windows(model.config, config);
  return model;
}

// The text model of Qwen 2 VL and 2.5 VL, whose releases have it at the top of config.json.
FamilyModel describe_qwen2_vl(const FamilySource& source) {
  FamilyModel model = describe_qwen2(source);
  model.modules.left_out = {"visual."};
  return model;
}

FamilyModel describe_qwen3(const FamilySource& source) {
  const JsonView& config = source.config;
  PlainShape otherwise = kDenseOtherwise;
  otherwise.head_dim = 128;
  FamilyModel model{plain_decoder_in(config, shape_in(config, otherwise))};
  norm_each_head(config, model.config.layer_kinds[0]);
  set_last_windows(model.config, config);
  return model;
}

FamilyModel describe_qwen2_moe(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.max_context = 32768, .norm_eps = 1e-6F};
  FamilyModel model{plain_decoder_in(config, shape_in(config, kOtherwise))};
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.attention().qkv_bias = config.get("qkv_bias", true);
  FeedForwardConfig shared = layer.ffn;
  shared.size = count_in(config, "shared_expert_intermediate_size");
  // Unlike Qwen 2: every other one of the first layers has the window.
  const auto end = config.get("max_window_layers", kMaxWindowLayers);
  set_windows(model.config, config, used_window(config),
              [&](int64_t n) { return n < end && (n + 1) % 2 != 0; });
  constexpr int64_t kUsed = 4;
  set_experts(model.config, config, count_in(config, "num_experts", kMaxExperts), kUsed, shared);
  return model;
}

FamilyModel describe_qwen3_moe(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_kv_heads = 4, .max_context = 32768, .norm_eps = 1e-6F};
  FamilyModel model{plain_decoder_in(config, shape_in(config, kOtherwise))};
  LayerConfig& layer = model.config.layer_kinds[0];
  norm_each_head(config, layer);
  layer.attention().window = used_window(config);
  const int64_t count =
      count_in(config, key_in(config, {"num_experts", "num_local_experts"}), kMaxExperts);
  constexpr int64_t kUsed = 8;
  set_experts(model.config, config, count, kUsed, {});
  return model;
}

// Of VL, whose weights are always normalised. One tensor has all experts, [experts, in, out] in
// releases, but what Transformers saves may be [experts, out, in].
FamilyModel describe_qwen3_vl_moe(const FamilySource& source) {
  FamilyModel model = describe_qwen3_moe(source);
  int64_t rows = 0;
  for (LayerConfig& layer : model.config.layer_kinds) {
    if (!layer.experts) continue;
    layer.experts->router.normalized = true;
    rows = layer.experts->each.up_dim();
  }
  Modules& m = model.modules;
  use_joined_experts(m, source.weights, base_in(source.weights, m));
  if (!m.experts_are_tensors) return model;
  for (const auto& [name, tensor] : source.weights.tensors()) {
    if (!name.ends_with("." + m.experts_gate_up.front()) || tensor.shape.size() != 3) continue;
    m.experts_are_transposed = tensor.shape[1] != rows || tensor.shape[2] != model.config.hidden;
  }
  return model;
}

}  // namespace faststream::convert
