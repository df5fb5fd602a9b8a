// Qwen 2 (arXiv:2407.10671) and Qwen 3 (arXiv:2505.09388), dense and with experts.
#include <algorithm>

#include "convert/families/family.h"

namespace faststream {
namespace {

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
  layer.attention.qkv_bias = config.get("attention_bias", false);
  layer.attention.out_bias = layer.attention.qkv_bias;
  layer.attention.qk_norm = QkNorm::head;
  layer.attention.qk_norm_as = layer.attention_norms.before;
}

// Softmax over all experts, whose weights are divided by their sum where "norm_topk_prob" says so.
ExpertsConfig experts_in(const JsonView& config, const LayerConfig& layer, int64_t count,
                         int64_t used) {
  ExpertsConfig experts;
  experts.count = count;
  experts.router.used =
      static_cast<int32_t>(count_in(config, "num_experts_per_tok", kMaxExperts, used));
  experts.router.normalized = config.get("norm_topk_prob", false);
  experts.each = layer.ffn;
  experts.each.size = count_in(config, "moe_intermediate_size");
  return experts;
}

// Has experts in the layers that config.json does not name as dense.
void set_experts(ModelConfig& model, const JsonView& config, const ExpertsConfig& experts) {
  const int64_t step = count_in(config, "decoder_sparse_step", kMaxLayers, 1);
  std::vector<int64_t> dense;
  if (const auto list = config.find("mlp_only_layers")) {
    dense = list->integers<int64_t>(0, kMaxLayers);
  }
  change_layers(model, [&](int64_t n, LayerConfig& layer) {
    if ((n + 1) % step != 0 || std::ranges::find(dense, n) != dense.end()) return;
    layer.name += " with experts";
    layer.ffn.size = 0;
    layer.experts = experts;
  });
}

}  // namespace

FamilyModel describe_qwen2(const FamilySource& source) {
  const JsonView& config = source.config;
  FamilyModel model{plain_decoder_in(config, shape_in(config))};
  model.config.layer_kinds[0].attention.qkv_bias = true;
  set_last_windows(model.config, config);
  return model;
}

FamilyModel describe_qwen3(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr int64_t kHeadDim = 128;
  FamilyModel model{plain_decoder_in(config, shape_in(config, kHeadDim))};
  norm_each_head(config, model.config.layer_kinds[0]);
  set_last_windows(model.config, config);
  return model;
}

FamilyModel describe_qwen2_moe(const FamilySource& source) {
  const JsonView& config = source.config;
  FamilyModel model{plain_decoder_in(config, shape_in(config))};
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.attention.qkv_bias = config.get("qkv_bias", true);
  constexpr int64_t kUsed = 4;
  ExpertsConfig experts =
      experts_in(config, layer, count_in(config, "num_experts", kMaxExperts), kUsed);
  experts.shared = layer.ffn;
  experts.shared.size = count_in(config, "shared_expert_intermediate_size");
  experts.shared_gate = true;
  // Unlike Qwen 2: every other one of the first layers has the window.
  const auto end = config.get("max_window_layers", kMaxWindowLayers);
  set_windows(model.config, config, used_window(config),
              [&](int64_t n) { return n < end && (n + 1) % 2 != 0; });
  set_experts(model.config, config, experts);
  return model;
}

FamilyModel describe_qwen3_moe(const FamilySource& source) {
  const JsonView& config = source.config;
  FamilyModel model{plain_decoder_in(config, shape_in(config))};
  LayerConfig& layer = model.config.layer_kinds[0];
  norm_each_head(config, layer);
  layer.attention.window = used_window(config);
  const auto count =
      count_in(config, key_in(config, {"num_experts", "num_local_experts"}), kMaxExperts);
  constexpr int64_t kUsed = 8;
  set_experts(model.config, config, experts_in(config, layer, count, kUsed));
  return model;
}

}  // namespace faststream
