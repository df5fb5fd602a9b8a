// ModernBERT (arXiv:2412.13663) and decoders like it (Ettin, arXiv:2507.11412): windows in two of
// three layers, each kind with a rotation of its own.
#include "convert/families/family.h"

namespace faststream::convert {
namespace {

constexpr PlainShape kModernBert = {.n_layers = 22,
                                    .hidden = 768,
                                    .n_heads = 12,
                                    .ffn_hidden = 1152,
                                    .vocab = 50368,
                                    .max_context = 8192};

RopeConfig rope_in(const JsonView& config, const PlainShape& shape, std::string_view layers,
                   std::string_view theta_key, double theta) {
  const RopeShape rope{.head_dim = shape.head_dim,
                       .max_context = shape.max_context,
                       .theta = config.get(theta_key, theta)};
  RopeConfig result = rope_from_hf(config, rope, layers);
  result.name = layers;
  return result;
}

// Both; the window has so many tokens.
FamilyModel modernbert_in(const JsonView& config, int64_t window) {
  const PlainShape shape = shape_in(config, kModernBert);
  const NormConfig norm = layer_norm_in(config, "norm_eps", config.get("norm_bias", false));
  FamilyModel model{plain_decoder(shape)};
  set_norms(model.config, norm);
  model.config.embedding.norm = norm;
  model.config.ropes = {rope_in(config, shape, "full_attention", "global_rope_theta", 160000),
                        rope_in(config, shape, "sliding_attention", "local_rope_theta", 10000)};

  const auto every = count_in(config, "global_attn_every_n_layers", kMaxLayers, 3);
  const auto windowed =
      windowed_in(config, shape.n_layers, [&](int64_t n) { return n % every != 0; });
  const Activation activation = activation_in(config, "hidden_activation", "gelu");
  change_layers(model.config, [&](int64_t n, LayerConfig& layer) {
    set_attention_bias(layer, config.get("attention_bias", false));
    layer.ffn.activation = activation;
    layer.ffn.bias = config.get("mlp_bias", false);
    if (n == 0) {  // the embedding's norm is before it
      layer.name = "first";
      layer.mixer_norms.before = {};
    }
    if (windowed[static_cast<size_t>(n)]) {
      layer.name += " with a window";
      layer.attention().window = window;
      layer.attention().rope = 1;
    }
  });

  Modules& m = model.modules;
  m.embedding = "embeddings.tok_embeddings";
  m.embedding_norm = "embeddings.norm";
  m.attention_norm = "attn_norm";
  m.attention_out = "attn.Wo";
  m.ffn_norm = "mlp_norm";
  m.gate_up = {"mlp.Wi"};
  m.down = "mlp.Wo";
  m.output_norm = "final_norm";
  return model;
}

// How far a window reaches to each side.
int64_t reach_in(const JsonView& config) {
  return count_in(config, "local_attention", kMaxContext, 128) / 2;
}

// Before labels' scores or the output matrix.
DenseConfig head_in(const JsonView& config, const ModelConfig& model) {
  return {.size = model.hidden,
          .bias = config.get("classifier_bias", false),
          .activation = activation_in(config, "classifier_activation", "gelu"),
          .norm = model.output.norm};
}

}  // namespace

FamilyModel describe_modernbert(const FamilySource& source) {
  const JsonView& config = source.config;
  FamilyModel model = modernbert_in(config, reach_in(config) + 1);
  model.config.output.none = true;
  for (LayerConfig& layer : model.config.layer_kinds) layer.attention().bidirectional = true;
  model.modules.qkv = {"attn.Wqkv"};
  if (is_classifier(config)) {
    const bool mean = config.get<std::string>("classifier_pooling", "cls") == "mean";
    score_labels(
        model, config,
        {.mode = mean ? Pooling::mean : Pooling::first, .dense = {head_in(config, model.config)}},
        {{.product = "head.dense", .norm = "head.norm"}}, "classifier");
  } else {
    leave_out(model.modules, {"head.dense", "head.norm", "decoder"});
  }
  return model;
}

// The same layers, whose tokens see what is before them.
FamilyModel describe_modernbert_decoder(const FamilySource& source) {
  const JsonView& config = source.config;
  FamilyModel model = modernbert_in(config, reach_in(config));
  OutputConfig& output = model.config.output;
  output.tied = config.get("tie_word_embeddings", true);
  output.bias = config.get("decoder_bias", true);
  output.dense = head_in(config, model.config);
  Modules& m = model.modules;
  m.qkv = {"attn.q_proj", "attn.k_proj", "attn.v_proj"};
  m.dense = {{.product = "lm_head.dense", .norm = "lm_head.norm"}};
  m.output = "decoder";
  return model;
}

}  // namespace faststream::convert
