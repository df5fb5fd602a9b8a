// Llama 1 to 3 (arXiv:2302.13971, arXiv:2407.21783) and the many that share its code.
#include <algorithm>

#include "convert/families/family.h"

namespace faststream::convert {
namespace {

constexpr PlainShape kLlama = {.n_layers = 32,
                               .hidden = 4096,
                               .n_heads = 32,
                               .ffn_hidden = 11008,
                               .vocab = 32000,
                               .max_context = 2048,
                               .norm_eps = 1e-6F};

FamilyModel llama_in(const JsonView& config, const PlainShape& otherwise) {
  FamilyModel model{plain_decoder_in(config, shape_in(config, otherwise))};
  LayerConfig& layer = model.config.layer_kinds[0];
  set_attention_bias(layer, config.get("attention_bias", false));
  layer.ffn.bias = config.get("mlp_bias", false);
  return model;
}

}  // namespace

FamilyModel describe_llama(const FamilySource& source) { return llama_in(source.config, kLlama); }

// Aria (arXiv:2410.05993): the text model, whose layers all have experts.
FamilyModel describe_aria(const FamilySource& source) {
  const JsonView& config = source.config;
  PlainShape otherwise = kLlama;
  otherwise.ffn_hidden = 4096;
  FamilyModel model = llama_in(config, otherwise);
  LayerConfig& layer = model.config.layer_kinds[0];
  ExpertsConfig& experts =
      use_experts(layer, config, count_in(config, "moe_num_experts", kMaxExperts, 8), 2);
  experts.router.used = static_cast<int32_t>(count_in(config, "moe_topk", kMaxExperts, 2));
  experts.router.normalized = true;  // softmax over the chosen ones
  experts.shared = experts.each;
  experts.shared.size *= number_of(config, "moe_num_shared_experts", kMaxExperts, 2);
  experts.each.activation = Activation::silu;
  experts.each.bias = false;
  Modules& m = model.modules;
  m.router = "mlp.router";
  m.experts_gate_up = {"mlp.experts.fc1"};
  m.experts_down = "mlp.experts.fc2";
  m.experts_are_transposed = true;
  m.shared_gate_up = {"mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"};
  m.shared_down = "mlp.shared_experts.down_proj";
  return model;
}

// Emu3 (arXiv:2409.18869): the text model.
FamilyModel describe_emu3(const FamilySource& source) {
  constexpr PlainShape kOtherwise = {.n_layers = 32,
                                     .hidden = 4096,
                                     .n_heads = 32,
                                     .n_kv_heads = 8,
                                     .ffn_hidden = 14336,
                                     .vocab = 184622,
                                     .max_context = 9216,
                                     .norm_eps = 1e-5F,
                                     .rope_theta = 1e6};
  return llama_in(source.config, kOtherwise);
}

// Llama 3.2 Vision: of a text alone the layers that attend to pictures are left out, and the last
// rows of the embedding stand for these.
FamilyModel describe_mllama(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_layers = 40,
                                     .hidden = 4096,
                                     .n_heads = 32,
                                     .n_kv_heads = 8,
                                     .ffn_hidden = 14336,
                                     .vocab = 128256,
                                     .max_context = 131072,
                                     .norm_eps = 1e-5F};
  FamilyModel model = llama_in(config, kOtherwise);
  std::vector<int64_t> crossing = {3, 8, 13, 18, 23, 28, 33, 38};
  if (const auto list = config.find("cross_attention_layers")) {
    crossing = list->integers<int64_t>(0, kMaxLayers);
  }
  Modules& m = model.modules;
  for (int64_t n = 0; n < model.config.n_layers(); ++n) {
    if (std::ranges::find(crossing, n) == crossing.end()) {
      m.mixer_layers.push_back(n);
    } else {
      m.left_out.push_back("model.layers." + std::to_string(n) + ".");
    }
  }
  if (m.mixer_layers.empty()) config.fail("has no layers but those that attend to pictures");
  m.ffn_layers = m.mixer_layers;
  model.config.layers.resize(m.mixer_layers.size());
  model.finish = [](const ModelConfig& described, const Checkpoint&, TensorParts& parts) {
    constexpr int64_t kOfPictures = 8;
    TensorPart& table = parts[{TensorKind::embedding}].front();
    table.shape[0] += kOfPictures;
    table.n_rows = described.vocab;
  };
  return model;
}

}  // namespace faststream::convert
