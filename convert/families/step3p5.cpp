// Step 3.5 of StepFun, and the text model of 3.7: gates of heads, more heads in windowed layers,
// and activated gates, and what these multiply, that are cut at limits which differ by layer.
#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string>

#include "convert/families/routed_experts.h"

namespace faststream::convert {
namespace {

// The numbers of layers in "3,4,5", or in a list.
std::vector<int64_t> numbers_in(const JsonView& list) {
  if (list.value().is_array()) return list.integers<int64_t>(0, kMaxLayers);
  const auto text = list.as<std::string>();
  std::vector<int64_t> numbers;
  const char* end = text.data() + text.size();
  for (const char* at = text.data(); at < end; ++at) {
    if (*at == ' ') continue;
    const auto [behind, error] = std::from_chars(at, end, numbers.emplace_back());
    if (error != std::errc() || (behind != end && *behind != ',')) {
      list.fail("is no list of layers' numbers with commas between them");
    }
    at = behind;
  }
  return numbers;
}

// config.json with the members that Transformers 5 has in the place of the release's, of whose
// lists the entries of predicting layers, behind the others, are cut off.
nlohmann::json renewed(const JsonView& config) {
  nlohmann::json renewed = config.value();
  for (const auto& [released, name] : {std::pair("num_attention_groups", "num_key_value_heads"),
                                       std::pair("moe_num_experts", "n_routed_experts"),
                                       std::pair("moe_top_k", "num_experts_per_tok"),
                                       std::pair("share_expert_dims", "share_expert_dim")}) {
    if (config.find(released) && !config.find(name)) renewed[name] = config.value().at(released);
  }
  const auto n_layers = static_cast<size_t>(count_in(config, "num_hidden_layers", kMaxLayers));
  const auto more =
      static_cast<size_t>(number_of(config, "num_nextn_predict_layers", kMaxLayers, 0));
  for (const char* list : {"layer_types", "mlp_layer_types", "swiglu_limits",
                           "swiglu_limits_shared", "rope_theta", "partial_rotary_factors"}) {
    const auto found = renewed.find(list);
    if (found == renewed.end() || !found->is_array() || found->size() != n_layers + more) continue;
    found->erase(found->begin() + static_cast<std::ptrdiff_t>(n_layers), found->end());
  }
  return renewed;
}

std::vector<bool> routed_layers_in(const JsonView& config, int64_t n_layers) {
  const auto list = config.find("moe_layers_enum");
  if (!list || config.find("mlp_layer_types")) return sparse_in(config, n_layers, 3);
  std::vector<bool> sparse(static_cast<size_t>(n_layers));
  for (const int64_t n : numbers_in(*list)) {
    if (n < n_layers) sparse[static_cast<size_t>(n)] = true;
  }
  return sparse;
}

// Of each layer; 0: none.
std::vector<float> limits_in(const JsonView& config, std::string_view key, int64_t n_layers) {
  std::vector<float> limits(static_cast<size_t>(n_layers));
  const auto list = config.find(key);
  if (!list) return limits;
  const std::vector<JsonView> said = list->elements();
  if (said.empty()) return limits;
  if (said.size() != limits.size()) {
    list->fail("has " + std::to_string(said.size()) + " entries for " + std::to_string(n_layers) +
               " layers");
  }
  for (size_t n = 0; n < limits.size(); ++n) {
    if (said[n].value().is_null()) continue;
    limits[n] = said[n].as<float>();
    if (!(limits[n] >= 0)) said[n].fail("is no limit");
  }
  return limits;
}

// What releases say of each layer's rotation, in the place of "rope_parameters" of each type; all
// layers of a type have the same.
nlohmann::json ropes_of_types(const JsonView& config, const std::vector<bool>& windowed) {
  nlohmann::json ropes = nlohmann::json::object();
  const auto of_layer = [&](std::string_view key, size_t n, double otherwise) {
    const auto found = config.find(key);
    if (!found) return otherwise;
    if (!found->value().is_array()) return found->as<double>();
    const std::vector<JsonView> each = found->elements();
    if (n >= each.size()) found->fail("has fewer entries than layers");
    return each[n].as<double>();
  };
  for (size_t n = 0; n < windowed.size(); ++n) {
    const char* type = windowed[n] ? "sliding_attention" : "full_attention";
    if (ropes.contains(type)) continue;
    nlohmann::json& rope = ropes[type];
    rope = {{"rope_type", "default"}};
    if (const auto rule = config.find("rope_scaling"); rule && !windowed[n]) rope = rule->value();
    if (!rope.is_object()) config.member("rope_scaling").fail("is no object");
    rope["rope_theta"] = of_layer("rope_theta", n, 1e4);
    rope["partial_rotary_factor"] = of_layer("partial_rotary_factors", n, 1);
  }
  return ropes;
}

int64_t heads_of_windows(const JsonView& config, int64_t otherwise) {
  const auto said = config.find("num_sliding_attention_heads");
  if (said) return said->as<int64_t>(1, kMaxHeads);
  const auto other = config.find("attention_other_setting");
  return other ? count_in(*other, "num_attention_heads", kMaxHeads, otherwise) : otherwise;
}

void set_attention(ModelConfig& model, const JsonView& config, const PlainShape& shape) {
  const std::vector<bool> windowed =
      windowed_in(config, shape.n_layers, [](int64_t) { return false; });
  const bool has_windows = std::ranges::find(windowed, true) != windowed.end();
  const int64_t window = has_windows ? count_in(config, "sliding_window", kMaxContext) : 0;
  const int64_t n_heads = heads_of_windows(config, shape.n_heads);
  const float scale =
      inverse_root(number_in(config, "query_pre_attn_scalar", static_cast<double>(shape.head_dim)));
  set_windows(model, config, window, [](int64_t) { return false; });
  nlohmann::json said = config.value();
  if (!config.find("rope_parameters")) said["rope_parameters"] = ropes_of_types(config, windowed);
  for (const char* released : {"rope_theta", "rope_scaling", "partial_rotary_factors"}) {
    said.erase(released);
  }
  set_ropes_of_types(model, config.with(said), {});
  for (LayerConfig& layer : model.layer_kinds) {
    AttentionConfig& attention = layer.attention();
    if (attention.window > 0) attention.n_heads = n_heads;
    attention.scale = scale;
    attention.qk_norm = QkNorm::head;
    attention.qk_norm_as = layer.mixer_norms.before;
    attention.output_gate = attention.head_gate = true;
    set_attention_bias(layer, config.get("attention_bias", false));
  }
}

void set_feed_forwards(ModelConfig& model, const JsonView& config) {
  const int64_t n_layers = model.n_layers();
  const int64_t count =
      count_in(config, key_in(config, {"n_routed_experts", "num_local_experts"}), kMaxExperts, 288);
  const int64_t size = count_in(config, "moe_intermediate_size", kMaxSize, 1280);
  const int64_t shared = count_in(config, "share_expert_dim", kMaxSize, 1280);
  const std::vector<bool> sparse = routed_layers_in(config, n_layers);
  const std::vector<float> limits = limits_in(config, "swiglu_limits", n_layers);
  const std::vector<float> of_all = limits_in(config, "swiglu_limits_shared", n_layers);
  const bool bias = config.get("mlp_bias", false);
  change_layers(model, [&](int64_t n, LayerConfig& layer) {
    const auto at = static_cast<size_t>(n);
    if (!sparse[at]) {
      layer.ffn.bias = bias;
      set_gate_limit(layer.ffn, of_all[at]);
      return;
    }
    layer.name += " with experts";
    ExpertsConfig& experts = use_experts(layer, config, count, 8);
    experts.router.score = Router::Score::sigmoid;
    experts.router.correction = experts.router.normalized = true;
    experts.router.scale = number_in(config, "moe_router_scaling_factor", 1);
    experts.each.size = size;
    experts.shared = experts.each;
    experts.shared.size = shared;
    experts.shared.bias = bias;
    set_gate_limit(experts.each, limits[at]);
    set_gate_limit(experts.shared, of_all[at]);
  });
}

void name_modules(Modules& m, const Checkpoint& weights) {
  m.norm_add = 1;
  m.output_gate = "self_attn.g_proj";
  if (!has_modules(weights, "moe.")) {
    name_routed_experts(m);
    return;
  }
  m.router = "moe.gate";
  m.correction = "moe.router_bias";
  m.experts_gate_up = {"moe.gate_proj", "moe.up_proj"};
  m.experts_down = "moe.down_proj";
  m.shared_gate_up = {"share_expert.gate_proj", "share_expert.up_proj"};
  m.shared_down = "share_expert.down_proj";
}

}  // namespace

FamilyModel describe_step3p5(const FamilySource& source) {
  const nlohmann::json as_now = renewed(source.config);
  const JsonView config = source.config.with(as_now);
  refuse_if(config, "use_bidirectional_attention", "attention to later tokens");
  refuse_other(config, "use_head_wise_attn_gate", true);
  refuse_other(config, "use_moe_router_bias", true);
  refuse_other(config, "moe_router_activation", "sigmoid");
  refuse_other(config, "norm_expert_weight", true);
  constexpr PlainShape kOtherwise = {.n_layers = 45,
                                     .hidden = 4096,
                                     .n_heads = 64,
                                     .n_kv_heads = 8,
                                     .head_dim = 128,
                                     .ffn_hidden = 11264,
                                     .vocab = 128815,
                                     .max_context = 128000,
                                     .norm_eps = 1e-5F};
  const PlainShape shape = shape_in(config, kOtherwise);
  FamilyModel model{plain_decoder(shape)};
  model.config.output.tied = config.get("tie_word_embeddings", false);
  set_attention(model.config, config, shape);
  set_feed_forwards(model.config, config);
  name_modules(model.modules, source.weights);
  use_predicting_layers(model, source.weights,
                        number_of(config, "num_nextn_predict_layers", kMaxLayers, 0));
  for (ModelConfig& predictor : model.config.predictors) {
    predictor.hidden_input->before_output_norm = true;
  }
  return model;
}

}  // namespace faststream::convert
