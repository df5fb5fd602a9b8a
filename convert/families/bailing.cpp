// Bailing (arXiv:2503.05139), whose models are called Ling and Ring: 1 and 2.
#include <nlohmann/json.hpp>

#include "convert/families/routed_experts.h"

namespace faststream::convert {
namespace {

FamilyModel bailing_in(const FamilySource& source) {
  const JsonView& config = source.config;
  refuse_if(config, "norm_head", "an output matrix with normalized columns");
  refuse_if(config, "multi_gate", "routers of other kinds of input");
  FamilyModel model{plain_decoder_in(config, shape_in(config, {.max_context = 16384}))};
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.attention().out_bias = layer.ffn.bias = config.get("use_bias", false);
  layer.attention().qkv_bias = config.get("use_qkv_bias", false) || layer.ffn.bias;
  Modules& m = model.modules;
  m.embedding = "word_embeddings";
  m.qkv = {"attention.query_key_value"};
  m.attention_out = "attention.dense";
  m.q_norm = "attention.query_layernorm";
  m.k_norm = "attention.key_layernorm";
  m.correction = "mlp.gate.expert_bias";
  name_routed_experts(m);
  const int64_t n_layers = model.config.n_layers();
  use_routed_experts(
      model.config, config,
      sparse_in(config, n_layers, number_of(config, "first_k_dense_replace", kMaxLayers, 0)),
      {.shared = 0});
  use_predicting_layers(model, source.weights,
                        number_of(config, "num_nextn_predict_layers", kMaxLayers, 0));
  return model;
}

}  // namespace

FamilyModel describe_bailing_moe(const FamilySource& source) {
  FamilyModel model = bailing_in(source);
  for (LayerConfig& layer : model.config.layer_kinds) {
    if (!layer.experts) continue;
    layer.experts->router.score = Router::Score::softmax;
    layer.experts->router.correction = false;
  }
  return model;
}

FamilyModel describe_bailing_moe_v2(const FamilySource& source) {
  const JsonView& config = source.config;
  refuse_other(config, "use_qk_norm", true);
  refuse_other(config, "score_function", "sigmoid");
  refuse_other(config, "moe_router_enable_expert_bias", true);
  FamilyModel model = bailing_in(source);
  for (LayerConfig& layer : model.config.layer_kinds) {
    layer.attention().qk_norm = QkNorm::head;
    layer.attention().qk_norm_as = layer.mixer_norms.before;
    // Whatever "norm_topk_prob" says.
    if (layer.experts) layer.experts->router.normalized = layer.experts->router.used > 1;
  }
  return model;
}

}  // namespace faststream::convert
