// Small descriptions that have between them everything that one can ask for.
#pragma once

#include "models/config.h"

namespace faststream {

// Odd on purpose: GQA 3:1, head_dim that is not hidden / heads, no multiple of 8 but where needed.
inline ModelConfig odd_shape(WeightFormat format) {
  ModelConfig config = plain_decoder({.n_layers = 3,
                                      .hidden = 52,
                                      .n_heads = 6,
                                      .n_kv_heads = 2,
                                      .head_dim = 20,
                                      .ffn_hidden = 76,
                                      .vocab = 131,
                                      .max_context = 512});
  config.layer_kinds[0].attention().qkv_bias = true;
  config.layer_kinds[0].attention().out_bias = true;
  config.weight_format = config.output_format = format;
  config.embedding_format = is_float(format) ? format : WeightFormat::bf16;
  return config;
}

// Kinds of layers, which have between them everything that a description can ask for.
inline ModelConfig rich_shape(WeightFormat format) {
  ModelConfig config = odd_shape(format);
  const NormConfig rms{.kind = NormKind::rms, .eps = 1e-6F};
  const NormConfig layer_norm{.kind = NormKind::layer, .eps = 1e-5F, .bias = true};
  config.embedding = {.multiplier = 1.5F, .positions = 514, .offset = 2, .norm = layer_norm};
  config.output.bias = true;
  config.output.soft_cap = 3;
  RopeConfig& partial = config.ropes.emplace_back();
  partial.name = "partial";
  partial.frequencies = plain_frequencies(5000, 12);
  partial.attention_factor = 1.1F;

  LayerConfig windowed = config.layer_kinds[0];
  windowed.name = "windowed";
  windowed.attention().window = 37;
  windowed.attention().sinks = true;
  windowed.attention().qk_norm = QkNorm::head;
  windowed.attention().qk_norm_as = rms;
  windowed.attention().qk_norm_after_rope = true;
  windowed.attention().v_norm = true;
  windowed.mixer_norms.after = rms;
  windowed.ffn_norms.after = rms;
  windowed.ffn.activation = Activation::gelu_tanh;
  windowed.ffn.bias = true;
  windowed.ffn.middle_norm = rms;

  LayerConfig parallel = config.layer_kinds[0];
  parallel.name = "parallel";
  parallel.parallel = true;
  parallel.mixer_norms.before = layer_norm;
  parallel.ffn_norms.before = layer_norm;
  parallel.attention().rope.reset();
  parallel.attention().slopes = {0.5F, 0.25F, 0.125F, 0.0625F, 0.03F, 0.01F};
  parallel.attention().soft_cap = 2;
  parallel.attention().sums_norm = rms;
  parallel.ffn = {
      .size = 100, .gated = false, .activation = Activation::none, .xielu = true, .bias = true};

  LayerConfig experts = config.layer_kinds[0];
  experts.name = "experts";
  experts.attention().rope = 1;
  experts.attention().query_scaling = 0.1F;
  experts.attention().query_scaling_from = 16;
  experts.attention().qk_norm = QkNorm::whole;
  experts.attention().qk_norm_as = rms;
  experts.attention().sums_norm = rms;
  experts.experts = {.count = 6,
                     .router = {.used = 2, .normalized = true, .scale = 1.2F},
                     .each = {.size = 24, .gated = true, .activation = Activation::silu},
                     .shared = {.size = 40, .gated = true, .activation = Activation::silu},
                     .shared_gate = true};
  experts.ffn = {};

  LayerConfig grouped = experts;
  grouped.name = "grouped";
  grouped.mixer_norms.stream = rms;
  grouped.experts = {
      .count = 8,
      .router = {.used = 3,
                 .score = Router::Score::sigmoid,
                 .bias = true,
                 .correction = true,
                 .groups = 4,
                 .groups_used = 2,
                 .weighs_input = true},
      .each = {.size = 20, .gated = true, .activation = Activation::swiglu_clamped, .bias = true},
      .shared = {},
      .shared_gate = false};
  grouped.attention().window = 45;
  grouped.attention().window_in_blocks = true;

  // As windowed, but that it reads the keys and values of layer 0.
  LayerConfig sharing = windowed;
  sharing.name = "sharing";
  sharing.attention().kv_of = 0;
  sharing.attention().window = 20;
  sharing.scaled = true;
  sharing.experts = {.count = 5,
                     .router = {.used = 2, .normalized = true, .expert_scales = true},
                     .each = {.size = 20, .gated = true, .activation = Activation::gelu_tanh},
                     .shared = {.size = 36, .gated = true, .activation = Activation::gelu_tanh},
                     .shared_gate = false,
                     .router_norm = rms,
                     .norm = rms,
                     .norm_after = rms,
                     .shared_norm_after = rms};
  sharing.ffn = {};
  config.layer_inputs = {.size = 12,
                         .multiplier = 2,
                         .norm = rms,
                         .activation = Activation::gelu_tanh,
                         .norm_after = rms};
  LayerConfig latent = config.layer_kinds[0];
  latent.name = "latent";
  latent.mixers = {LatentAttentionConfig{.n_heads = 5,
                                         .q_rank = 22,
                                         .kv_rank = 28,
                                         .rope_dim = 12,
                                         .nope_dim = 18,
                                         .value_head_dim = 14,
                                         .scale = 0.2F,
                                         .bias = true,
                                         .latent_norm = rms,
                                         .rope = 1}};
  LayerConfig of_input = latent;
  of_input.name = "latent, queries of the input";
  of_input.get<LatentAttentionConfig>().q_rank = 0;
  of_input.experts = grouped.experts;
  of_input.experts->router.group_score = Router::GroupScore::largest;
  of_input.ffn = {};

  config.layer_kinds = {windowed, parallel, experts, grouped, sharing, latent, of_input};
  config.layers = {0, 1, 2, 3, 4, 5, 6};
  return config;
}

// A layer of each kind of mixer, and of two side by side; of those that keep a state two in a row,
// and the last one.
inline ModelConfig hybrid_shape(WeightFormat format) {
  ModelConfig config = odd_shape(format);
  const NormConfig rms{.kind = NormKind::rms, .eps = 1e-6F};
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
                                     .norm = rms}};
  LayerConfig state_space = attention;
  state_space.name = "state space";
  state_space.mixers = {
      StateSpaceConfig{.n_heads = 6,
                       .head_dim = 12,
                       .n_groups = 2,
                       .state_size = 10,
                       .convolution = {.taps = 3, .bias = true, .activation = Activation::silu},
                       .in_bias = true,
                       .norm = rms}};
  state_space.ffn_norms = {};
  state_space.ffn = {};
  LayerConfig convolution = attention;
  convolution.name = "convolution";
  convolution.mixers = {ShortConvolutionConfig{.convolution = {.taps = 2}}};
  LayerConfig scan = attention;
  scan.name = "selective scan";
  scan.mixers = {SelectiveScanConfig{.channels = 70,
                                     .state_size = 6,
                                     .step_rank = 5,
                                     .convolution = {.taps = 4, .activation = Activation::silu},
                                     .norm = rms}};
  LayerConfig by_channel = delta_net;
  by_channel.name = "delta net by channel";
  by_channel.mixers = {DeltaNetConfig{.n_key_heads = 4,
                                      .n_value_heads = 4,
                                      .key_head_dim = 12,
                                      .value_head_dim = 10,
                                      .convolution = {.taps = 4, .activation = Activation::silu},
                                      .decays_by_channel = true,
                                      .decay_rank = 12,
                                      .least_log_decay = -5,
                                      .norm = rms,
                                      .gate_rank = 9,
                                      .gate = Activation::sigmoid}};
  LayerConfig latent = attention;
  latent.name = "gated latent";
  latent.mixers = {LatentAttentionConfig{.n_heads = 5,
                                         .kv_rank = 28,
                                         .rope_dim = 12,
                                         .nope_dim = 18,
                                         .value_head_dim = 14,
                                         .scale = 0.2F,
                                         .latent_norm = rms,
                                         .head_gate = true}};
  LayerConfig linear = attention;
  linear.name = "linear attention";
  linear.mixers = {LinearAttentionConfig{.n_heads = 3, .head_dim = 20, .norm = rms}};
  LayerConfig side_by_side = attention;
  side_by_side.name = "side by side";
  side_by_side.mixers = {attention.mixers[0], state_space.mixers[0]};
  LayerConfig block = state_space;
  block.name = "block beside the stream";
  block.aside = {.norm = rms,
                 .attention = config.layer_kinds[0].attention(),
                 .ffn_norm = rms,
                 .ffn = config.layer_kinds[0].ffn};
  block.aside->attention.qkv_bias = block.aside->attention.out_bias = false;
  block.aside->attention.window = 40;
  block.aside->ffn.bias = false;
  config.layer_kinds = {attention,  delta_net, state_space, convolution,  scan,
                        by_channel, latent,    linear,      side_by_side, block};
  config.layers = {1, 2, 0, 3, 9, 4, 5, 6, 7, 8, 2};
  return config;
}

// Mixers of which ranks need sums of each other before the last product, and experts beside
// identities. Of the vocabulary of engine_shape().
inline ModelConfig exchanging_shape() {
  ModelConfig config = plain_decoder({.n_layers = 6,
                                      .hidden = 52,
                                      .n_heads = 6,
                                      .n_kv_heads = 2,
                                      .head_dim = 20,
                                      .ffn_hidden = 76,
                                      .vocab = 280,
                                      .max_context = 1000});
  const NormConfig rms{.kind = NormKind::rms, .eps = 1e-6F};
  LayerConfig attention = config.layer_kinds[0];
  attention.name = "norms of all heads";
  attention.attention().qk_norm = QkNorm::whole;
  attention.attention().qk_norm_as = rms;
  LayerConfig state_space = attention;
  state_space.name = "one group";
  state_space.mixers = {
      StateSpaceConfig{.n_heads = 8,
                       .head_dim = 12,
                       .n_groups = 1,
                       .state_size = 10,
                       .convolution = {.taps = 3, .bias = true, .activation = Activation::silu},
                       .norm = rms}};
  LayerConfig norm_first = state_space;
  norm_first.name = "two groups";
  norm_first.get<StateSpaceConfig>().n_groups = 2;
  norm_first.get<StateSpaceConfig>().norm_first = true;
  LayerConfig scan = attention;
  scan.name = "selective scan";
  scan.mixers = {SelectiveScanConfig{.channels = 70,
                                     .state_size = 6,
                                     .step_rank = 5,
                                     .convolution = {.taps = 4, .activation = Activation::silu},
                                     .bias = true,
                                     .norm = rms}};
  LayerConfig linear = attention;
  linear.name = "linear attention";
  linear.mixers = {LinearAttentionConfig{.n_heads = 5, .head_dim = 14, .norm = rms}};
  // As of LongCat: experts are added after the next layer.
  state_space.ffn = {};
  state_space.experts = {.count = 5,
                         .router = {.used = 3, .correction = true, .scale = 2},
                         .each = {.size = 28},
                         .shared = {.size = 36},
                         .identities = 3,
                         .deferred = true};
  linear.ffn = {};
  linear.experts = {.count = 5,
                    .router = {.used = 3, .normalized = true, .expert_scales = true},
                    .each = {.size = 28, .bias = true},
                    .shared = {},
                    .identities = 3,
                    .sum_bias = true};
  config.layer_kinds = {attention, state_space, norm_first, scan, linear};
  config.layers = {1, 0, 2, 3, 4, 0};
  return config;
}

// Layers whose recurrences and convolutions go on from token to token, in sizes that GPUs like.
inline ModelConfig even_hybrid_shape() {
  ModelConfig config = plain_decoder({.n_layers = 6,
                                      .hidden = 128,
                                      .n_heads = 6,
                                      .n_kv_heads = 2,
                                      .head_dim = 64,
                                      .ffn_hidden = 256,
                                      .vocab = 131,
                                      .max_context = 1024});
  const NormConfig rms{.kind = NormKind::rms, .eps = 1e-6F};
  LayerConfig attention = config.layer_kinds[0];
  attention.name = "attention";
  attention.attention().output_gate = true;
  attention.attention().qk_norm = QkNorm::head;
  attention.attention().qk_norm_as = rms;
  LayerConfig delta_net = attention;
  delta_net.name = "delta net";
  delta_net.mixers = {DeltaNetConfig{.n_key_heads = 2,
                                     .n_value_heads = 4,
                                     .key_head_dim = 32,
                                     .value_head_dim = 40,
                                     .convolution = {.taps = 4, .activation = Activation::silu},
                                     .norm = rms}};
  LayerConfig state_space = attention;
  state_space.name = "state space";
  state_space.mixers = {
      StateSpaceConfig{.n_heads = 6,
                       .head_dim = 16,
                       .n_groups = 2,
                       .state_size = 24,
                       .convolution = {.taps = 3, .bias = true, .activation = Activation::silu},
                       .norm = rms}};
  LayerConfig convolution = attention;
  convolution.name = "convolution";
  convolution.mixers = {ShortConvolutionConfig{.convolution = {.taps = 2}}};
  LayerConfig gated_heads = attention;
  gated_heads.name = "gated heads";
  gated_heads.attention().head_gate = true;
  gated_heads.attention().gate = Activation::softplus;
  gated_heads.attention().query_scaling = 0.1F;
  gated_heads.attention().query_scaling_from = 16;
  gated_heads.attention().query_power = true;
  gated_heads.ffn = {};
  gated_heads.experts = {
      .count = 6,
      .router = {.used = 2, .score = Router::Score::logit, .soft_cap = 4, .correction = true},
      .each = {.size = 64, .activation = Activation::silu_clamped, .gate_limit = 0.5F},
      .shared = {.size = 32, .activation = Activation::silu_clamped, .gate_limit = 1.5F}};
  config.layer_kinds = {attention, delta_net, state_space, convolution, gated_heads};
  config.layers = {1, 2, 0, 3, 4, 1};
  return config;
}

// Norms around branches, values with a norm, layers that read the keys of others, windows, wide
// heads beside narrow ones, scales, and inputs of layers.
inline ModelConfig even_rich_shape(int64_t hidden, int64_t head_dim) {
  ModelConfig config = plain_decoder({.n_layers = 6,
                                      .hidden = hidden,
                                      .n_heads = 6,
                                      .n_kv_heads = 2,
                                      .head_dim = head_dim,
                                      .ffn_hidden = 256,
                                      .vocab = 131,
                                      .max_context = 1024});
  const NormConfig rms{.kind = NormKind::rms, .eps = 1e-6F};
  LayerConfig windowed = config.layer_kinds[0];
  windowed.name = "windowed";
  windowed.scaled = true;
  windowed.mixer_norms.after = windowed.ffn_norms.after = rms;
  windowed.ffn.activation = Activation::gelu_tanh;
  windowed.attention().window = 300;
  windowed.attention().qk_norm = QkNorm::head;
  windowed.attention().qk_norm_as = rms;
  windowed.attention().v_norm = true;
  LayerConfig wide = windowed;
  wide.name = "wide";
  wide.attention().window = 0;
  wide.attention().head_dim = 512;
  wide.attention().n_kv_heads = 1;
  wide.attention().rope.reset();
  LayerConfig experts = windowed;
  experts.name = "experts";
  experts.ffn = {};
  experts.experts = {.count = 8,
                     .router = {.used = 2, .normalized = true, .expert_scales = true},
                     .each = {.size = 64, .gated = true, .activation = Activation::gelu_tanh},
                     .shared = {.size = 96, .gated = true, .activation = Activation::gelu_tanh},
                     .router_norm = rms,
                     .norm = rms,
                     .norm_after = rms,
                     .shared_norm_after = rms};
  LayerConfig sharing = windowed;
  sharing.name = "sharing";
  sharing.attention().kv_of = 0;
  LayerConfig wide_sharing = wide;
  wide_sharing.name = "wide, sharing";
  wide_sharing.attention().kv_of = 1;
  config.layer_inputs = {.size = 32,
                         .multiplier = 2,
                         .norm = rms,
                         .activation = Activation::gelu_tanh,
                         .norm_after = rms};
  config.layer_kinds = {windowed, wide, experts, sharing, wide_sharing};
  config.layers = {0, 1, 2, 3, 4, 3};
  return config;
}

}  // namespace faststream
