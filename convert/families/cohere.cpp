// Command R (Cohere), Command R7B (Cohere 2), and Cohere 2 with experts: attention and feed-forward
// side by side.
#include <nlohmann/json.hpp>

#include "convert/families/routed_experts.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

FamilyModel cohere_in(const JsonView& config, double theta, int64_t head_dim = 0) {
  const PlainShape otherwise = {.n_layers = 40,
                                .hidden = 8192,
                                .n_heads = 64,
                                .head_dim = head_dim,
                                .ffn_hidden = 22528,
                                .vocab = 256000,
                                .max_context = 8192,
                                .rope_theta = theta};
  FamilyModel model{plain_decoder_in(config, shape_in(config, otherwise), {.tied = true})};
  set_norms(model.config, layer_norm_in(config, "layer_norm_eps", false));
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.parallel = true;
  layer.ffn_norms = {};
  set_attention_bias(layer, config.get("attention_bias", false));
  model.modules.interleaved = true;
  model.modules.output_norm_scale = number_in(config, "logit_scale", 0.0625);
  return model;
}

// One of two words.
bool is_first(const JsonView& config, std::string_view key, std::string_view first,
              std::string_view second) {
  const auto word = config.get<std::string>(key, std::string(first));
  if (word == first) return true;
  if (word == second) return false;
  config.member(key).fail("is " + in_quotes(word) + ", which is unknown");
}

}  // namespace

FamilyModel describe_cohere(const FamilySource& source) {
  const JsonView& config = source.config;
  FamilyModel model = cohere_in(config, 500000);
  if (config.get("use_qk_norm", false)) {
    AttentionConfig& attention = model.config.layer_kinds[0].attention();
    attention.qk_norm = QkNorm::head;
    attention.qk_norm_as = layer_norm_in(config, "layer_norm_eps", false);
    model.modules.norms_of_each_head = true;
  }
  return model;
}

FamilyModel describe_cohere2(const FamilySource& source) {
  const JsonView& config = source.config;
  FamilyModel model = cohere_in(config, 10000);
  constexpr int64_t kWindow = 4096;
  constexpr int64_t kPattern = 4;  // every fourth layer sees all, and rotates nothing
  const int64_t pattern =
      count_in(config, key_in(config, {"sliding_window_pattern", "_sliding_window_pattern"}),
               kMaxLayers, kPattern);
  set_windows(model.config, config, window_in(config, kWindow),
              [&](int64_t n) { return (n + 1) % pattern != 0; });
  for (LayerConfig& layer : model.config.layer_kinds) {
    if (layer.attention().window == 0) layer.attention().rope.reset();
  }
  return model;
}

// Cohere Compass: the text model, of whose types of layers each has a rotation of its own, or none.
FamilyModel describe_cohere_compass(const FamilySource& source) {
  const JsonView& config = source.config;
  nlohmann::json plain = config.value();  // without what differs from type to type
  plain.erase("rope_parameters");
  FamilyModel model = cohere_in(config.with(plain), 10000);
  model.modules.interleaved = false;
  model.modules.output_norm_scale = number_in(config, "logit_scale", 1);
  set_windows(model.config, config, window_in(config, 4096), [](int64_t) { return false; });
  set_ropes_of_types(model.config, config, nlohmann::json::object());
  return model;
}

FamilyModel describe_cohere2_moe(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr int64_t kHeadDim = 128;
  FamilyModel model = cohere_in(config, 10000, kHeadDim);
  if (config.find("rms_norm_eps")) {
    const NormConfig norm{.kind = NormKind::rms, .eps = number_in(config, "rms_norm_eps", 0)};
    model.config.layer_kinds[0].mixer_norms.before = model.config.output.norm = norm;
  }
  const int64_t n_layers = model.config.n_layers();
  const auto n_dense = number_of(config, "first_k_dense_replace", kMaxLayers, 0);
  const std::vector<bool> sparse = sparse_in(config, n_layers, n_dense);
  // The first layers have a pattern of their own, and then rotate wherever it is of one layer.
  const int64_t of_dense = count_in(config, "prefix_dense_sliding_window_pattern", kMaxLayers, 1);
  const int64_t of_sparse = count_in(config, "sliding_window_pattern", kMaxLayers, 4);
  constexpr int64_t kWindow = 4096;
  set_windows(model.config, config, window_in(config, kWindow), [&](int64_t n) {
    return n < n_dense ? (n + 1) % of_dense != 0 : (n - n_dense + 1) % of_sparse != 0;
  });
  const int64_t count = count_in(config, "num_experts", kMaxExperts, 8);
  const auto n_shared = number_of(config, "num_shared_experts", kMaxExperts, 0);
  const bool averages =
      is_first(config, "shared_expert_combination_strategy", "average", "sum") && n_shared > 0;
  const bool is_softmax = is_first(config, "expert_selection_fn", "softmax", "sigmoid");
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    const bool is_sparse = sparse[static_cast<size_t>(n)];
    if (layer.attention().window == 0 && (is_sparse || of_dense != 1)) {
      layer.name += " without rotation";
      layer.attention().rope.reset();
    }
    if (!is_sparse) {
      layer.ffn.size = count_in(config, "prefix_dense_intermediate_size", kMaxSize, layer.ffn.size);
      return;
    }
    layer.name += " with experts";
    ExpertsConfig& experts = use_experts(layer, config, count, 2);
    experts.router.score = is_softmax ? Router::Score::softmax : Router::Score::sigmoid;
    experts.router.normalized = is_softmax || config.get("norm_topk_prob", true);
    experts.router.scale = averages ? 0.5F : 1;
    experts.shared = experts.each;
    experts.shared.size *= n_shared;
  });
  name_routed_experts(model.modules);
  if (averages) model.modules.shared_scale = 0.5F;
  return model;
}

}  // namespace faststream::convert
