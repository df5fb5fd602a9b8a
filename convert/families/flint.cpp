// Flint: windows with a rotation in most layers, sinks in all, experts by sigmoids beside one that
// all tokens use.
#include <algorithm>
#include <vector>

#include "convert/families/family.h"

namespace faststream::convert {

FamilyModel describe_flint(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_layers = 49,
                                     .hidden = 2048,
                                     .n_heads = 32,
                                     .n_kv_heads = 4,
                                     .head_dim = 128,
                                     .ffn_hidden = 6144,
                                     .vocab = 150144,
                                     .max_context = 262144,
                                     .norm_eps = 1e-6F};
  const PlainShape shape = shape_in(config, kOtherwise);
  FamilyModel model{plain_decoder_in(config, shape)};
  LayerConfig& first = model.config.layer_kinds[0];
  set_attention_bias(first, config.get("attention_bias", false));
  first.attention().sinks = true;
  first.attention().qk_norm = QkNorm::head;
  first.attention().qk_norm_as = first.mixer_norms.before;
  set_windows(model.config, config, window_in(config, 513),
              [&](int64_t n) { return n >= 2 && n % 4 != 1 && n + 1 != shape.n_layers; });
  const int64_t step = count_in(config, "decoder_sparse_step", kMaxLayers, 1);
  std::vector<int64_t> dense = {0, 1};
  if (const auto list = config.find("mlp_only_layers")) {
    dense = list->integers<int64_t>(0, kMaxLayers);
  }
  const int64_t count = count_in(config, "num_experts", kMaxExperts, 256);
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    if (layer.attention().window == 0) layer.attention().rope.reset();
    if ((n + 1) % step != 0 || std::ranges::find(dense, n) != dense.end()) return;
    layer.name += " with experts";
    ExpertsConfig& experts = use_experts(layer, config, count, 6);
    experts.router.score = Router::Score::sigmoid;
    experts.router.normalized = config.get("norm_topk_prob", true);
    experts.shared = experts.each;
    experts.each.size = count_in(config, "moe_intermediate_size", kMaxSize, 512);
    experts.shared.size = count_in(config, "shared_expert_intermediate_size", kMaxSize, 1024);
  });
  model.modules.sinks = "self_attn.softmax_offset";
  return model;
}

}  // namespace faststream::convert
