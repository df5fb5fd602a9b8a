#include "models/tensor_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "support/hadamard.h"

namespace faststream {

std::string_view kind_name(TensorKind kind) {
  switch (kind) {
    case TensorKind::embedding:
      return "embedding";
    case TensorKind::positions:
      return "positions";
    case TensorKind::segments:
      return "segments";
    case TensorKind::embedding_norm:
      return "embedding_norm";
    case TensorKind::embedding_projection:
      return "embedding_projection";
    case TensorKind::layer_inputs:
      return "layer_inputs";
    case TensorKind::layer_inputs_projection:
      return "layer_inputs_projection";
    case TensorKind::layer_inputs_norm:
      return "layer_inputs_norm";
    case TensorKind::hidden_norm:
      return "hidden_norm";
    case TensorKind::hidden_projection:
      return "hidden_projection";
    case TensorKind::layer_states_norm:
      return "layer_states_norm";
    case TensorKind::layer_states_projection:
      return "layer_states_projection";
    case TensorKind::altup_in:
      return "altup_in";
    case TensorKind::altup_norm:
      return "altup_norm";
    case TensorKind::altup_gates:
      return "altup_gates";
    case TensorKind::altup_predict:
      return "altup_predict";
    case TensorKind::altup_correct:
      return "altup_correct";
    case TensorKind::attention_norm:
      return "attention_norm";
    case TensorKind::aside_norm:
      return "aside_norm";
    case TensorKind::aside_qkv:
      return "aside_qkv";
    case TensorKind::aside_out:
      return "aside_out";
    case TensorKind::aside_middle_norm:
      return "aside_middle_norm";
    case TensorKind::aside_gate_up:
      return "aside_gate_up";
    case TensorKind::aside_up:
      return "aside_up";
    case TensorKind::aside_down:
      return "aside_down";
    case TensorKind::attention_qkv:
      return "attention_qkv";
    case TensorKind::attention_q_norm:
      return "attention_q_norm";
    case TensorKind::attention_k_norm:
      return "attention_k_norm";
    case TensorKind::attention_sinks:
      return "attention_sinks";
    case TensorKind::attention_distances:
      return "attention_distances";
    case TensorKind::attention_relative_keys:
      return "attention_relative_keys";
    case TensorKind::attention_relative_queries:
      return "attention_relative_queries";
    case TensorKind::latent_q_down:
      return "latent_q_down";
    case TensorKind::latent_q_norm:
      return "latent_q_norm";
    case TensorKind::latent_q:
      return "latent_q";
    case TensorKind::latent_kv:
      return "latent_kv";
    case TensorKind::latent_kv_norm:
      return "latent_kv_norm";
    case TensorKind::latent_k:
      return "latent_k";
    case TensorKind::latent_v:
      return "latent_v";
    case TensorKind::latent_gate:
      return "latent_gate";
    case TensorKind::attention_sums_norm:
      return "attention_sums_norm";
    case TensorKind::attention_out:
      return "attention_out";
    case TensorKind::recurrent_in:
      return "recurrent_in";
    case TensorKind::recurrent_gates:
      return "recurrent_gates";
    case TensorKind::recurrent_gates_norm:
      return "recurrent_gates_norm";
    case TensorKind::recurrent_gates_up:
      return "recurrent_gates_up";
    case TensorKind::recurrent_convolution:
      return "recurrent_convolution";
    case TensorKind::recurrent_decay:
      return "recurrent_decay";
    case TensorKind::recurrent_step:
      return "recurrent_step";
    case TensorKind::recurrent_skip:
      return "recurrent_skip";
    case TensorKind::recurrent_norm:
      return "recurrent_norm";
    case TensorKind::recurrent_factors:
      return "recurrent_factors";
    case TensorKind::recurrent_out:
      return "recurrent_out";
    case TensorKind::attention_after_norm:
      return "attention_after_norm";
    case TensorKind::attention_stream_norm:
      return "attention_stream_norm";
    case TensorKind::laurel_in:
      return "laurel_in";
    case TensorKind::laurel_out:
      return "laurel_out";
    case TensorKind::laurel_norm:
      return "laurel_norm";
    case TensorKind::cross_norm:
      return "cross_norm";
    case TensorKind::cross_q:
      return "cross_q";
    case TensorKind::cross_kv:
      return "cross_kv";
    case TensorKind::cross_out:
      return "cross_out";
    case TensorKind::cross_after_norm:
      return "cross_after_norm";
    case TensorKind::cross_stream_norm:
      return "cross_stream_norm";
    case TensorKind::ffn_norm:
      return "ffn_norm";
    case TensorKind::ffn_gate_up:
      return "ffn_gate_up";
    case TensorKind::ffn_up:
      return "ffn_up";
    case TensorKind::ffn_xielu:
      return "ffn_xielu";
    case TensorKind::ffn_middle_norm:
      return "ffn_middle_norm";
    case TensorKind::ffn_down:
      return "ffn_down";
    case TensorKind::router_norm:
      return "router_norm";
    case TensorKind::router:
      return "router";
    case TensorKind::router_correction:
      return "router_correction";
    case TensorKind::expert_scales:
      return "expert_scales";
    case TensorKind::experts_norm:
      return "experts_norm";
    case TensorKind::experts_gate_up:
      return "experts_gate_up";
    case TensorKind::experts_up:
      return "experts_up";
    case TensorKind::experts_down:
      return "experts_down";
    case TensorKind::experts_after_norm:
      return "experts_after_norm";
    case TensorKind::shared_gate_up:
      return "shared_gate_up";
    case TensorKind::shared_up:
      return "shared_up";
    case TensorKind::shared_down:
      return "shared_down";
    case TensorKind::shared_gate:
      return "shared_gate";
    case TensorKind::shared_after_norm:
      return "shared_after_norm";
    case TensorKind::experts_sum_bias:
      return "experts_sum_bias";
    case TensorKind::ffn_after_norm:
      return "ffn_after_norm";
    case TensorKind::ffn_stream_norm:
      return "ffn_stream_norm";
    case TensorKind::token_convolution:
      return "token_convolution";
    case TensorKind::token_convolution_norm:
      return "token_convolution_norm";
    case TensorKind::input_scale:
      return "input_scale";
    case TensorKind::input_gate:
      return "input_gate";
    case TensorKind::input_out:
      return "input_out";
    case TensorKind::input_after_norm:
      return "input_after_norm";
    case TensorKind::stream_scale:
      return "stream_scale";
    case TensorKind::altup_out:
      return "altup_out";
    case TensorKind::output_norm:
      return "output_norm";
    case TensorKind::dense:
      return "dense";
    case TensorKind::dense_norm:
      return "dense_norm";
    case TensorKind::output:
      return "output";
  }
  return "?";
}

std::optional<TensorKind> kind_from_name(std::string_view name) {
  for (auto n = uint8_t{0}; n <= static_cast<uint8_t>(TensorKind::output); ++n) {
    if (kind_name(TensorKind{n}) == name) return TensorKind{n};
  }
  return std::nullopt;
}

bool takes_format(TensorKind kind) {
  using enum TensorKind;
  constexpr std::array kKinds = {embedding_projection,
                                 layer_inputs_projection,
                                 hidden_projection,
                                 layer_states_projection,
                                 altup_in,
                                 altup_out,
                                 aside_qkv,
                                 aside_out,
                                 aside_gate_up,
                                 aside_up,
                                 aside_down,
                                 attention_qkv,
                                 latent_q_down,
                                 latent_q,
                                 latent_kv,
                                 latent_k,
                                 latent_v,
                                 latent_gate,
                                 attention_out,
                                 recurrent_in,
                                 laurel_in,
                                 laurel_out,
                                 recurrent_factors,
                                 recurrent_out,
                                 cross_q,
                                 cross_kv,
                                 cross_out,
                                 ffn_gate_up,
                                 ffn_up,
                                 ffn_down,
                                 token_convolution,
                                 input_gate,
                                 input_out,
                                 experts_gate_up,
                                 experts_up,
                                 experts_down,
                                 shared_up,
                                 shared_gate_up,
                                 shared_down};
  return std::ranges::find(kKinds, kind) != kKinds.end();
}

namespace {

// How a matrix is not like most.
struct MatrixTraits {
  TensorRole role = TensorRole::matrix;
  TensorReaders readers = TensorReaders::all;
  SplitRule split = {};
  int64_t experts = 0;
  int64_t blocks = 0;
  bool gated = false;
  bool cuts_gates = false;
  Activation activation = Activation::none;
  HeadRotation heads = {};
};

// Columns of a matrix that no cut takes apart, whatever its format here: those that are stored or,
// unless it is as `rotated` says, rotated together.
int64_t columns_together(const ModelConfig& config, bool rotated) {
  const auto together = [&](WeightFormat format) {
    const bool in_blocks = rotated && config.rotated && is_integer(format);
    return std::max(group_columns(format), in_blocks ? kLargestHadamardBlock : 1);
  };
  int64_t columns = together(config.weight_format);
  for (const FormatRule& rule : config.formats) columns = std::max(columns, together(rule.format));
  return columns;
}

// Where each key head serves as many heads, whose sums of so many elements are columns of a matrix.
HeadUnits units_of(int64_t n_key_heads, int64_t n_heads, int64_t dim, int64_t columns) {
  const int64_t served = n_heads / n_key_heads;
  const int64_t heads = columns / std::gcd(columns, dim);  // that no cut takes apart
  const int64_t key_heads = heads / std::gcd(heads, served);
  return {.key_heads = key_heads, .heads = key_heads * served, .fine = key_heads == 1 ? heads : 0};
}

// Sums of rotated values are rotated; the factors of gates, and a norm's, are not.
bool rotates_values(const ModelConfig& config, const AttentionConfig& attention) {
  return config.values_rotated && !attention.output_gate && !attention.sums_norm;
}

// Collects the tensors of a description in file order.
class Planner {
 public:
  explicit Planner(const ModelConfig& config) : config_(config) {}

  std::vector<TensorPlan> plan() {
    const auto [first, end] = config_.own_layers();
    if (config_.has_first_layer()) before_layers();
    for (n_ = first; n_ < end; ++n_) layer(config_.layer(n_));
    n_ = 0;
    if (config_.has_first_layer()) after_layers();
    return std::move(tensors_);
  }

 private:
  void before_layers() {
    embedding();
    if (config_.layer_inputs) layer_inputs(config_.layer_inputs);
    if (config_.hidden_input) hidden_input(*config_.hidden_input);
    if (config_.altup) altup_projection(TensorKind::altup_in, {});
  }

  void after_layers() {
    if (config_.altup) {
      altup_projection(TensorKind::altup_out,
                       {.readers = TensorReaders::wanted, .blocks = config_.altup.streams - 1});
    }
    norm(TensorKind::output_norm, config_.output.norm);
    dense();
    output();
  }

  void embedding() {
    const EmbeddingConfig& embedding = config_.embedding;
    const WeightFormat format = config_.embedding_format;
    const int64_t size = config_.embedding_size();
    const MatrixTraits table{.role = TensorRole::table, .readers = TensorReaders::lookup};
    if (!embedding.shared) {
      MatrixTraits traits = table;
      traits.split = of_vocabulary(config_.vocab);
      if (config_.output.tied) traits.readers = TensorReaders::wanted;
      matrix(TensorKind::embedding, format, config_.vocab, size, false, traits);
    }
    if (embedding.positions != 0) {
      matrix(TensorKind::positions, format, embedding.positions, size, false, table);
    }
    if (embedding.segments != 0) {
      matrix(TensorKind::segments, format, embedding.segments, size, false, table);
    }
    norm(TensorKind::embedding_norm, embedding.norm, size);
    if (embedding.size != 0) {
      matrix(TensorKind::embedding_projection, config_.weight_format, config_.hidden, size, true,
             {});
    }
  }

  void hidden_input(const HiddenInputConfig& input) {
    norm(TensorKind::hidden_norm, input.norm);
    if (!input.side_by_side) {
      matrix(TensorKind::hidden_projection, config_.weight_format, config_.hidden,
             2 * config_.hidden, false, {});
    }
    const LayerStatesConfig& states = input.layer_states;
    if (!states) return;
    const int64_t columns = states.count() * config_.hidden;
    norm(TensorKind::layer_states_norm, states.norm, columns);
    matrix(TensorKind::layer_states_projection, config_.weight_format, config_.hidden, columns,
           states.bias, {});
  }

  void layer_inputs(const LayerInputsConfig& inputs) {
    if (inputs.table) {
      matrix(TensorKind::layer_inputs, config_.embedding_format, config_.vocab,
             config_.layer_inputs_dim(), false,
             {.role = TensorRole::table, .readers = TensorReaders::lookup});
    }
    matrix(TensorKind::layer_inputs_projection, config_.weight_format, config_.layer_inputs_dim(),
           config_.hidden, false, {});
    norm(TensorKind::layer_inputs_norm, inputs.norm, inputs.size);
  }

  // Of the other streams.
  void altup_projection(TensorKind kind, const MatrixTraits& traits) {
    matrix(kind, config_.weight_format, (config_.altup.streams - 1) * config_.hidden,
           config_.hidden, false, traits);
  }

  void altup(const AltUpConfig& altup) {
    norm(TensorKind::altup_norm, altup.norm);
    matrix(TensorKind::altup_gates, WeightFormat::f32, altup.streams, config_.hidden, false,
           {.activation = Activation::tanh});
    for (const TensorKind kind : {TensorKind::altup_predict, TensorKind::altup_correct}) {
      matrix(kind, WeightFormat::f32, altup.parts() * altup.parts(), altup.streams, true, {});
    }
  }

  void layer(const LayerConfig& layer) {
    if (config_.altup) altup(config_.altup);
    norm(TensorKind::attention_norm, layer.mixer_norms.before);
    if (layer.aside) aside(*layer.aside);
    for (const Mixer& each : layer.mixers) {
      std::visit([&](const auto& kind) { mixer(kind); }, each);
    }
    norm(TensorKind::attention_after_norm, layer.mixer_norms.after);
    norm(TensorKind::attention_stream_norm, layer.mixer_norms.stream);
    if (layer.laurel) laurel(layer.laurel);
    if (layer.cross_attention) cross_attention(layer.attention(), layer.cross_attention->norms);
    if (!layer.has_feed_forward()) return;
    norm(TensorKind::ffn_norm, layer.ffn_norms.before);
    if (layer.experts) {
      experts(*layer.experts);
    } else {
      feed_forward(ffn_tensors(layer.ffn), layer.ffn);
    }
    if (layer.ffn.xielu) vector(TensorKind::ffn_xielu, kXieluNumbers, TensorRole::bias);
    norm(TensorKind::ffn_after_norm, layer.ffn_norms.after);
    norm(TensorKind::ffn_stream_norm, layer.ffn_norms.stream);
    if (layer.token_convolution) token_convolution(layer.token_convolution);
    if (config_.layer_inputs) input(config_.layer_inputs);
    if (layer.scaled) vector(TensorKind::stream_scale, 1, TensorRole::norm);
  }

  void aside(const AsideConfig& aside) {
    const AttentionConfig& attention = aside.attention;
    const WeightFormat format = config_.weight_format;
    norm(TensorKind::aside_norm, aside.norm, 2 * config_.hidden);
    matrix(TensorKind::aside_qkv, format, attention.in_dim(), 2 * config_.hidden, false, {});
    matrix(TensorKind::aside_out, format, config_.hidden, attention.sums_dim(), false, {});
    norm(TensorKind::aside_middle_norm, aside.ffn_norm);
    // Mixers of all tokens read what it gives.
    feed_forward(aside_tensors(aside.ffn), aside.ffn, 0, TensorReaders::all);
  }

  void laurel(const LaurelConfig& laurel) {
    matrix(TensorKind::laurel_in, config_.weight_format, laurel.rank, config_.hidden, false, {});
    matrix(TensorKind::laurel_out, config_.weight_format, config_.hidden, laurel.rank, false, {});
    norm(TensorKind::laurel_norm, laurel.norm);
  }

  void token_convolution(const TokenConvolutionConfig& convolution) {
    matrix(TensorKind::token_convolution, config_.weight_format, config_.hidden,
           convolution.taps * config_.hidden, true, {.activation = convolution.activation});
    norm(TensorKind::token_convolution_norm, convolution.norm);
  }

  void input(const LayerInputsConfig& inputs) {
    if (inputs.scaled) vector(TensorKind::input_scale, config_.hidden, TensorRole::norm);
    const MatrixTraits traits{.readers = of_feed_forward(), .activation = inputs.activation};
    matrix(TensorKind::input_gate, config_.weight_format, inputs.size, config_.hidden, false,
           traits);
    matrix(TensorKind::input_out, config_.weight_format, config_.hidden, inputs.size, false,
           {.readers = traits.readers});
    norm(TensorKind::input_after_norm, inputs.norm_after);
  }

  void mixer(const AttentionConfig& attention) {
    const HeadUnits units = head_units(config_, attention);
    SplitRule::Parts parts = {queries(units, attention)};
    MatrixTraits qkv;
    size_t n_parts = 1;
    if (!attention.kv_of) {
      parts[n_parts++] = keys(units, attention);
      parts[n_parts++] = values(units, attention);
      qkv.heads = rotated_values(attention, attention.q_dim() + attention.k_dim());
    }
    if (attention.output_gate) {
      parts[n_parts] =
          attention.head_gate ? units.of_heads(attention.n_heads, 1) : sums(units, attention);
    }
    qkv.split = of_heads(parts);
    matrix(TensorKind::attention_qkv, config_.weight_format, attention.in_dim(),
           config_.mixer_input(n_), attention.qkv_bias, qkv);
    norm(TensorKind::attention_q_norm, attention.qk_norm_as, attention.q_dim(),
         of_heads({queries(units, attention)}));
    if (!attention.kv_of) {
      norm(TensorKind::attention_k_norm, attention.qk_norm_as, attention.k_dim(),
           of_heads({keys(units, attention)}));
    }
    const SplitRule each_head = rows_of_heads(units, attention.n_heads, 1);
    if (attention.sinks) {
      vector(TensorKind::attention_sinks, attention.n_heads, TensorRole::bias, each_head);
    }
    if (attention.relative_bias) {
      SplitRule columns = each_head;
      columns.columns = true;
      add({.id = id(TensorKind::attention_distances),
           .shape = {attention.relative_bias.buckets, attention.n_heads},
           .role = TensorRole::bias,
           .split = columns});
    }
    relative_scores(attention, units);
    norm(TensorKind::attention_sums_norm, attention.sums_norm, attention.sums_dim(),
         of_heads({sums(units, attention)}));
    matrix(TensorKind::attention_out, config_.weight_format, config_.hidden, attention.sums_dim(),
           attention.out_bias, sums_of_values(attention));
  }

  // Floats, as other positions.
  void relative_scores(const AttentionConfig& attention, const HeadUnits& units) {
    const RelativeScoresConfig& scores = attention.relative_scores;
    const auto vectors = [&](TensorKind kind) {
      matrix(kind, config_.embedding_format, attention.n_heads * scores.rows, attention.head_dim,
             false,
             {.split = rows_of_heads(units, attention.n_heads, scores.rows),
              .blocks = attention.n_heads});
    };
    if (scores.of_queries) vectors(TensorKind::attention_relative_keys);
    if (scores.of_keys) vectors(TensorKind::attention_relative_queries);
  }

  void mixer(const LatentAttentionConfig& attention) {
    const WeightFormat format = config_.weight_format;
    const HeadUnits units = head_units(config_, attention);
    const auto heads_of = [&](int64_t dim) { return rows_of_heads(units, attention.n_heads, dim); };
    int64_t q_columns = config_.hidden;
    if (attention.q_rank > 0) {
      q_columns = attention.q_rank;
      matrix(TensorKind::latent_q_down, format, q_columns, config_.hidden, attention.bias, {});
      norm(TensorKind::latent_q_norm, attention.latent_norm, q_columns);
    }
    matrix(TensorKind::latent_q, format, attention.q_dim(), q_columns, false,
           {.split = heads_of(attention.q_head_dim())});
    matrix(TensorKind::latent_kv, format, attention.kept_dim(), config_.hidden, attention.bias, {});
    norm(TensorKind::latent_kv_norm, attention.latent_norm, attention.kv_rank);
    matrix(TensorKind::latent_k, format, attention.n_heads * attention.kv_rank, attention.nope_dim,
           false, {.split = heads_of(attention.kv_rank), .blocks = attention.n_heads});
    const int64_t v_dim = attention.value_head_dim;
    matrix(TensorKind::latent_v, format, attention.sums_dim(), attention.kv_rank, false,
           {.split = heads_of(v_dim),
            .blocks = attention.n_heads,
            .heads = {.dim = config_.values_rotated ? v_dim : 0}});
    if (attention.head_gate) {
      matrix(TensorKind::latent_gate, format, attention.n_heads, config_.hidden, false,
             {.split = heads_of(1)});
    }
    matrix(TensorKind::attention_out, format, config_.hidden, attention.sums_dim(), attention.bias,
           sums_of_values(units, attention.n_heads, v_dim, config_.values_rotated));
  }

  void mixer(const DeltaNetConfig& delta_net) {
    const RecurrentShape shape = recurrent_shape(delta_net, config_.hidden);
    const HeadUnits units = head_units(config_, delta_net);
    const int64_t n_heads = delta_net.n_value_heads;
    const SplitRule::Part keys = units.of_key_heads(delta_net.n_key_heads, delta_net.key_head_dim);
    const SplitRule::Part values = units.of_heads(n_heads, delta_net.value_head_dim);
    RecurrentParts parts{
        .in = {keys, keys, values, delta_net.gate_rank > 0 ? SplitRule::Part{} : values},
        .convolved = {keys, keys, values}};
    size_t n = 0;
    if (shape.raised == 0) {
      parts.gates[n++] = units.of_heads(n_heads, delta_net.n_decays() / n_heads);
    }
    parts.gates[n++] = units.of_heads(n_heads, 1);
    for (const int64_t rank : {delta_net.decay_rank, delta_net.gate_rank}) {
      if (rank > 0) parts.gates[n++] = {.extent = rank, .unit = rank};
    }
    const SplitRule decays = rows_of_heads(units, n_heads, delta_net.n_decays() / n_heads);
    first_product(shape, delta_net.convolution, false, parts);
    if (shape.raised > 0) gates_up(shape.raised, delta_net.decay_rank, decays);
    vector(TensorKind::recurrent_decay, shape.n_heads, TensorRole::bias,
           rows_of_heads(units, n_heads, 1));
    vector(TensorKind::recurrent_step, delta_net.n_decays(), TensorRole::bias, decays);
    norm(TensorKind::recurrent_norm, delta_net.norm, shape.value_dim);
    if (delta_net.gate_rank > 0) {
      matrix(TensorKind::recurrent_factors, config_.weight_format, shape.sums, delta_net.gate_rank,
             false, {.split = rows_of_heads(units, n_heads, shape.value_dim)});
    }
    matrix(TensorKind::recurrent_out, config_.weight_format, config_.hidden, shape.sums, false,
           {.split = columns_of_heads(units, n_heads, shape.value_dim)});
  }

  void mixer(const StateSpaceConfig& state_space) {
    const RecurrentShape shape = recurrent_shape(state_space, config_.hidden);
    const HeadUnits units = head_units(config_, state_space);
    const SplitRule::Part x = units.of_heads(shape.n_heads, state_space.head_dim);
    const SplitRule::Part of_groups =
        units.of_key_heads(state_space.n_groups, state_space.state_size);
    const RecurrentParts parts{.in = {x, of_groups, of_groups, x},
                               .gates = {units.of_heads(shape.n_heads, 1)},
                               .convolved = {x, of_groups, of_groups}};
    const SplitRule each_head = rows_of_heads(units, shape.n_heads, 1);
    first_product(shape, state_space.convolution, state_space.in_bias, parts);
    vector(TensorKind::recurrent_decay, shape.n_heads, TensorRole::bias, each_head);
    vector(TensorKind::recurrent_step, shape.n_heads, TensorRole::bias, each_head);
    vector(TensorKind::recurrent_skip, shape.n_heads, TensorRole::bias, each_head);
    norm(TensorKind::recurrent_norm, state_space.norm, shape.sums,
         rows_of_heads(units, shape.n_heads, state_space.head_dim));
    matrix(TensorKind::recurrent_out, config_.weight_format, config_.hidden, shape.sums,
           state_space.out_bias,
           {.split = columns_of_heads(units, shape.n_heads, state_space.head_dim)});
  }

  void mixer(const ShortConvolutionConfig& mixer) {
    const RecurrentShape shape = recurrent_shape(mixer, config_.hidden);
    const HeadUnits units = head_units(config_, mixer);
    const SplitRule::Part channels = units.of_heads(shape.channels, 1);
    const RecurrentParts parts{.in = {channels, channels, channels}, .convolved = {channels}};
    first_product(shape, mixer.convolution, mixer.bias, parts);
    matrix(TensorKind::recurrent_out, config_.weight_format, config_.hidden, shape.sums, mixer.bias,
           {.split = columns_of_heads(units, shape.channels, 1)});
  }

  void mixer(const SelectiveScanConfig& scan) {
    const RecurrentShape shape = recurrent_shape(scan, config_.hidden);
    const SplitRule::Part channels = head_units(config_, scan).of_heads(scan.channels, 1);
    const SplitRule each_channel = of_heads({channels});
    SplitRule columns = each_channel;
    columns.columns = true;
    matrix(TensorKind::recurrent_in, config_.weight_format, shape.in, config_.hidden, scan.bias,
           {.split = of_heads({channels, channels})});
    convolution(shape, scan.convolution, each_channel);
    gates(shape, scan.channels, false, columns);
    norm(TensorKind::recurrent_gates_norm, scan.norm, shape.gates);
    gates_up(shape.raised, shape.rank, each_channel);
    add({.id = id(TensorKind::recurrent_decay),
         .shape = {scan.channels, scan.state_size},
         .role = TensorRole::bias,
         .split = each_channel});
    vector(TensorKind::recurrent_step, scan.channels, TensorRole::bias, each_channel);
    vector(TensorKind::recurrent_skip, scan.channels, TensorRole::bias, each_channel);
    matrix(TensorKind::recurrent_out, config_.weight_format, config_.hidden, shape.sums, scan.bias,
           {.split = columns});
  }

  void mixer(const LinearAttentionConfig& mixer) {
    const RecurrentShape shape = recurrent_shape(mixer, config_.hidden);
    const HeadUnits units = head_units(config_, mixer);
    const SplitRule::Part heads = units.of_heads(mixer.n_heads, mixer.head_dim);
    matrix(TensorKind::recurrent_in, config_.weight_format, shape.in, config_.hidden, false,
           {.split = of_heads({heads, heads, heads}), .activation = mixer.activation});
    vector(TensorKind::recurrent_decay, shape.n_heads, TensorRole::bias,
           rows_of_heads(units, mixer.n_heads, 1));
    norm(TensorKind::recurrent_norm, mixer.norm, shape.sums, of_heads({heads}));
    matrix(TensorKind::recurrent_factors, config_.weight_format, shape.sums, config_.hidden, false,
           {.split = of_heads({heads})});
    matrix(TensorKind::recurrent_out, config_.weight_format, config_.hidden, shape.sums, false,
           {.split = columns_of_heads(units, mixer.n_heads, mixer.head_dim)});
  }

  // Of rows of a recurrent mixer's tensors.
  struct RecurrentParts {
    SplitRule::Parts in{};
    SplitRule::Parts gates{};
    SplitRule::Parts convolved{};
  };

  void first_product(const RecurrentShape& shape, const ConvolutionConfig& convolution, bool bias,
                     const RecurrentParts& parts) {
    matrix(TensorKind::recurrent_in, config_.weight_format, shape.in, config_.hidden, bias,
           {.split = of_heads(parts.in)});
    if (shape.gates > 0) gates(shape, config_.hidden, bias, of_heads(parts.gates));
    this->convolution(shape, convolution, of_heads(parts.convolved));
  }

  // What decays over a whole text is made of these few rows: they are kept as the checkpoint has
  // them.
  void gates(const RecurrentShape& shape, int64_t inputs, bool bias, const SplitRule& split) {
    matrix(TensorKind::recurrent_gates, config_.embedding_format, shape.gates, inputs, bias,
           {.split = split});
  }

  void gates_up(int64_t rows, int64_t rank, const SplitRule& split) {
    matrix(TensorKind::recurrent_gates_up, config_.embedding_format, rows, rank, false,
           {.split = split});
  }

  void convolution(const RecurrentShape& shape, const ConvolutionConfig& convolution,
                   const SplitRule& split) {
    const TensorId weights = id(TensorKind::recurrent_convolution);
    add({.id = weights,
         .shape = {shape.channels, shape.taps},
         .role = TensorRole::bias,
         .split = split});
    if (convolution.bias) {
      add({.id = bias_of(weights),
           .shape = {shape.channels},
           .role = TensorRole::bias,
           .split = split});
    }
  }

  void cross_attention(const AttentionConfig& attention, const BranchNorms& norms) {
    const WeightFormat format = config_.weight_format;
    const HeadUnits units = head_units(config_, attention);
    norm(TensorKind::cross_norm, norms.before);
    matrix(TensorKind::cross_q, format, attention.q_dim(), config_.hidden, attention.qkv_bias,
           {.split = of_heads({queries(units, attention)})});
    matrix(TensorKind::cross_kv, format, attention.k_dim() + attention.v_dim(),
           config_.encoder->hidden, attention.qkv_bias,
           {.split = of_heads({keys(units, attention), values(units, attention)}),
            .heads = rotated_values(attention, attention.k_dim())});
    matrix(TensorKind::cross_out, format, config_.hidden, attention.sums_dim(), attention.out_bias,
           sums_of_values(attention));
    norm(TensorKind::cross_after_norm, norms.after);
    norm(TensorKind::cross_stream_norm, norms.stream);
  }

  void experts(const ExpertsConfig& experts) {
    const TensorReaders readers = of_feed_forward();
    norm(TensorKind::router_norm, experts.router_norm);
    matrix(TensorKind::router, WeightFormat::f32, experts.scored(), config_.hidden,
           experts.router.bias, {.readers = readers});
    if (experts.router.correction) {
      vector(TensorKind::router_correction, experts.scored(), TensorRole::bias);
    }
    if (experts.router.expert_scales) {
      vector(TensorKind::expert_scales, experts.scored(), TensorRole::norm);
    }
    norm(TensorKind::experts_norm, experts.norm);
    feed_forward(expert_tensors(experts.each), experts.each, experts.count);
    norm(TensorKind::experts_after_norm, experts.norm_after);
    if (experts.shared.size != 0) feed_forward(shared_tensors(experts.shared), experts.shared);
    if (experts.shared_gate) {
      matrix(TensorKind::shared_gate, WeightFormat::f32, 1, config_.hidden, false,
             {.readers = readers});
    }
    norm(TensorKind::shared_after_norm, experts.shared_norm_after);
    if (experts.sum_bias) {
      vector(TensorKind::experts_sum_bias, config_.hidden, TensorRole::bias);
    }
  }

  void feed_forward(const FeedForwardTensors& tensors, const FeedForwardConfig& ffn,
                    int64_t experts = 0) {
    feed_forward(tensors, ffn, experts, of_feed_forward());
  }
  void feed_forward(const FeedForwardTensors& tensors, const FeedForwardConfig& ffn,
                    int64_t experts, TensorReaders readers) {
    const int64_t copies = std::max<int64_t>(experts, 1);
    const int64_t up_rows = copies * ffn.up_dim();
    const int64_t down_rows = copies * config_.hidden;
    const SplitRule::Part middle = middle_part(config_, ffn);
    const SplitRule of_up{.by = SplitBy::output,
                          .parts = {{middle, ffn.gated ? middle : SplitRule::Part{}}},
                          .repeats = copies};
    const SplitRule of_down{.by = SplitBy::input, .columns = true, .parts = {{middle}}};
    matrix(tensors.up, config_.weight_format, up_rows, config_.hidden, ffn.bias,
           {.readers = readers,
            .split = of_up,
            .experts = experts,
            .gated = ffn.gated,
            .cuts_gates = ffn.cutoff.has_value(),
            .activation = ffn.activation});
    norm(TensorKind::ffn_middle_norm, ffn.middle_norm, ffn.size,
         {.by = SplitBy::output, .parts = {{middle}}});
    matrix(tensors.down, config_.weight_format, down_rows, ffn.size, ffn.bias,
           {.readers = readers, .split = of_down, .experts = experts});
  }

  void dense() {
    int64_t columns = config_.hidden;
    for (const DenseConfig& layer : dense_layers(config_)) {
      matrix(TensorKind::dense, WeightFormat::f32, layer.size, columns, layer.bias,
             {.readers = TensorReaders::wanted, .activation = layer.activation});
      norm(TensorKind::dense_norm, layer.norm, layer.size);
      columns = layer.size;
      ++n_;
    }
    n_ = 0;
  }

  void output() {
    const OutputConfig& output = config_.output;
    if (output.none || output.shared) return;
    if (!output.tied) {
      matrix(TensorKind::output, config_.output_format, config_.output_rows(), config_.hidden,
             output.bias,
             {.readers = TensorReaders::wanted, .split = of_vocabulary(config_.output_rows())});
    } else if (output.bias) {
      add({.id = bias_of(id(TensorKind::output)),
           .shape = {config_.vocab},
           .role = TensorRole::bias,
           .split = of_vocabulary(config_.output_rows())});
    }
  }

  // The format of the layer's matrix of that kind unless the description says another.
  [[nodiscard]] WeightFormat format_of(TensorKind kind, WeightFormat format) const {
    for (const FormatRule& rule : config_.formats) {
      if (rule.is_of(kind, n_)) format = rule.format;
    }
    return format;
  }

  void matrix(TensorKind kind, WeightFormat unless_ruled, int64_t rows, int64_t cols, bool bias,
              const MatrixTraits& traits) {
    const WeightFormat format = format_of(kind, unless_ruled);
    const auto& [role, readers, split, experts, blocks, gated, cuts_gates, activation, heads] =
        traits;
    TensorPlan plan{
        .id = id(kind),
        .format = format,
        .shape = {rows, cols},
        .role = role,
        .readers = readers,
        .split = split,
        .experts = experts,
        .blocks = blocks,
        .gated = gated,
        .cuts_gates = cuts_gates,
        .activation = activation,
        .rotated = is_integer(format) && config_.rotated && !heads.columns && blocks == 0,
        .heads = heads};
    TensorPlan of_rows{.id = plan.id,
                       .shape = {rows},
                       .readers = readers,
                       .split = split.columns ? SplitRule{} : split,
                       .experts = experts};
    const ScaleShape scale = scale_shape(format);
    if (scale.columns > 0) {
      TensorPlan scales = of_rows;
      scales.id = scales_of(scales.id);
      scales.role = TensorRole::scales;
      scales.format = scale.format;
      if (scale.columns > 1) scales.shape.push_back(scale.columns);
      add(std::move(plan));
      add(std::move(scales));
    } else {
      add(std::move(plan));
    }
    if (bias) {
      of_rows.id = bias_of(of_rows.id);
      of_rows.role = TensorRole::bias;
      if (!heads.columns) of_rows.heads = heads;
      add(std::move(of_rows));
    }
  }

  void norm(TensorKind kind, const NormConfig& norm) { this->norm(kind, norm, config_.hidden); }
  void norm(TensorKind kind, const NormConfig& norm, int64_t size, const SplitRule& split = {}) {
    if (!norm) return;
    vector(kind, size, TensorRole::norm, split);
    if (!norm.bias) return;
    add({.id = bias_of(id(kind)), .shape = {size}, .role = TensorRole::bias, .split = split});
  }

  void vector(TensorKind kind, int64_t size, TensorRole role, const SplitRule& split = {}) {
    add({.id = id(kind), .shape = {size}, .role = role, .split = split});
  }

  void add(TensorPlan plan) {
    plan.name = tensor_name(plan.id);
    tensors_.push_back(std::move(plan));
  }

  [[nodiscard]] TensorId id(TensorKind kind) const { return {.kind = kind, .n = n_}; }

  // In the last layer other tokens see no more of a token than what the mixer keeps of it.
  [[nodiscard]] TensorReaders of_feed_forward() const {
    const bool is_last = n_ + 1 == config_.n_layers();
    return is_last && !config_.output.none && !config_.layer(n_).parallel ? TensorReaders::wanted
                                                                          : TensorReaders::all;
  }

  static SplitRule of_vocabulary(int64_t rows) {
    return {.by = SplitBy::vocabulary, .parts = {{{rows}}}};
  }
  static SplitRule of_heads(const SplitRule::Parts& parts) {
    return {.by = parts[0].extent > 0 ? SplitBy::head : SplitBy::none, .parts = parts};
  }
  static SplitRule rows_of_heads(const HeadUnits& units, int64_t n_heads, int64_t dim) {
    return of_heads({units.of_heads(n_heads, dim)});
  }
  static SplitRule columns_of_heads(const HeadUnits& units, int64_t n_heads, int64_t dim) {
    SplitRule split = rows_of_heads(units, n_heads, dim);
    split.columns = true;
    return split;
  }
  static SplitRule::Part queries(const HeadUnits& units, const AttentionConfig& attention) {
    return units.of_heads(attention.n_heads, attention.head_dim);
  }
  static SplitRule::Part keys(const HeadUnits& units, const AttentionConfig& attention) {
    return units.of_key_heads(attention.n_kv_heads, attention.head_dim);
  }
  static SplitRule::Part values(const HeadUnits& units, const AttentionConfig& attention) {
    return units.of_key_heads(attention.n_kv_heads, attention.v_head_dim());
  }
  static SplitRule::Part sums(const HeadUnits& units, const AttentionConfig& attention) {
    return units.of_heads(attention.n_heads, attention.v_head_dim());
  }
  [[nodiscard]] bool rotates_values(const AttentionConfig& attention) const {
    return faststream::rotates_values(config_, attention);
  }
  // Of values, in the rows of a product that gives so many elements before.
  [[nodiscard]] HeadRotation rotated_values(const AttentionConfig& attention,
                                            int64_t before) const {
    if (!rotates_values(attention)) return {};
    return {.dim = attention.v_head_dim(), .first_row = before};
  }
  [[nodiscard]] MatrixTraits sums_of_values(const AttentionConfig& attention) const {
    return sums_of_values(head_units(config_, attention), attention.n_heads, attention.v_head_dim(),
                          rotates_values(attention));
  }
  // What multiplies the sums of values of all heads.
  static MatrixTraits sums_of_values(const HeadUnits& units, int64_t n_heads, int64_t head_dim,
                                     bool rotated) {
    MatrixTraits traits{.split = columns_of_heads(units, n_heads, head_dim)};
    if (rotated) traits.heads = {.dim = head_dim, .columns = true};
    return traits;
  }

  const ModelConfig& config_;
  int64_t n_ = 0;  // of the layer, or dense layer
  std::vector<TensorPlan> tensors_;
};

}  // namespace

HeadUnits head_units(const ModelConfig& config, const AttentionConfig& attention) {
  return units_of(attention.n_kv_heads, attention.n_heads, attention.v_head_dim(),
                  columns_together(config, !rotates_values(config, attention)));
}
HeadUnits head_units(const ModelConfig& config, const LatentAttentionConfig& attention) {
  // Their common keys, the latents, are of no units.
  return units_of(attention.n_heads, attention.n_heads, attention.value_head_dim,
                  columns_together(config, !config.values_rotated));
}
HeadUnits head_units(const ModelConfig& config, const DeltaNetConfig& mixer) {
  return units_of(mixer.n_key_heads, mixer.n_value_heads, mixer.value_head_dim,
                  columns_together(config, true));
}
HeadUnits head_units(const ModelConfig& config, const StateSpaceConfig& mixer) {
  return units_of(mixer.n_groups, mixer.n_heads, mixer.head_dim, columns_together(config, true));
}
HeadUnits head_units(const ModelConfig& config, const LinearAttentionConfig& mixer) {
  return units_of(mixer.n_heads, mixer.n_heads, mixer.head_dim, columns_together(config, true));
}
HeadUnits head_units(const ModelConfig& config, const SelectiveScanConfig& mixer) {
  return units_of(mixer.channels, mixer.channels, 1, columns_together(config, true));
}
HeadUnits head_units(const ModelConfig& config, const ShortConvolutionConfig& mixer) {
  const int64_t channels = recurrent_shape(mixer, config.hidden).channels;
  return units_of(channels, channels, 1, columns_together(config, true));
}

SplitRule::Part middle_part(const ModelConfig& config, const FeedForwardConfig& ffn) {
  return {.extent = ffn.size, .unit = columns_together(config, true)};
}

std::vector<int64_t> TensorPlan::stored_shape() const {
  std::vector<int64_t> stored = shape;
  if (stored.size() == 2) stored[1] = stored_columns(format, stored[1]);
  return stored;
}

const ModelConfig& stack_of(const ModelConfig& config, const TensorId& id) {
  if (id.predictor > 0) return config.predictors.at(static_cast<size_t>(id.predictor) - 1);
  return id.of_encoder ? *config.encoder : config;
}

std::string tensor_name(const TensorId& id) {
  std::string name = id.of_encoder ? "encoder." : "";
  if (id.predictor > 0) name = "predictors." + std::to_string(id.predictor - 1) + ".";
  if (is_of_layers(id.kind)) name += "layers." + std::to_string(id.n) + ".";
  const bool is_dense_norm = id.kind == TensorKind::dense_norm;
  name += is_dense_norm ? "dense" : kind_name(id.kind);
  if (id.kind == TensorKind::dense || is_dense_norm) name += "." + std::to_string(id.n);
  if (is_dense_norm) name += "_norm";
  if (id.member == TensorMember::scales) name += ".scales";
  if (id.member == TensorMember::bias) name += "_bias";
  if (id.member == TensorMember::adapter_a) name += ".a";
  if (id.member == TensorMember::adapter_b) name += ".b";
  return name;
}

FeedForwardTensors ffn_tensors(const FeedForwardConfig& ffn) {
  return {ffn.gated ? TensorKind::ffn_gate_up : TensorKind::ffn_up, TensorKind::ffn_down};
}

FeedForwardTensors expert_tensors(const FeedForwardConfig& each) {
  return {each.gated ? TensorKind::experts_gate_up : TensorKind::experts_up,
          TensorKind::experts_down};
}

FeedForwardTensors shared_tensors(const FeedForwardConfig& shared) {
  return {shared.gated ? TensorKind::shared_gate_up : TensorKind::shared_up,
          TensorKind::shared_down};
}

FeedForwardTensors aside_tensors(const FeedForwardConfig& ffn) {
  return {ffn.gated ? TensorKind::aside_gate_up : TensorKind::aside_up, TensorKind::aside_down};
}

SplitShare share_of(const SplitRule::Part& part, RankPlace rank) {
  const int64_t count = rank.count;
  const int64_t units = (part.extent + part.unit - 1) / part.unit;
  const int64_t first = rank.index * units / count;
  const auto elements = [&](int64_t begin, int64_t end) {
    return SplitShare{begin, std::min(end, part.extent) - begin};
  };
  if (units >= count) {
    return elements(first * part.unit, (rank.index + 1) * units / count * part.unit);
  }
  if (part.fine == 0) return elements(first * part.unit, (first + 1) * part.unit);
  // Those that share the unit: rank r has unit ⌊r · units / count⌋.
  const int64_t first_rank = (first * count + units - 1) / units;
  const int64_t end_rank = ((first + 1) * count + units - 1) / units;
  const int64_t begin = first * part.unit;
  const int64_t extent = std::min(part.unit, part.extent - begin);
  SplitShare share = share_of({.extent = extent, .unit = part.fine},
                              {.index = static_cast<int32_t>(rank.index - first_rank),
                               .count = static_cast<int32_t>(end_rank - first_rank)});
  share.first += begin;
  if (extent / part.fine < end_rank - first_rank) share.count = 0;
  return share;
}

std::vector<SplitShare> shares_of(const SplitRule& rule, RankPlace rank) {
  std::vector<SplitShare> shares;
  int64_t part_begin = 0;
  for (int64_t n = 0; n < rule.repeats; ++n) {
    for (const SplitRule::Part& part : rule.parts) {
      if (part.extent == 0) break;
      SplitShare share = share_of(part, rank);
      share.first += part_begin;
      shares.push_back(share);
      part_begin += part.extent;
    }
  }
  return shares;
}

std::vector<TensorPlan> tensor_plan(const ModelConfig& config) {
  std::vector<TensorPlan> tensors = Planner(config).plan();
  const auto add = [&](const ModelConfig& stack, bool of_encoder, int64_t predictor) {
    for (TensorPlan& tensor : Planner(stack).plan()) {
      tensor.id.of_encoder = of_encoder;
      tensor.id.predictor = predictor;
      tensor.name = tensor_name(tensor.id);
      tensors.push_back(std::move(tensor));
    }
  };
  if (config.encoder) add(*config.encoder, true, 0);
  const size_t n_predictors = config.has_first_layer() ? config.predictors.size() : 0;
  for (size_t n = 0; n < n_predictors; ++n) {
    add(config.predictors[n], false, static_cast<int64_t>(n) + 1);
  }
  return tensors;
}

TensorSizes sizes_of(std::span<const TensorPlan> tensors) {
  TensorSizes sizes;
  uint64_t bytes_of_matrices = 0;
  uint64_t weights = 0;
  for (const TensorPlan& tensor : tensors) {
    uint64_t elements = 1;
    for (const int64_t n : tensor.shape) elements *= static_cast<uint64_t>(n);
    const auto columns = static_cast<uint64_t>(tensor.columns());
    const uint64_t bytes =
        elements / columns * static_cast<uint64_t>(tensor.bytes_of_columns(tensor.columns()));
    sizes.bytes += bytes;
    if (tensor.is_multiplied()) weights += elements;
    if (tensor.is_multiplied() || tensor.role == TensorRole::scales) bytes_of_matrices += bytes;
  }
  if (weights > 0) {
    sizes.bits_a_weight = 8 * static_cast<double>(bytes_of_matrices) / static_cast<double>(weights);
  }
  return sizes;
}

}  // namespace faststream
