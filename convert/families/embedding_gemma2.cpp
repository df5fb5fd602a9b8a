// EmbeddingGemma 2: Gemma 4's layers, whose tokens see each other, with inputs that are products of
// embeddings alone. Its hidden states go through a last product, token by token, before a vector is
// made of them.
#include <string>

#include "convert/families/family.h"
#include "convert/families/gemma4.h"

namespace faststream::convert {
namespace {

constexpr PlainShape kEmbeddingGemma2 = {.n_layers = 24,
                                         .hidden = 512,
                                         .n_heads = 4,
                                         .n_kv_heads = 2,
                                         .head_dim = 256,
                                         .ffn_hidden = 2048,
                                         .vocab = 262144,
                                         .max_context = 262144,
                                         .norm_eps = 1e-6F};

Gemma4Shape embedding_layers_in(const JsonView& config, const PlainShape& sizes) {
  constexpr int64_t kRadius = 512;
  constexpr int64_t kEvery = 6;  // sixth layer sees all
  constexpr int64_t kHeadDimOfAll = 512;
  constexpr int64_t kKvHeadsOfAll = 1;
  constexpr int64_t kSizeOfInput = 512;
  Gemma4Shape shape;
  shape.window = window_in(config, kRadius);
  if (shape.window > 0) ++shape.window;  // it is the farthest that is seen
  shape.n_own = sizes.n_layers;
  shape.input_size = count_in(config, "hidden_size_per_layer_input", kMaxSize, kSizeOfInput);
  std::vector<bool> windowed =
      windowed_in(config, sizes.n_layers, [](int64_t n) { return (n + 1) % kEvery != 0; });
  windowed.back() = false;  // as Transformers has it, whatever is said
  const auto heads = config.find("per_layer_config");
  for (const bool has_window : windowed) {
    Gemma4Layer layer{.windowed = has_window,
                      .head_dim = sizes.head_dim,
                      .n_kv_heads = sizes.n_kv_heads,
                      .ffn_size = sizes.ffn_hidden};
    if (!has_window && !heads) {
      layer.head_dim = count_in(config, "global_head_dim", kMaxHeadDim, kHeadDimOfAll);
      layer.n_kv_heads = count_in(config, "num_global_key_value_heads", kMaxHeads, kKvHeadsOfAll);
    }
    shape.layers.push_back(layer);
  }
  if (heads) set_heads_by_layer(*heads, shape.layers);
  return shape;
}

RopeConfig rope_of_layers(const JsonView& config, const PlainShape& sizes, const Gemma4Shape& shape,
                          bool windowed) {
  constexpr double kThetaOfWindows = 10000;
  constexpr double kThetaOfAll = 1000000;
  const RopeShape rope{.head_dim = common_head_dim(config, shape.layers, windowed),
                       .max_context = sizes.max_context,
                       .theta = windowed ? kThetaOfWindows : kThetaOfAll};
  return rope_from_hf(config, rope, windowed ? "sliding_attention" : "full_attention");
}

}  // namespace

FamilyModel describe_embedding_gemma2(const FamilySource& source) {
  const JsonView& config = source.config;
  PlainShape sizes = shape_in(config, kEmbeddingGemma2);
  const Gemma4Shape shape = embedding_layers_in(config, sizes);
  sizes.head_dim = common_head_dim(config, shape.layers, true);
  FamilyModel model{plain_decoder(sizes)};
  model.config.ropes = {rope_of_layers(config, sizes, shape, true),
                        rope_of_layers(config, sizes, shape, false)};
  model.config.output.none = true;
  LayerConfig& layer = model.config.layer_kinds[0];
  layer.attention().bidirectional = true;
  set_attention_bias(layer, config.get("attention_bias", false));
  layer.ffn.activation = activation_in(config, "hidden_activation", "gelu_pytorch_tanh");
  make_gemma4(shape, model.config);
  model.config.layer_inputs.table = false;
  model.config.layer_inputs.multiplier = 1;

  Modules& m = model.modules = gemma4_modules(model.config, false);
  m.layer_inputs_projection = "ple.per_layer_model_projection";
  m.layer_inputs_norm = "ple.per_layer_projection_norm";
  m.layer_inputs_norm_scale = 1;
  m.input_gate = "ple_block.per_layer_input_gate";
  m.input_out = "ple_block.per_layer_projection";
  m.input_after_norm = "ple_block.post_per_layer_input_norm";
  constexpr int64_t kSizeOfVector = 768;
  // Made to be averaged, and of length 1.
  model.config.pooling = {
      .mode = Pooling::mean,
      .dense = {{.size = count_in(config, "embedding_dim", kMaxSize, kSizeOfVector)}},
      .dense_before = 1,
      .normalize = true};
  m.dense = {{.product = base_in(source.weights, m) + "embedding_projection"}};
  return model;
}

}  // namespace faststream::convert
