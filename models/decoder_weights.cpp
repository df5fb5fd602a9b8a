#include "models/decoder_weights.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "models/adapter_plan.h"

namespace faststream {
namespace {

class Finder {
 public:
  // stack: says whose layers these are, where they are not the decoder's.
  Finder(const ModelConfig& config, const WeightLookup& lookup, const TensorId& stack = {})
      : config_(config), kv_layers_(kv_layers(config)), state_layers_(state_layers(config)) {
    for (TensorPlan& tensor : tensor_plan(config)) {
      const TensorId id = tensor.id;
      if (id.of_encoder || id.predictor > 0) continue;
      TensorId in_file = id;
      in_file.of_encoder = stack.of_encoder;
      in_file.predictor = stack.predictor;
      found_[id] = {std::move(tensor), lookup(in_file)};
    }
    for (TensorPlan& tensor : adapter_plans(config)) {
      const TensorId id = tensor.id;
      found_[id] = {std::move(tensor), lookup(id)};
    }
  }

  DecoderWeights all(const Weight& shared) {
    using enum TensorKind;
    DecoderWeights weights;
    const bool is_shared = config_.embedding.shared;
    weights.embedding = {.table = is_shared ? shared : linear(embedding).weight,
                         .multiplier = config_.embedding.multiplier,
                         .positions = linear(positions).weight,
                         .offset = static_cast<int32_t>(config_.embedding.offset),
                         .segments = linear(segments).weight};
    weights.embedding_norm = norm(embedding_norm, config_.embedding.norm);
    weights.embedding_projection = linear(embedding_projection);
    if (config_.hidden_input) {
      const HiddenInputConfig& input = *config_.hidden_input;
      weights.hidden_input = {norm(hidden_norm, input.norm), linear(hidden_projection),
                              norm(layer_states_norm, input.layer_states.norm),
                              linear(layer_states_projection)};
    }
    weights.layer_inputs = {.embedding = {.table = linear(layer_inputs).weight,
                                          .multiplier = config_.layer_inputs.multiplier},
                            .projection = linear(layer_inputs_projection),
                            .norm = norm(layer_inputs_norm, config_.layer_inputs.norm)};
    weights.altup = {.parts = static_cast<int32_t>(config_.altup.parts()),
                     .in = linear(altup_in),
                     .out = linear(altup_out).weight};
    const auto [first, end] = config_.own_layers();
    for (n_ = first; n_ < end; ++n_) weights.layers.push_back(layer(config_.layer(n_)));
    n_ = 0;
    weights.output_norm = norm(output_norm, config_.output.norm);
    weights.output = linear(output);
    if (config_.output.tied) weights.output.weight = weights.embedding.table;
    for (const DenseConfig& layer : dense_layers(config_)) {
      weights.dense.push_back({linear(dense), norm(dense_norm, layer.norm)});
      ++n_;
    }
    n_ = 0;
    return weights;
  }

 private:
  struct Found {
    TensorPlan plan;
    const std::byte* data = nullptr;
  };

  LayerWeights layer(const LayerConfig& layer) const {
    using enum TensorKind;
    LayerWeights weights;
    weights.altup = {norm(altup_norm, config_.altup.norm), linear(altup_gates),
                     linear(altup_predict), linear(altup_correct)};
    weights.laurel = {linear(laurel_in), linear(laurel_out), norm(laurel_norm, layer.laurel.norm)};
    weights.token_convolution = {
        .product = linear(token_convolution),
        .activation = layer.token_convolution.activation,
        .norm = norm(token_convolution_norm, layer.token_convolution.norm)};
    weights.mixer_norms = {norm(attention_norm, layer.mixer_norms.before),
                           norm(attention_after_norm, layer.mixer_norms.after),
                           norm(attention_stream_norm, layer.mixer_norms.stream)};
    if (layer.aside) weights.aside = aside(*layer.aside);
    for (const Mixer& each : layer.mixers) {
      weights.mixers.push_back(
          std::visit([&](const auto& kind) -> MixerWeights { return mixer(kind); }, each));
    }
    if (layer.cross_attention) weights.cross = cross_attention(layer);
    weights.ffn_norms = {norm(ffn_norm, layer.ffn_norms.before),
                         norm(ffn_after_norm, layer.ffn_norms.after),
                         norm(ffn_stream_norm, layer.ffn_norms.stream)};
    if (layer.experts) {
      experts(*layer.experts, weights);
    } else {
      weights.ffn = feed_forward(ffn_tensors(layer.ffn));
      weights.ffn.xielu = vector(id(ffn_xielu));
      weights.ffn.middle_norm = norm(ffn_middle_norm, layer.ffn.middle_norm);
    }
    weights.input = {.scale = vector(id(input_scale)),
                     .gate = linear(input_gate),
                     .activation = config_.layer_inputs.activation,
                     .out = linear(input_out),
                     .norms = {.before = {},
                               .after = norm(input_after_norm, config_.layer_inputs.norm_after),
                               .stream = {}}};
    weights.scale = vector(id(stream_scale));
    if (config_.rank.index > 0) leave_out_biases(layer, weights);
    return weights;
  }

  // Where what ranks give is added up the first one gives the last products' biases.
  static void leave_out_biases(const LayerConfig& layer, LayerWeights& weights) {
    if (layer.shares_mixers) {
      for (MixerWeights& mixer : weights.mixers) {
        std::visit([](auto& kind) { kind.out.bias = nullptr; }, mixer);
      }
      weights.cross.out.bias = nullptr;
    }
    if (layer.shares_feed_forward) {
      weights.ffn.down.bias = nullptr;
      weights.experts.down_bias = nullptr;
      weights.shared.down.bias = nullptr;
    }
  }

  AsideWeights aside(const AsideConfig& aside) const {
    using enum TensorKind;
    AsideWeights weights;
    weights.norm = norm(aside_norm, aside.norm);
    weights.attention.config = aside.attention;
    weights.attention.qkv = linear(aside_qkv);
    weights.attention.rule = rule_of(aside.attention);
    weights.attention.out = linear(aside_out);
    weights.attention.kv_layer = kv_layer(n_);
    weights.ffn_norm = norm(aside_middle_norm, aside.ffn_norm);
    weights.ffn = feed_forward(aside_tensors(aside.ffn));
    return weights;
  }

  AttentionRule rule_of(const AttentionConfig& attention) const {
    return {.scale = attention.scale,
            .window = static_cast<int32_t>(attention.window),
            .window_in_blocks = attention.window_in_blocks,
            .bidirectional = attention.bidirectional,
            .soft_cap = attention.soft_cap,
            .sinks = vector(id(TensorKind::attention_sinks))};
  }

  AttentionWeights mixer(const AttentionConfig& attention) const {
    using enum TensorKind;
    AttentionWeights weights{.config = attention,
                             .qkv = linear(attention_qkv),
                             .rule = rule_of(attention),
                             .distances = vector(id(attention_distances)),
                             .relative_keys = linear(attention_relative_keys),
                             .relative_queries = linear(attention_relative_queries),
                             .sums_norm = norm(attention_sums_norm, attention.sums_norm),
                             .out = linear(attention_out),
                             .kv_layer = kv_layer(attention.kv_of.value_or(n_))};
    if (attention.qk_norm == QkNorm::whole) {
      weights.q_norm = norm(attention_q_norm, attention.qk_norm_as);
      weights.k_norm = norm(attention_k_norm, attention.qk_norm_as);
    } else if (attention.qk_norm == QkNorm::head) {
      weights.heads = {.norm = attention.qk_norm_as.kind,
                       .q_weight = vector(id(attention_q_norm)),
                       .k_weight = vector(id(attention_k_norm)),
                       .q_bias = vector(bias_of(id(attention_q_norm))),
                       .k_bias = vector(bias_of(id(attention_k_norm))),
                       .eps = attention.qk_norm_as.eps};
    }
    weights.heads.norm_after_rotation = attention.qk_norm_after_rope;
    weights.heads.query_power = attention.query_power;
    weights.heads.query_scaling = attention.query_scaling;
    weights.heads.query_scaling_from = static_cast<int32_t>(attention.query_scaling_from);
    weights.heads.query_scaling_ahead = static_cast<int32_t>(attention.query_scaling_ahead);
    return weights;
  }

  LatentAttentionWeights mixer(const LatentAttentionConfig& attention) const {
    using enum TensorKind;
    return {.config = attention,
            .q_down = linear(latent_q_down),
            .q_norm = norm(latent_q_norm, attention.latent_norm),
            .q = linear(latent_q),
            .kv = linear(latent_kv),
            .kv_norm = norm(latent_kv_norm, attention.latent_norm),
            .heads = {.n_heads = attention.n_heads,
                      .rope_dim = attention.rope_dim,
                      .keys = linear(latent_k).weight,
                      .values = linear(latent_v).weight},
            .gate = linear(latent_gate),
            .rule = {.scale = attention.scale},
            .out = linear(attention_out),
            .kv_layer = kv_layer(n_)};
  }

  DeltaNetWeights mixer(const DeltaNetConfig& config) const {
    DeltaNetWeights weights = recurrent(config, config.norm);
    weights.recurrence.n_key_heads = static_cast<int32_t>(config.n_key_heads);
    weights.recurrence.delta = true;
    weights.recurrence.by_channel = config.decays_by_channel;
    weights.recurrence.least_log_decay = config.least_log_decay;
    weights.recurrence.strength = config.strength;
    weights.recurrence.unit_eps = 1e-6F;
    weights.recurrence.query_scale = 1 / std::sqrt(static_cast<float>(config.key_head_dim));
    return weights;
  }

  StateSpaceWeights mixer(const StateSpaceConfig& config) const {
    StateSpaceWeights weights = recurrent(config, config.norm);
    weights.recurrence.n_key_heads = static_cast<int32_t>(config.n_groups);
    weights.recurrence.skips = vector(id(TensorKind::recurrent_skip));
    weights.recurrence.least_step = config.least_step;
    if (config.most_step) weights.recurrence.most_step = *config.most_step;
    return weights;
  }

  ShortConvolutionWeights mixer(const ShortConvolutionConfig& config) const {
    return recurrent(config, {});
  }

  SelectiveScanWeights mixer(const SelectiveScanConfig& config) const {
    SelectiveScanWeights weights = recurrent(config, {});
    weights.gates_norm = norm(TensorKind::recurrent_gates_norm, config.norm);
    weights.scan = {.state_size = static_cast<int32_t>(config.state_size),
                    .steps = weights.recurrence.steps,
                    .skips = vector(id(TensorKind::recurrent_skip))};
    return weights;
  }

  LinearAttentionWeights mixer(const LinearAttentionConfig& config) const {
    LinearAttentionWeights weights = recurrent(config, config.norm, {});
    weights.recurrence.n_key_heads = static_cast<int32_t>(config.n_heads);
    return weights;
  }

  template <typename Config>
  RecurrentWeights<Config> recurrent(const Config& config, const NormConfig& norm_config) const {
    return recurrent(config, norm_config, config.convolution);
  }
  template <typename Config>
  RecurrentWeights<Config> recurrent(const Config& config, const NormConfig& norm_config,
                                     const ConvolutionConfig& convolution) const {
    using enum TensorKind;
    const RecurrentShape shape = recurrent_shape(config, config_.hidden);
    return {.config = config,
            .shape = shape,
            .in = linear(recurrent_in),
            .gates = linear(recurrent_gates),
            .gates_up = linear(recurrent_gates_up),
            .convolution = {.taps = static_cast<int32_t>(shape.taps),
                            .weight = vector(id(recurrent_convolution)),
                            .bias = vector(bias_of(id(recurrent_convolution))),
                            .activation = convolution.activation},
            .recurrence = {.n_heads = static_cast<int32_t>(shape.n_heads),
                           .key_dim = static_cast<int32_t>(shape.key_dim),
                           .value_dim = static_cast<int32_t>(shape.value_dim),
                           .steps = vector(id(recurrent_step))},
            .decay = vector(id(recurrent_decay)),
            .norm = norm(recurrent_norm, norm_config),
            .factors = linear(recurrent_factors),
            .out = linear(recurrent_out),
            .state_layer = place_in(state_layers_, n_)};
  }

  CrossAttentionWeights cross_attention(const LayerConfig& layer) const {
    using enum TensorKind;
    const BranchNorms& norms = layer.cross_attention->norms;
    const AttentionConfig& attention = layer.attention();
    return {
        .norms = {norm(cross_norm, norms.before), norm(cross_after_norm, norms.after),
                  norm(cross_stream_norm, norms.stream)},
        .q = linear(cross_q),
        .kv = linear(cross_kv),
        .rule = {.scale = attention.scale, .bidirectional = true, .soft_cap = attention.soft_cap},
        .out = linear(cross_out),
        .kv_layer = kv_layer(n_)};
  }

  // The place of a layer among those that keep keys and values.
  [[nodiscard]] size_t kv_layer(int64_t n) const { return place_in(kv_layers_, n); }
  [[nodiscard]] static size_t place_in(const std::vector<int64_t>& layers, int64_t n) {
    return static_cast<size_t>(std::ranges::find(layers, n) - layers.begin());
  }

  void experts(const ExpertsConfig& config, LayerWeights& weights) const {
    weights.router = linear(TensorKind::router);
    weights.routing = {.used = config.router.used,
                       .score = config.router.score,
                       .margin = config.router.margin,
                       .correction = vector(id(TensorKind::router_correction)),
                       .groups = config.router.groups,
                       .groups_used = config.router.groups_used,
                       .group_score = config.router.group_score,
                       .normalized = config.router.normalized,
                       .scale = config.router.scale,
                       .weighs_input = config.router.weighs_input,
                       .expert_scales = vector(id(TensorKind::expert_scales))};
    weights.router_norm = norm(TensorKind::router_norm, config.router_norm);
    weights.experts_norm = norm(TensorKind::experts_norm, config.norm);
    weights.experts_after_norm = norm(TensorKind::experts_after_norm, config.norm_after);
    weights.shared_after_norm = norm(TensorKind::shared_after_norm, config.shared_norm_after);
    const FeedForwardWeights each = feed_forward(expert_tensors(config.each));
    weights.experts = {.n_experts = static_cast<int32_t>(config.count),
                       .up = each.up.weight,
                       .up_bias = each.up.bias,
                       .down = each.down.weight,
                       .down_bias = each.down.bias,
                       .gated = config.each.gated,
                       .activation = config.each.activation,
                       .gate_limit = config.each.gate_limit};
    weights.experts_sum_bias = vector(id(TensorKind::experts_sum_bias));
    weights.shared = feed_forward(shared_tensors(config.shared));
    weights.shared_gate = linear(TensorKind::shared_gate);
  }

  FeedForwardWeights feed_forward(const FeedForwardTensors& tensors) const {
    return {linear(tensors.up), linear(tensors.down)};
  }

  TensorId id(TensorKind kind) const { return {.kind = kind, .n = n_}; }

  Norm norm(TensorKind kind, const NormConfig& config) const {
    return {.kind = config.kind,
            .weight = vector(id(kind)),
            .bias = vector(bias_of(id(kind))),
            .eps = config.eps};
  }

  // Without data where the plan has no such matrix.
  Linear linear(TensorKind kind) const {
    return {.weight = weight(id(kind)),
            .bias = vector(bias_of(id(kind))),
            .adapters = changes(id(kind))};
  }

  Weight weight(const TensorId& id) const {
    const auto found = found_.find(id);
    if (found == found_.end()) return {};
    const TensorPlan& plan = found->second.plan;
    return {.data = found->second.data,
            .format = plan.format,
            .rows = plan.shape[0],
            .cols = plan.shape[1],
            .scales = data(scales_of(id)),
            .input_bits = config_.activation_bits,
            .rotated = plan.rotated};
  }

  // What each adapter adds to the matrix.
  std::vector<LowRank> changes(TensorId id) const {
    std::vector<LowRank> changes;
    bool has_some = false;
    for (size_t n = 0; n < config_.adapters.size(); ++n) {
      id.adapter = static_cast<int64_t>(n) + 1;
      const auto factor = [&](TensorMember member) {
        id.member = member;
        return weight(id);
      };
      changes.push_back({factor(TensorMember::adapter_a), factor(TensorMember::adapter_b)});
      has_some = has_some || changes.back();
    }
    return has_some ? changes : std::vector<LowRank>{};
  }

  // Null where the plan has no such tensor.
  const std::byte* data(const TensorId& id) const {
    const auto found = found_.find(id);
    return found == found_.end() ? nullptr : found->second.data;
  }
  const float* vector(const TensorId& id) const { return reinterpret_cast<const float*>(data(id)); }

  const ModelConfig& config_;
  std::vector<int64_t> kv_layers_;
  std::vector<int64_t> state_layers_;
  std::map<TensorId, Found> found_;
  int64_t n_ = 0;  // of the layer, or dense layer
};

}  // namespace

DecoderWeights find_weights(const ModelConfig& config, const WeightLookup& lookup) {
  return Finder(config, lookup).all({});
}

DecoderWeights find_encoder_weights(const ModelConfig& encoder, const WeightLookup& lookup,
                                    const Weight& shared) {
  return Finder(encoder, lookup, {.of_encoder = true}).all(shared);
}

DecoderWeights find_predictor_weights(const ModelConfig& config, size_t predictor,
                                      const WeightLookup& lookup) {
  const DecoderWeights decoder = find_weights(config, lookup);
  const ModelConfig& own = config.predictors.at(predictor);
  const TensorId stack{.predictor = static_cast<int64_t>(predictor) + 1};
  DecoderWeights weights = Finder(own, lookup, stack).all(decoder.embedding.table);
  if (own.output.shared) weights.output = decoder.output;
  return weights;
}

}  // namespace faststream
