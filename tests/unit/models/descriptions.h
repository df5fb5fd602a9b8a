// Descriptions of small models: a plain one, one that has everything, an encoder, both together.
#pragma once

#include <memory>

#include "models/config.h"
#include "models/tensor_plan.h"

namespace faststream {

inline ModelConfig small_decoder() {
  return plain_decoder({.n_layers = 2,
                        .hidden = 64,
                        .n_heads = 4,
                        .n_kv_heads = 2,
                        .head_dim = 16,
                        .ffn_hidden = 128,
                        .vocab = 100,
                        .max_context = 512});
}

// Every member differs from its default.
inline ModelConfig rich_decoder() {
  ModelConfig config = small_decoder();
  const NormConfig norm{.kind = NormKind::layer, .eps = 1e-3F, .bias = true};
  config.context_end = ContextEnd::sparse_attention;
  config.embedding = {.multiplier = 2, .positions = 600, .offset = 2, .segments = 2, .norm = norm};
  config.layer_inputs = {.size = 12,
                         .multiplier = 3,
                         .norm = norm,
                         .activation = Activation::gelu,
                         .norm_after = norm,
                         .scaled = true};
  config.altup = {.streams = 3, .norm = norm};
  config.output = {.norm = norm, .tied = true, .bias = true, .soft_cap = 30};
  config.output.dense = {
      .size = config.hidden, .bias = true, .activation = Activation::gelu, .norm = norm};
  config.weight_format = WeightFormat::int8;
  config.formats = {{.tensor = TensorKind::ffn_down, .format = WeightFormat::f16},
                    {.tensor = TensorKind::ffn_down,
                     .format = WeightFormat::int4,
                     .first_layer = 1,
                     .n_layers = 1}};
  config.activation_bits = 16;
  config.embedding_format = config.output_format = WeightFormat::bf16;
  config.ropes = {{.name = "long",
                   .frequencies = {1, 0.1F, 1e-7F},
                   .attention_factor = 1.19F,
                   .original_max_context = 128,
                   .long_frequencies = {1, 0.01F, 1e-9F},
                   .dynamic_factor = 0},
                  {.name = "dynamic",
                   .frequencies = {1, 0.1F},
                   .attention_factor = 1,
                   .original_max_context = 128,
                   .long_frequencies = {},
                   .dynamic_factor = 4}};
  LayerConfig& first = config.layer_kinds[0];
  first.attention().qkv_bias = first.attention().out_bias = first.attention().sinks = true;
  first.attention().qk_norm = QkNorm::head;
  first.attention().qk_norm_as = {.kind = NormKind::rms, .eps = 1e-6F};
  first.attention().qk_norm_after_rope = true;
  first.attention().v_norm = true;
  first.attention().value_head_dim = 8;
  first.attention().query_scaling = 0.1F;
  first.attention().query_scaling_from = 8192;
  first.attention().query_scaling_ahead = 1;
  first.attention().window = 128;
  first.attention().window_in_blocks = true;
  first.attention().soft_cap = 50;
  first.attention().slopes = {1, 0.5F, 0.25F, 0.125F};
  first.mixer_norms = {.before = norm, .after = norm, .stream = norm};
  first.laurel = {.rank = 6, .norm = norm};
  first.ffn = {.size = 80, .gated = false, .activation = Activation::relu_squared, .bias = true};
  LayerConfig second = first;
  second.name = "experts";
  second.parallel = true;
  second.mixer_norms.stream = {};
  second.laurel = {};
  second.attention().rope = 1;
  second.attention().query_power = true;
  second.ffn = {};
  second.experts = {
      .count = 8,
      .router = {.used = 2,
                 .score = Router::Score::sigmoid,
                 .soft_cap = 30,
                 .bias = true,
                 .correction = true,
                 .groups = 4,
                 .groups_used = 2,
                 .normalized = true,
                 .scale = 2.5F,
                 .weighs_input = true},
      .each = {.size = 32, .activation = Activation::swiglu_clamped},
      .shared = {.size = 64, .activation = Activation::silu_clamped, .gate_limit = 16},
      .shared_gate = true};
  LayerConfig third = second;
  third.name = "of layer 0";
  third.parallel = false;
  third.attention().kv_of = 0;
  third.experts->router.expert_scales = true;
  third.experts->router_norm = third.experts->norm = norm;
  third.experts->norm_after = third.experts->shared_norm_after = norm;
  third.experts->sum_bias = true;
  third.experts->shared.activation = Activation::silu;
  third.experts->shared.cutoff = 0.5F;
  third.experts->router.score = Router::Score::logit;
  third.experts->identities = 4;
  third.experts->router.weighs_input = false;
  third.scaled = true;
  config.layer_kinds.push_back(second);
  config.layer_kinds.push_back(third);
  config.layers = {0, 1, 1, 0, 2};
  return config;
}

// Latent attention with every member, and with queries of the input.
inline ModelConfig latent_decoder() {
  ModelConfig config = small_decoder();
  config.ropes[0].frequencies = plain_frequencies(1e4, 6);
  LayerConfig& first = config.layer_kinds[0];
  first.mixers = {LatentAttentionConfig{.n_heads = 4,
                                        .q_rank = 24,
                                        .kv_rank = 18,
                                        .rope_dim = 6,
                                        .nope_dim = 10,
                                        .value_head_dim = 12,
                                        .scale = 0.3F,
                                        .bias = true,
                                        .latent_norm = {.kind = NormKind::rms, .eps = 1e-6F},
                                        .rope = 0}};
  LayerConfig second = first;
  second.name = "queries of the input";
  second.get<LatentAttentionConfig>().q_rank = 0;
  second.get<LatentAttentionConfig>().head_gate = true;
  second.ffn = {};
  second.experts = {.count = 8,
                    .router = {.used = 2,
                               .groups = 4,
                               .groups_used = 2,
                               .group_score = Router::GroupScore::largest},
                    .each = {.size = 32},
                    .shared = {}};
  config.layer_kinds.push_back(second);
  config.layers = {0, 1};
  return config;
}

// A layer of each kind of mixer that keeps a state, one of them alone, and attention with a gate;
// attention and a state space side by side.
inline ModelConfig small_hybrid() {
  ModelConfig config = small_decoder();
  const NormConfig norm{.kind = NormKind::rms, .eps = 1e-6F};
  LayerConfig attention = config.layer_kinds[0];
  attention.name = "attention";
  attention.attention().output_gate = true;
  LayerConfig delta_net = attention;
  delta_net.name = "delta net";
  delta_net.mixers = {DeltaNetConfig{.n_key_heads = 2,
                                     .n_value_heads = 4,
                                     .key_head_dim = 12,
                                     .value_head_dim = 10,
                                     .convolution = {.taps = 4, .activation = Activation::silu},
                                     .strength = 2,
                                     .norm = norm,
                                     .gate = Activation::sigmoid}};
  LayerConfig state_space = attention;
  state_space.name = "state space";
  state_space.mixers = {
      StateSpaceConfig{.n_heads = 6,
                       .head_dim = 7,
                       .n_groups = 2,
                       .state_size = 9,
                       .convolution = {.taps = 3, .bias = true, .activation = Activation::silu},
                       .in_bias = true,
                       .out_bias = true,
                       .norm = norm,
                       .norm_first = true,
                       .gate = Activation::gelu,
                       .least_step = 0.1F,
                       .most_step = 1.5F}};
  state_space.ffn_norms = {};
  state_space.ffn = {};
  LayerConfig convolution = attention;
  convolution.name = "convolution";
  convolution.mixers = {
      ShortConvolutionConfig{.convolution = {.taps = 2, .bias = true}, .bias = true}};
  LayerConfig scan = attention;
  scan.name = "selective scan";
  scan.mixers = {SelectiveScanConfig{.channels = 40,
                                     .state_size = 6,
                                     .step_rank = 5,
                                     .convolution = {.taps = 3, .bias = true},
                                     .bias = true,
                                     .norm = norm,
                                     .gate = Activation::gelu}};
  LayerConfig by_channel = attention;
  by_channel.name = "delta net by channel";
  by_channel.mixers = {DeltaNetConfig{.n_key_heads = 2,
                                      .n_value_heads = 2,
                                      .key_head_dim = 12,
                                      .value_head_dim = 10,
                                      .convolution = {.taps = 4},
                                      .decays_by_channel = true,
                                      .decay_rank = 7,
                                      .least_log_decay = -5,
                                      .norm = norm,
                                      .gate_rank = 9}};
  LayerConfig linear = attention;
  linear.name = "linear attention";
  linear.mixers = {LinearAttentionConfig{.n_heads = 3,
                                         .head_dim = 14,
                                         .activation = Activation::gelu,
                                         .norm = norm,
                                         .gate = Activation::silu}};
  LayerConfig side_by_side = attention;
  side_by_side.name = "side by side";
  side_by_side.mixers = {attention.mixers[0], state_space.mixers[0]};
  side_by_side.attention().head_gate = true;
  side_by_side.attention().gate = Activation::softplus;
  LayerConfig block = delta_net;
  block.name = "block beside the stream";
  block.aside = {.norm = norm,
                 .attention = config.layer_kinds[0].attention(),
                 .ffn_norm = norm,
                 .ffn = {.size = 20, .activation = Activation::gelu}};
  block.aside->attention.window = 30;
  config.layer_kinds = {attention,  delta_net, state_space,  convolution, scan,
                        by_channel, linear,    side_by_side, block};
  config.layers = {1, 2, 0, 3, 4, 5, 6, 8, 1, 7};
  return config;
}

inline ModelConfig small_encoder() {
  ModelConfig config = small_decoder();
  config.layer_kinds[0].attention().bidirectional = true;
  const NormConfig norm{.kind = NormKind::layer, .eps = 1e-5F};
  config.output = {.norm = {}, .none = true};
  config.pooling = {
      .mode = Pooling::last,
      .dense = {{.size = 8, .bias = true, .activation = Activation::tanh, .norm = norm}},
      .normalize = true,
      .scores = true,
      .sigmoid = true,
      .max_tokens = 100,
      .prompt = "query: "};
  return config;
}

// An encoder whose attention scores positions relative to each other, and whose layers convolve.
inline ModelConfig scoring_encoder() {
  ModelConfig config = small_encoder();
  for (LayerConfig& layer : config.layer_kinds) {
    AttentionConfig& attention = layer.attention();
    attention.rope.reset();
    attention.bidirectional = true;
    attention.n_kv_heads = attention.n_heads;
    attention.relative_scores = {
        .rows = 8, .max_distance = 20, .of_queries = true, .of_keys = true};
  }
  config.layer_kinds[0].token_convolution = {
      .taps = 3, .activation = Activation::tanh, .norm = {.kind = NormKind::layer, .bias = true}};
  return config;
}

// An encoder of other heads, and a decoder that looks at it.
inline ModelConfig small_translator() {
  ModelConfig config = small_decoder();
  LayerConfig& layer = config.layer_kinds[0];
  layer.attention().relative_bias = {.buckets = 8, .max_distance = 20};
  layer.cross_attention.emplace().norms = layer.mixer_norms;
  ModelConfig encoder = small_encoder();
  encoder.embedding.shared = true;
  AttentionConfig& attention = encoder.layer_kinds[0].attention();
  attention.n_heads = attention.n_kv_heads = 4;
  attention.head_dim = 8;
  attention.rope.reset();
  attention.relative_bias = {.buckets = 8, .max_distance = 20, .bidirectional = true};
  config.encoder = std::make_shared<const ModelConfig>(std::move(encoder));
  return config;
}

// A decoder with two predictors, of which the second has an output matrix of its own.
inline ModelConfig small_predictor() {
  ModelConfig config = small_decoder();
  ModelConfig predictor = config;
  predictor.layers = {0};
  predictor.embedding.shared = predictor.output.shared = true;
  predictor.output.tied = false;
  predictor.embedding.norm = config.layer_kinds[0].mixer_norms.before;
  predictor.hidden_input = {.norm = predictor.embedding.norm, .before_output_norm = true};
  config.predictors = {predictor, predictor};
  config.predictors[1].output.shared = false;
  return config;
}

// A decoder with one that reads the streams after both its layers, and the embedding and what it
// makes of them side by side, and has logits of three tokens.
inline ModelConfig joining_predictor() {
  ModelConfig config = small_predictor();
  config.predictors.pop_back();
  ModelConfig& predictor = config.predictors.front();
  predictor.layer_kinds[0].mixer_norms.before = {};
  HiddenInputConfig& input = *predictor.hidden_input;
  input.layer_states = {
      .after = {1, 2}, .norm = predictor.embedding.norm, .norm_of_each = true, .bias = true};
  input.side_by_side = input.normed_stream = true;
  predictor.output.shared = false;
  predictor.output.tokens = {7, 3, 99};
  return config;
}

}  // namespace faststream
