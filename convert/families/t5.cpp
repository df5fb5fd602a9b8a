// T5 (arXiv:1910.10683) in both versions, Flan-T5, mT5 (arXiv:2010.11934) and UMT5 (2304.09151).
#include "convert/families/t5.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "convert/families/family.h"

namespace faststream::convert {
namespace {

/// What differs between them.
struct T5Kind {
  const char* feed_forward = "gated-gelu";
  bool one_distances = true;  ///< the first layer's table of distances is all layers'
};

T5Shape t5_shape_in(const JsonView& config, const T5Kind& kind) {
  T5Shape shape;
  shape.hidden = count_in(config, "d_model", kMaxSize, 512);
  shape.vocab = count_in(config, "vocab_size", kMaxSize, 32128);
  shape.positions = count_in(config, "n_positions", kMaxContext, shape.positions);
  shape.n_layers = count_in(config, "num_layers", kMaxLayers, 6);
  shape.n_decoder_layers = count_in(config, "num_decoder_layers", kMaxLayers, shape.n_layers);
  shape.n_heads = count_in(config, "num_heads", kMaxHeads, 8);
  shape.head_dim = count_in(config, "d_kv", kMaxHeadDim, 64);
  shape.buckets = count_in(config, "relative_attention_num_buckets", kMaxSize, 32);
  shape.max_distance =
      count_in(config, "relative_attention_max_distance", kMaxSize, shape.max_distance);
  shape.ffn_size = count_in(config, "d_ff", kMaxSize, 2048);
  constexpr std::string_view kGated = "gated-";
  const auto name = config.get<std::string>("feed_forward_proj", kind.feed_forward);
  const bool gated = name.starts_with(kGated);
  // "gated-gelu" is the approximate one for historical reasons; other names mean what they say.
  const std::string activation =
      name == "gated-gelu" ? "gelu_new" : name.substr(gated ? kGated.size() : 0);
  // What Transformers makes of the name it writes as well, and goes by that where it is there.
  shape.gated = config.get("is_gated_act", gated);
  shape.activation = activation_in(config, "dense_act_fn", activation);
  shape.norm_eps = number_in(config, "layer_norm_epsilon", 1e-6);
  return shape;
}

Modules t5_modules(const std::string& stack, int ffn, bool gated, bool one_distances) {
  Modules m;
  m.base = stack + ".";
  m.layers = "block.";
  m.attention_norm = "layer.0.layer_norm";
  m.qkv = {"layer.0.SelfAttention.q", "layer.0.SelfAttention.k", "layer.0.SelfAttention.v"};
  m.attention_out = "layer.0.SelfAttention.o";
  m.distances = "layer.0.SelfAttention.relative_attention_bias.weight";
  if (one_distances) m.common_distances = m.layers + "0." + m.distances;
  m.cross_norm = "layer.1.layer_norm";
  m.cross_qkv = {"layer.1.EncDecAttention.q", "layer.1.EncDecAttention.k",
                 "layer.1.EncDecAttention.v"};
  m.cross_out = "layer.1.EncDecAttention.o";
  const std::string layer = "layer." + std::to_string(ffn) + ".";
  m.ffn_norm = layer + "layer_norm";
  const std::string dense = layer + "DenseReluDense.";
  m.gate_up = gated ? std::vector{dense + "wi_0", dense + "wi_1"} : std::vector{dense + "wi"};
  m.down = dense + "wo";
  m.output_norm = "final_layer_norm";
  // Old checkpoints have a table that nothing reads.
  m.unused.emplace_back("EncDecAttention.relative_attention_bias.weight");
  return m;
}

// The output matrix is the embedding unless the checkpoint has another, whatever config.json says:
// to T5 its word means `scaled`, that what the matrix reads is scaled.
// Classifiers have neither.
FamilyModel describe_like_t5(const FamilySource& source, const T5Kind& kind, bool scaled) {
  const T5Shape shape = t5_shape_in(source.config, kind);
  FamilyModel model{make_t5(shape)};
  model.modules = t5_modules("decoder", 2, shape.gated, kind.one_distances);
  model.encoder_modules = t5_modules("encoder", 1, shape.gated, kind.one_distances);
  model.embeddings = {"decoder.embed_tokens", "shared", "encoder.embed_tokens"};
  if (is_classifier(source.config)) {
    constexpr const char* kAround = "transformer.";
    for (std::string& module : model.embeddings) module.insert(0, kAround);
    for (Modules* modules : {&model.modules, &model.encoder_modules}) {
      modules->base.insert(0, kAround);
    }
    score_labels_of_text(model, source.config);
    return model;
  }
  if (scaled) {
    model.modules.output_norm_scale = inverse_root(static_cast<double>(model.config.hidden));
  }
  return model;
}

}  // namespace

ModelConfig make_t5_stack(const T5Shape& shape, bool bidirectional) {
  const NormConfig norm{.kind = NormKind::rms, .eps = shape.norm_eps};
  ModelConfig model;
  model.hidden = shape.hidden;
  model.vocab = shape.vocab;
  // Relative positions have no end; texts of the length that T5 was trained for are short.
  constexpr int64_t kContext = 2048;
  model.max_context = std::max(kContext, shape.positions);
  model.output.norm = norm;
  model.output.none = bidirectional;
  LayerConfig layer;
  layer.name = "layer";
  layer.mixer_norms.before = layer.ffn_norms.before = norm;
  AttentionConfig& attention = std::get<AttentionConfig>(layer.mixers.emplace_back());
  attention.n_heads = attention.n_kv_heads = shape.n_heads;
  attention.head_dim = shape.head_dim;
  attention.scale = 1;
  attention.bidirectional = bidirectional;
  attention.relative_bias = {
      .buckets = shape.buckets, .max_distance = shape.max_distance, .bidirectional = bidirectional};
  layer.ffn.size = shape.ffn_size;
  layer.ffn.gated = shape.gated;
  layer.ffn.activation = shape.activation;
  model.layer_kinds = {std::move(layer)};
  model.layers.assign(static_cast<size_t>(bidirectional ? shape.n_layers : shape.n_decoder_layers),
                      0);
  return model;
}

ModelConfig make_t5(const T5Shape& shape) {
  ModelConfig encoder = make_t5_stack(shape, true);
  encoder.embedding.shared = true;
  ModelConfig model = make_t5_stack(shape, false);
  LayerConfig& layer = model.layer_kinds[0];
  layer.cross_attention.emplace().norms = layer.mixer_norms;
  model.output.tied = true;
  model.encoder = std::make_shared<const ModelConfig>(std::move(encoder));
  return model;
}

FamilyModel describe_t5(const FamilySource& source) {
  const bool tied = source.config.get("tie_word_embeddings", true);
  return describe_like_t5(source, {.feed_forward = "relu"},
                          source.config.get("scale_decoder_outputs", tied));
}

FamilyModel describe_mt5(const FamilySource& source) { return describe_like_t5(source, {}, false); }

FamilyModel describe_umt5(const FamilySource& source) {
  return describe_like_t5(source, {.one_distances = false},
                          source.config.get("tie_word_embeddings", true));
}

// Of the encoder alone, which makes vectors.
FamilyModel describe_t5_encoder(const FamilySource& source) {
  const T5Shape shape = t5_shape_in(source.config, {.feed_forward = "relu"});
  FamilyModel model{make_t5_stack(shape, true)};
  model.modules = t5_modules("encoder", 1, shape.gated, true);
  model.embeddings = {"encoder.embed_tokens", "shared"};
  return model;
}

}  // namespace faststream::convert
