// NomicBERT (arXiv:2402.01613): BERT with rotations. The first releases have gated feed-forwards
// and no biases; the second has biases, plain feed-forwards, and experts in the place of some
// (arXiv:2502.07972).
#include <string>

#include "convert/families/family.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

PlainShape nomic_shape_in(const JsonView& config) {
  PlainShape shape;
  shape.n_layers =
      count_in(config, key_in(config, {"n_layer", "num_hidden_layers"}), kMaxLayers, 12);
  shape.hidden = count_in(config, key_in(config, {"n_embd", "hidden_size"}), kMaxSize, 768);
  shape.n_heads = shape.n_kv_heads =
      count_in(config, key_in(config, {"n_head", "num_attention_heads"}), kMaxHeads, 12);
  shape.head_dim = head_dim_of(config, shape);
  shape.ffn_hidden = count_or_null_in(config, key_in(config, {"n_inner", "intermediate_size"}),
                                      kMaxSize, 4 * shape.hidden);
  if (shape.ffn_hidden == 0) shape.ffn_hidden = 4 * shape.hidden;
  shape.vocab = count_in(config, "vocab_size", kMaxSize, 30528);
  shape.max_context = count_in(config, key_in(config, {"n_positions", "max_position_embeddings"}),
                               kMaxContext, 2048);
  constexpr double kTheta = 1000;
  shape.rope_theta = config.get("rotary_emb_base", kTheta);
  return shape;
}

// The authors' name says whether there are gates, too.
Activation activation_of(const JsonView& config) {
  const auto name = config.find("activation_function");
  if (!name) return activation_in(config, "hidden_act", "silu");
  const auto text = name->as<std::string>();
  if (text == "swiglu") return Activation::silu;
  if (text == "geglu" || text == "gelu") return Activation::gelu;
  name->fail("is " + in_quotes(text) + ", which is not supported; swiglu, geglu and gelu are");
}

// What the authors' code can compute besides.
void refuse_other_nomic_bert(const JsonView& config) {
  for (const char* key : {"prenorm", "rotary_emb_interleaved", "use_rms_norm", "parallel_block"}) {
    refuse_if(config, key, "another kind of layers");
  }
  refuse_other(config, "rotary_emb_fraction", 1.0);
  for (const char* key : {"rotary_emb_scale_base", "rotary_scaling_factor"}) {
    refuse_if_present(config, key, "another rotation");
  }
}

// Every so many-th layer has experts, which have no biases but one of their sum.
void use_experts_of_some(ModelConfig& model, const JsonView& config) {
  const int64_t every = number_of(config, "moe_every_n_layers", kMaxLayers, 0);
  if (every == 0) return;
  refuse_if(config, "expert_choice_router", "experts that choose tokens");
  refuse_if(config, "moe_normalize_expert_weights", "weights that are normalized");
  refuse_other(config, "num_shared_experts", 0);
  refuse_other(config, "ffn_div", 1);
  const int64_t count = count_in(config, "num_experts", kMaxExperts);
  const int64_t used = count_in(config, "moe_top_k", kMaxExperts, 1);
  change_layers(model, [&](int64_t n, LayerConfig& layer) {
    if (n % every != 1) return;
    layer.name += " with experts";
    ExpertsConfig& experts = use_experts(layer, config, count, used);
    experts.each.bias = false;
    experts.sum_bias = true;
  });
}

void name_parts(const Checkpoint& weights, bool is_gated, Modules& m) {
  m.base = "nomic_bert.";
  m.embedding = "embeddings.word_embeddings";
  m.segments = "embeddings.token_type_embeddings";
  m.router = "mlp.router.layer";
  m.experts = "mlp.experts.mlp.";
  m.experts_sum_bias = "mlp.experts.bias";
  if (!has_modules(weights, "emb_ln.")) return name_as_rotated_bert(m);
  name_as_flash_bert(m);
  m.qkv = {"attn.Wqkv"};
  m.attention_out = "attn.out_proj";
  if (is_gated) m.gate_up = {"mlp.fc12", "mlp.fc11"};
}

// The experts' matrices lie below one another in one tensor, the second ones transposed.
void take_experts_from_rows(const ModelConfig& config, const Modules& modules,
                            const std::string& base, TensorParts& parts) {
  for (int64_t n = 0; n < config.n_layers(); ++n) {
    if (!config.layer(n).experts) continue;
    const ExpertsConfig& experts = *config.layer(n).experts;
    const std::string layer = base + modules.layers + std::to_string(n) + ".";
    const std::vector<int64_t> shape = {experts.count * experts.each.size, config.hidden};
    parts[{TensorKind::experts_up, n}] = {
        {.source = layer + modules.experts + "w1", .shape = shape}};
    std::vector<TensorPart>& down = parts[{TensorKind::experts_down, n}];
    down.clear();
    for (int64_t e = 0; e < experts.count; ++e) {
      down.push_back({.source = layer + modules.experts + "w2",
                      .shape = shape,
                      .transposed = true,
                      .first_input = e * experts.each.size,
                      .n_rows = config.hidden});
    }
  }
}

}  // namespace

// config.json has GPT-2's names in the authors' releases, and BERT's since Transformers has the
// class, which has gated feed-forwards and no biases.
FamilyModel describe_nomic_bert(const FamilySource& source) {
  const JsonView& config = source.config;
  refuse_other_nomic_bert(config);
  const PlainShape shape = nomic_shape_in(config);
  const NormConfig norm =
      layer_norm_in(config, key_in(config, {"layer_norm_epsilon", "layer_norm_eps"}));
  const bool ffn_bias = config.get("mlp_fc1_bias", false);
  refuse_other(config, "mlp_fc2_bias", ffn_bias);
  const bool is_gated = config.get<std::string>("activation_function", "swiglu") != "gelu";

  FamilyModel model{post_norm_encoder(shape, norm, activation_of(config))};
  model.config.ropes = {rope_from_hf(
      config,
      {.head_dim = shape.head_dim, .max_context = shape.max_context, .theta = shape.rope_theta},
      "")};
  model.config.embedding.segments = number_of(config, "type_vocab_size", kMaxSize, 2);
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.attention().rope = 0;
  set_attention_bias(layer, config.get("qkv_proj_bias", false));
  layer.ffn.gated = is_gated;
  layer.ffn.bias = ffn_bias;
  if (is_gated) {
    refuse_other(config, "moe_every_n_layers", 0);
  } else {
    use_experts_of_some(model.config, config);
  }

  Modules& m = model.modules;
  name_parts(source.weights, is_gated, m);
  if (is_classifier(config)) {
    score_labels(model, config,
                 {.dense = base_in(source.weights, m) + "pooler.dense", .scores = "classifier"});
  } else {
    leave_out(m, {"pooler.dense", "cls.predictions.transform.dense",
                  "cls.predictions.transform.layer_norm", "cls.predictions.decoder"});
    m.unused.emplace_back("cls.predictions.bias");
  }
  model.finish = [modules = m](const ModelConfig& described, const Checkpoint& weights,
                               TensorParts& parts) {
    take_experts_from_rows(described, modules, base_in(weights, modules), parts);
  };
  return model;
}

}  // namespace faststream::convert
