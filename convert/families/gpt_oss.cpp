// gpt-oss (arXiv:2508.10925). Its experts come in MXFP4, or as plain matrices [in, out].
#include "convert/families/family.h"

namespace faststream::convert {
namespace {

// Gates and ups lie row by row in turn; biases have names of their own.
void set_experts(const ModelConfig& config, const Checkpoint& weights, TensorParts& parts) {
  const ExpertsConfig& experts = *config.layer(0).experts;
  const int64_t count = experts.count;
  const int64_t size = experts.each.size;
  for (int64_t n = 0; n < config.n_layers(); ++n) {
    const std::string from = "model.layers." + std::to_string(n) + ".mlp.experts.";
    // The tensor of all experts: [count, rows, cols], or with the last two swapped.
    const auto tensor = [&](const std::string& name, int64_t rows, int64_t cols) {
      TensorPart part{.source = from + name, .shape = {count, rows, cols}};
      const SourceTensor* found = weights.find(part.source);
      if (found == nullptr || found->scaling) return part;
      part.shape = {count, cols, rows};
      part.transposed = true;
      return part;
    };
    const TensorPart gate_up = tensor("gate_up_proj", 2 * size, config.hidden);
    const TensorPart gate_up_bias{.source = from + "gate_up_proj_bias", .shape = {count, 2 * size}};
    std::vector<TensorPart> rows;
    std::vector<TensorPart> biases;
    for (int64_t first = 0; first < 2 * size * count; first += 2 * size) {
      for (const int64_t is_up : {0, 1}) {
        for (auto [part, list] : {std::pair(gate_up, &rows), std::pair(gate_up_bias, &biases)}) {
          part.first_row = first + is_up;
          part.row_step = 2;
          part.n_rows = size;
          list->push_back(std::move(part));
        }
      }
    }
    const TensorId up{TensorKind::experts_gate_up, n};
    const TensorId down{TensorKind::experts_down, n};
    parts[up] = std::move(rows);
    parts[bias_of(up)] = std::move(biases);
    parts[down] = {tensor("down_proj", config.hidden, size)};
    parts[bias_of(down)] = {{.source = from + "down_proj_bias", .shape = {count, config.hidden}}};
  }
}

}  // namespace

FamilyModel describe_gpt_oss(const FamilySource& source) {
  const JsonView& config = source.config;
  refuse_other(config, "swiglu_alpha", 1.702);
  constexpr PlainShape kOtherwise = {.n_kv_heads = 8,
                                     .head_dim = 64,
                                     .max_context = 131072,
                                     .norm_eps = 1e-5F,
                                     .rope_theta = 150000};
  FamilyModel model{plain_decoder_in(config, shape_in(config, kOtherwise))};
  LayerConfig& layer = model.config.layer_kinds[0];
  set_attention_bias(layer, config.get("attention_bias", true));
  layer.attention().sinks = true;
  const int64_t count = count_in(config, "num_local_experts", kMaxExperts, 128);
  ExpertsConfig& experts = use_experts(layer, config, count, 4);
  experts.router.bias = true;
  experts.router.normalized = true;
  experts.each.activation = Activation::swiglu_clamped;
  experts.each.gate_limit = number_in(config, "swiglu_limit", kUsualGateLimit);
  experts.each.bias = true;
  set_windows(model.config, config, window_in(config, 128), [](int64_t n) { return n % 2 == 0; });
  model.modules.router = "mlp.router";
  model.modules.experts_are_transposed = true;  // where they are not in MXFP4
  model.finish = set_experts;
  return model;
}

}  // namespace faststream::convert
