// Llama 4: the text model.
#include <algorithm>

#include "convert/families/family.h"

namespace faststream::convert {
namespace {

// Whether each layer rotates.
std::vector<bool> layers_that_rotate(const JsonView& config, int64_t n_layers) {
  auto list = config.find("no_rope_layers");
  if (list && list->value().empty()) list.reset();  // stands for none
  return rotating_layers(config, list, n_layers);
}

// Whether each layer sees the tokens of a block alone, of "attention_chunk_size".
std::vector<bool> in_chunks(const JsonView& config, const std::vector<bool>& rotates) {
  const auto list = config.find("layer_types");
  if (!list) return rotates;
  std::vector<bool> chunked;
  for (const JsonView& type : list->elements()) {
    const auto name = type.as<std::string>();
    if (name != "chunked_attention" && name != "full_attention") {
      type.fail("is neither chunked_attention nor full_attention");
    }
    chunked.push_back(name == "chunked_attention");
  }
  if (chunked.size() != rotates.size()) list->fail("has not an entry for each layer");
  return chunked;
}

// The layers with experts.
std::vector<int64_t> sparse_layers(const JsonView& config, int64_t n_layers) {
  if (const auto list = config.find("moe_layers")) return list->integers<int64_t>(0, kMaxLayers);
  const int64_t step = count_in(config, "interleave_moe_layer_step", kMaxLayers, 1);
  std::vector<int64_t> layers;
  for (int64_t n = step - 1; n < n_layers; n += step) layers.push_back(n);
  return layers;
}

// A flag that some releases have as a number.
bool is_tempered(const JsonView& config) {
  const auto flag = config.find("attn_temperature_tuning");
  if (!flag) return true;
  return flag->value().is_number() ? flag->as<int64_t>() != 0 : flag->as<bool>();
}

}  // namespace

FamilyModel describe_llama4(const FamilySource& source) {
  const JsonView& config = source.config;
  constexpr PlainShape kOtherwise = {.n_layers = 48,
                                     .hidden = 5120,
                                     .n_heads = 40,
                                     .n_kv_heads = 8,
                                     .head_dim = 128,
                                     .ffn_hidden = 8192,
                                     .vocab = 202048,
                                     .max_context = 131072,
                                     .norm_eps = 1e-5F,
                                     .rope_theta = 500000};
  const PlainShape shape = shape_in(config, kOtherwise);
  FamilyModel model{plain_decoder_in(config, shape)};
  set_attention_bias(model.config.layer_kinds[0], config.get("attention_bias", false));
  const std::vector<bool> rotates = layers_that_rotate(config, shape.n_layers);
  const std::vector<bool> chunked = in_chunks(config, rotates);
  const std::vector<int64_t> sparse = sparse_layers(config, shape.n_layers);
  constexpr int64_t kPositions = 8192;  // of a chunk, and between steps of the temperature
  const int64_t chunk = count_or_null_in(config, "attention_chunk_size", kMaxContext, kPositions);
  const int64_t count = count_in(config, "num_local_experts", kMaxExperts, 16);
  const int64_t dense_size = count_in(config, "intermediate_size_mlp", kMaxSize, 16384);
  const bool has_norms = config.get("use_qk_norm", true);
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    AttentionConfig& attention = layer.attention();
    layer.name = "plain";
    if (chunked[static_cast<size_t>(n)] && chunk > 0) {
      layer.name = "chunked";
      attention.window = chunk;
      attention.window_in_blocks = true;
    }
    if (!rotates[static_cast<size_t>(n)]) {
      layer.name += " without rotation";
      attention.rope.reset();
      if (is_tempered(config)) {
        attention.query_scaling = number_in(config, "attn_scale", 0.1);
        attention.query_scaling_from = count_in(config, "floor_scale", kMaxContext, kPositions);
        attention.query_scaling_ahead = 1;
      }
    } else if (has_norms) {
      attention.qk_norm = QkNorm::head;
      attention.qk_norm_as = layer.mixer_norms.before;
      attention.qk_norm_after_rope = true;
    }
    if (std::ranges::find(sparse, n) == sparse.end()) {
      layer.ffn.size = dense_size;
      return;
    }
    layer.name += " with experts";
    ExpertsConfig& experts = use_experts(layer, config, count, 1);
    experts.router.score = Router::Score::sigmoid;
    experts.router.weighs_input = true;
    experts.shared = experts.each;
  });
  Modules& m = model.modules;
  m.q_norm = m.k_norm = "";
  m.interleaved = true;
  m.gate_up = {"feed_forward.gate_proj", "feed_forward.up_proj"};
  m.down = "feed_forward.down_proj";
  m.router = "feed_forward.router";
  m.shared_gate_up = {"feed_forward.shared_expert.gate_proj", "feed_forward.shared_expert.up_proj"};
  m.shared_down = "feed_forward.shared_expert.down_proj";
  m.experts_gate_up = {"feed_forward.experts.gate_up_proj"};
  m.experts_down = "feed_forward.experts.down_proj";
  m.experts_are_tensors = m.experts_are_transposed = true;
  return model;
}

}  // namespace faststream::convert
