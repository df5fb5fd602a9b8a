// Kimi Linear (arXiv:2510.26692): delta nets whose channels decay by themselves, and in some layers
// latent attention without rotation; experts behind the first layers.
#include <algorithm>

#include "convert/families/delta_net.h"
#include "convert/families/routed_experts.h"

namespace faststream::convert {
namespace {

// The layers with attention, which releases number from 1 on.
std::vector<bool> attending_layers(const JsonView& config, const std::optional<JsonView>& linear,
                                   int64_t n_layers) {
  const auto list = linear ? linear->find("full_attn_layers") : std::nullopt;
  if (list && !config.find("layer_types")) {
    std::vector<bool> attends(static_cast<size_t>(n_layers));
    for (const int64_t n : list->integers<int64_t>(1, n_layers)) {
      attends[static_cast<size_t>(n - 1)] = true;
    }
    return attends;
  }
  const std::vector<std::string> types =
      layer_types_in(config, n_layers, {"linear_attention", "full_attention"},
                     [](int64_t n) { return n > 0 && n % 4 == 0 ? 1 : 0; });
  std::vector<bool> attends;
  for (const std::string& type : types) attends.push_back(type == "full_attention");
  return attends;
}

// Transformers writes dense layers' feed-forwards under the name that those with experts have.
bool has_dense_beside_experts(const Checkpoint& weights) {
  return std::ranges::any_of(weights.tensors(), [](const auto& tensor) {
    return tensor.first.ends_with(".block_sparse_moe.gate_proj.weight");
  });
}

}  // namespace

FamilyModel describe_kimi_linear(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_layers = 27,
                                     .hidden = 2304,
                                     .n_heads = 32,
                                     .n_kv_heads = 32,
                                     .head_dim = 64,
                                     .ffn_hidden = 9216,
                                     .vocab = 163840,
                                     .max_context = 1048576,
                                     .norm_eps = 1e-5F};
  constexpr int64_t kTaps = 64;
  refuse_other(config, "mla_use_nope", true);
  refuse_other(config, "moe_router_activation_func", "sigmoid");
  refuse_other(config, "moe_layer_freq", 1);
  PlainShape shape = shape_in(config, kOtherwise);
  shape.max_context =
      count_in(config, key_in(config, {"model_max_length", "max_position_embeddings"}), kMaxContext,
               kOtherwise.max_context);
  FamilyModel model{plain_decoder(shape)};
  remove_rotation(model.config);
  model.config.output.tied = config.get("tie_word_embeddings", false);
  LayerConfig& first = model.config.layer_kinds[0];
  first.name = "attention";
  first.ffn.activation = activation_in(config, "hidden_act", "silu");
  LatentAttentionConfig attention = latent_attention_in(
      config, {.kv_rank = 512, .rope_dim = 64, .nope_dim = 128, .value_head_dim = 128});
  attention.n_heads = shape.n_heads;
  first.mixers = {attention};

  const auto linear = config.find("linear_attn_config");
  const auto size_in = [&](const char* key, const char* key_in_linear, int64_t most,
                           int64_t otherwise) {
    return linear && linear->find(key_in_linear) ? count_in(*linear, key_in_linear, most)
                                                 : count_in(config, key, most, otherwise);
  };
  const int64_t head_dim = size_in("linear_head_dim", "head_dim", kMaxHeadDim, 128);
  DeltaNetConfig mixer =
      channel_delta_net(size_in("linear_num_heads", "num_heads", kMaxHeads, 32), head_dim,
                        size_in("linear_conv_kernel_dim", "short_conv_kernel_size", kTaps, 4),
                        first.mixer_norms.before);
  mixer.convolution.activation = first.ffn.activation;
  mixer.decay_rank = mixer.gate_rank = head_dim;
  const std::vector<bool> attends = attending_layers(config, linear, shape.n_layers);
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    if (attends[static_cast<size_t>(n)]) return;
    layer.name = "delta net";
    layer.mixers = {mixer};
  });
  const int64_t dense = number_of(config, "first_k_dense_replace", kMaxLayers, 1);
  use_routed_experts(model.config, config, sparse_in(config, shape.n_layers, dense),
                     {.scale = 2.446});

  Modules& m = model.modules;
  name_channel_delta_net(m, mixer, "self_attn.");
  if (has_dense_beside_experts(source.weights)) {
    m.gate_up = {"block_sparse_moe.gate_proj", "block_sparse_moe.up_proj"};
    m.down = "block_sparse_moe.down_proj";
  }
  m.router = "block_sparse_moe.gate";
  m.correction = "block_sparse_moe.gate.e_score_correction_bias";
  m.experts = "block_sparse_moe.experts.";
  m.expert_gate_up = {"w1", "w3"};
  m.expert_down = "w2";
  m.shared_gate_up = {"block_sparse_moe.shared_experts.gate_proj",
                      "block_sparse_moe.shared_experts.up_proj"};
  m.shared_down = "block_sparse_moe.shared_experts.down_proj";
  model.finish = [](const ModelConfig& of_model, const Checkpoint& weights, TensorParts& parts) {
    split_convolutions(of_model, weights, parts);
    take_shapes_of_rates(weights, parts);
  };
  return model;
}

}  // namespace faststream::convert
