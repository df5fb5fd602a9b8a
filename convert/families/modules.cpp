#include "convert/families/modules.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "support/error.h"

namespace faststream::convert {
namespace {

using Parts = std::vector<TensorPart>;

// Makes the parts of one tensor.
class PartsMaker {
 public:
  PartsMaker(const ModelConfig& config, const Modules& modules, std::string base, TensorId target)
      : config_(config),
        modules_(modules),
        base_(std::move(base)),
        target_(target),
        is_bias_(target.member == TensorMember::bias),
        layer_(config.layer(is_of_layers(target.kind) ? target.n : 0)) {}

  [[nodiscard]] Parts make() const {
    using enum TensorKind;
    const int64_t hidden = config_.hidden;
    const int64_t embedding_size = config_.embedding_size();
    const Modules& m = modules_;
    switch (target_.kind) {
      case embedding:
        return {matrix(base_ + m.embedding, config_.vocab, embedding_size)};
      case positions:
        return {matrix(base_ + m.positions, config_.embedding.positions, embedding_size)};
      case segments:
        return {matrix(base_ + m.segments, config_.embedding.segments, embedding_size)};
      case embedding_norm:
        return {norm(m.embedding_norm.empty() ? "" : base_ + m.embedding_norm, embedding_size)};
      case embedding_projection:
        return {matrix(base_ + m.embedding_projection, hidden, embedding_size)};
      case layer_inputs:
        return layer_inputs_table();
      case layer_inputs_projection:
        return {matrix(base_ + m.layer_inputs_projection, config_.layer_inputs_dim(), hidden)};
      case layer_inputs_norm:
        return {scaled(norm(base_ + m.layer_inputs_norm, config_.layer_inputs.size),
                       m.layer_inputs_norm_scale)};
      case hidden_norm:
        return {base_norm(m.hidden_norm)};
      case hidden_projection:
        return {matrix(base_ + m.hidden_projection, hidden, 2 * hidden)};
      case layer_states_norm:
        return layer_states_norms();
      case layer_states_projection:
        return {matrix(base_ + m.layer_states_projection, hidden, layer_states_dim())};
      case altup_in:
        return of_other_streams(m.altup_in);
      case altup_norm:
        return {layer_norm(m.altup_norm)};
      case altup_gates:
        return {scaled(product(m.altup_gates, config_.altup.streams, hidden), m.altup_gates_scale)};
      case altup_predict:
        return predictions();
      case altup_correct:
        return corrections();
      case altup_out:
        return of_other_streams(m.altup_out);
      case attention_norm:
        return {layer_norm(m.attention_norm)};
      case aside_norm:
      case aside_qkv:
      case aside_out:
      case aside_middle_norm:
      case aside_gate_up:
      case aside_up:
      case aside_down:
        return {};  // which layers share them is the family's to say, in `finish`
      case attention_qkv:
        return queries_keys_values();
      case attention_q_norm:
        return head_norms(m.q_norm, attention().n_heads);
      case attention_k_norm:
        return head_norms(m.k_norm, attention().n_kv_heads);
      case attention_sinks:
        return {{.source = in_layer(m.sinks), .shape = {attention().n_heads}}};
      case attention_distances:
        return {distances()};
      case attention_relative_keys:
      case attention_relative_queries:
      case token_convolution:
      case token_convolution_norm:
        return {};  // what they are made of is the family's to say, in `finish`
      case latent_q_down:
        return {product(m.latent_q_down, latent().q_rank, hidden)};
      case latent_q_norm:
        return {scaled(norm(in_layer(m.latent_q_norm), latent().q_rank), m.latent_q_scale)};
      case latent_q:
        return latent_queries();
      case latent_kv:
        return latent_rows();
      case latent_kv_norm:
        return {scaled(norm(in_layer(m.latent_kv_norm), latent().kv_rank), m.latent_kv_scale)};
      case latent_k:
        return latent_keys();
      case latent_v:
        return latent_values();
      case latent_gate:
        return {product(m.latent_gate, latent().n_heads, hidden)};
      case attention_sums_norm:
        return {norm(in_layer(m.attention_sums_norm), attention().sums_dim())};
      case attention_out:
        return {branch_end(product(m.attention_out, hidden, sums_dim()))};
      case recurrent_in:
      case recurrent_gates:
        return recurrent_rows();
      case recurrent_convolution:
        return by_value_head(convolution(), recurrent().value_dim);
      case recurrent_gates_norm:
        return scan_norms();
      case recurrent_gates_up:
        return {product(m.recurrent_gates_up, recurrent().raised, gates_rank())};
      case recurrent_decay:
        return by_value_head({.source = in_layer(m.recurrent_decay),
                              .shape = rates_shape(),
                              .log_of_opposite = m.decay_is_rate},
                             1);
      case recurrent_step:
        return by_value_head({.source = in_layer(m.recurrent_step), .shape = {n_steps()}}, 1);
      case recurrent_skip:
        return {{.source = in_layer(m.recurrent_skip), .shape = {rates_shape()[0]}}};
      case recurrent_norm:
        return {recurrent_norm_weights()};
      case recurrent_factors:
        return {product(m.recurrent_factors, recurrent().sums,
                        delta_net() != nullptr ? delta_net()->gate_rank : hidden)};
      case recurrent_out:
        return {recurrent_out_product()};
      case attention_after_norm:
        return {residual(layer_norm(m.attention_after_norm))};
      case attention_stream_norm:
        return {layer_norm(m.attention_stream_norm)};
      case laurel_in:
        return {product(m.laurel_in, layer_.laurel.rank, hidden)};
      case laurel_out:
        return {product(m.laurel_out, hidden, layer_.laurel.rank)};
      case laurel_norm:
        return {layer_norm(m.laurel_norm)};
      case cross_norm:
        return {layer_norm(m.cross_norm)};
      case cross_q:
        return {product(m.cross_qkv[0], attention().q_dim(), hidden)};
      case cross_kv:
        return {product(m.cross_qkv[1], attention().k_dim(), config_.encoder->hidden),
                product(m.cross_qkv[2], attention().v_dim(), config_.encoder->hidden)};
      case cross_out:
        return {residual(product(m.cross_out, hidden, attention().sums_dim()))};
      case cross_after_norm:
        return {layer_norm(m.cross_after_norm)};
      case cross_stream_norm:
        return {layer_norm(m.cross_stream_norm)};
      case ffn_norm:
        return {layer_norm(m.ffn_norm)};
      case ffn_gate_up:
      case ffn_up:
        if (is_bias_ && !m.gate_up_bias) return {{.source = "", .shape = {layer_.ffn.up_dim()}}};
        return gate_up(layer_.ffn, "", m.gate_up);
      case ffn_xielu:
        return {{.source = in_layer(m.xielu + ".alpha_p"), .shape = {1}},
                {.source = in_layer(m.xielu + ".alpha_n"), .shape = {1}},
                {.source = in_layer(m.xielu + ".beta"), .shape = {}}};
      case ffn_middle_norm:
        return {norm(in_layer(m.ffn_middle_norm), layer_.ffn.size)};
      case ffn_down:
        return {branch_end(product(m.down, hidden, layer_.ffn.size))};
      case router_norm:
        return {
            {.source = in_layer(m.router_norm), .shape = {hidden}, .scale = m.router_norm_scale}};
      case router:
        return {product(m.router, layer_.experts->scored(), hidden)};
      case router_correction:
        return {{.source = in_layer(m.correction), .shape = {layer_.experts->scored()}}};
      case expert_scales:
        return {{.source = in_layer(m.expert_scales), .shape = {layer_.experts->scored()}}};
      case experts_norm:
        return {layer_norm(m.experts_norm)};
      case experts_after_norm:
        return {layer_norm(m.experts_after_norm)};
      case experts_gate_up:
      case experts_up:
        return all_experts([this](int64_t e) { return expert_gate_up(e); });
      case experts_down:
        if (!m.experts_down.empty()) {
          return {branch_end(of_all_experts(m.experts_down, hidden, layer_.experts->each.size))};
        }
        return all_experts([this](int64_t e) { return Parts{expert_down(e)}; });
      case shared_gate_up:
      case shared_up:
        return gate_up(layer_.experts->shared, "", m.shared_gate_up);
      case shared_down:
        return {shared_down_product()};
      case shared_gate:
        return {product(m.shared_gate, 1, hidden)};
      case shared_after_norm:
        return {layer_norm(m.shared_after_norm)};
      case experts_sum_bias:
        return {branch_end({.source = in_layer(m.experts_sum_bias), .shape = {hidden}})};
      case ffn_after_norm:
        return {residual(layer_norm(m.ffn_after_norm))};
      case ffn_stream_norm:
        return {layer_norm(m.ffn_stream_norm)};
      case input_scale:
        return {{.source = in_layer(m.input_scale), .shape = {hidden}}};
      case input_gate:
        return {product(m.input_gate, config_.layer_inputs.size, hidden)};
      case input_out:
        return {product(m.input_out, hidden, config_.layer_inputs.size)};
      case input_after_norm:
        return {layer_norm(m.input_after_norm)};
      case stream_scale:
        return {{.source = in_layer(m.stream_scale), .shape = {1}}};
      case output_norm:
        return {last_norm()};
      case dense:
        return {dense_product()};
      case dense_norm:
        return {norm(m.dense.at(index()).norm, dense_layers(config_).at(index()).size)};
      case output:
        return {output_matrix()};
    }
    return {};
  }

 private:
  [[nodiscard]] int64_t layer_states_dim() const {
    return config_.hidden_input->layer_states.count() * config_.hidden;
  }
  [[nodiscard]] Parts layer_states_norms() const {
    Parts parts;
    const auto n_norms = static_cast<int64_t>(modules_.layer_states_norms.size());
    for (const std::string& module : modules_.layer_states_norms) {
      parts.push_back(norm(base_ + module, layer_states_dim() / n_norms));
    }
    return parts;
  }

  [[nodiscard]] Parts layer_inputs_table() const {
    const int64_t rows =
        modules_.layer_inputs_rows > 0 ? modules_.layer_inputs_rows : config_.vocab;
    const TensorPart table =
        matrix(base_ + modules_.layer_inputs, rows, config_.layer_inputs_dim());
    Parts parts = {rows_of(table, 0, std::min(rows, config_.vocab))};
    for (int64_t id = rows; id < config_.vocab; ++id) parts.push_back(rows_of(table, 0, 1));
    return parts;
  }

  [[nodiscard]] Parts of_other_streams(const std::string& modules) const {
    Parts parts;
    for (int64_t n = 0; n + 1 < config_.altup.streams; ++n) {
      parts.push_back(matrix(base_ + modules + std::to_string(n), config_.hidden, config_.hidden));
    }
    return parts;
  }

  // --- Rows for Backend::combine(), which weigh part r for part c: row c · parts + r. Parts are
  // the streams, then the first of them as it was before the layer.
  // -----------------------------------

  // Each stream takes its prediction, and the last part that of the first.
  [[nodiscard]] Parts predictions() const {
    const int64_t streams = config_.altup.streams;
    const int64_t n_parts = config_.altup.parts();
    if (is_bias_) {
      std::vector<float> identity(static_cast<size_t>(n_parts * n_parts));
      for (int64_t c = 0; c < n_parts; ++c) {
        identity[static_cast<size_t>(c * n_parts + c % streams)] = 1;
      }
      return {computed(std::move(identity))};
    }
    const TensorPart all = product(modules_.altup_predict, streams * streams, streams);
    Parts parts;
    for (int64_t c = 0; c < n_parts; ++c) {
      parts.push_back(rows_of(all, c % streams * streams, streams));
      parts.push_back(zero_rows(1, streams));
    }
    return parts;
  }

  // Stream c takes (1 + w_c) (x_0 - x_before) besides itself, the first x_before in its own place.
  [[nodiscard]] Parts corrections() const {
    const int64_t streams = config_.altup.streams;
    const int64_t n_parts = config_.altup.parts();
    if (is_bias_) {
      std::vector<float> biases(static_cast<size_t>(n_parts * n_parts));
      for (int64_t c = 0; c < streams; ++c) {
        float* of_part = &biases[static_cast<size_t>(c * n_parts)];
        of_part[0] = of_part[c] = 1;
        of_part[streams] = c == 0 ? 0 : -1.0F;
      }
      return {computed(std::move(biases))};
    }
    const TensorPart all = product(modules_.altup_correct, streams, streams);
    Parts parts;
    for (int64_t c = 0; c < streams; ++c) {
      parts.push_back(rows_of(all, c, 1));
      parts.push_back(zero_rows(streams - 1, streams));
      parts.push_back(scaled(rows_of(all, c, 1), -1));
    }
    parts.push_back(zero_rows(n_parts, streams));
    return parts;
  }

  [[nodiscard]] static TensorPart zero_rows(int64_t rows, int64_t cols) {
    return {.source = "", .shape = {rows, cols}};
  }
  [[nodiscard]] static TensorPart computed(std::vector<float> values) {
    TensorPart part{.source = "", .shape = {static_cast<int64_t>(values.size())}};
    part.values = std::make_shared<const std::vector<float>>(std::move(values));
    return part;
  }

  // Of the layer, whose mixer or cross attention has the tensor.
  [[nodiscard]] const AttentionConfig& attention() const { return layer_.attention(); }

  [[nodiscard]] const LatentAttentionConfig& latent() const {
    return layer_.get<LatentAttentionConfig>();
  }
  [[nodiscard]] int64_t sums_dim() const {
    const auto* latent = layer_.find<LatentAttentionConfig>();
    return latent != nullptr ? latent->sums_dim() : attention().sums_dim();
  }

  // Of the layer, whose mixer has the tensor.
  [[nodiscard]] RecurrentShape recurrent() const {
    return *recurrent_shape(layer_, config_.hidden);
  }

  // Null of another mixer.
  [[nodiscard]] const SelectiveScanConfig* scan() const {
    return layer_.find<SelectiveScanConfig>();
  }

  [[nodiscard]] const DeltaNetConfig* delta_net() const { return layer_.find<DeltaNetConfig>(); }

  // Of the latent that steps are made of.
  [[nodiscard]] int64_t gates_rank() const {
    return delta_net() != nullptr ? delta_net()->decay_rank : recurrent().rank;
  }
  [[nodiscard]] int64_t n_steps() const {
    return delta_net() != nullptr ? delta_net()->n_decays() : rates_shape()[0];
  }

  // Of what decays by itself: heads, or elements of channels.
  [[nodiscard]] std::vector<int64_t> rates_shape() const {
    if (scan() != nullptr) return {scan()->channels, scan()->state_size};
    return {recurrent().n_heads};
  }

  [[nodiscard]] Parts scan_norms() const {
    const int64_t state = scan()->state_size;
    const std::array<int64_t, 3> sizes = {scan()->step_rank, state, state};
    const std::vector<std::string>& names = modules_.recurrent_gate_norms;
    Parts parts;
    for (size_t n = 0; n < sizes.size(); ++n) {
      parts.push_back(norm(names.empty() ? "" : in_layer(names.at(n)), sizes[n]));
    }
    return parts;
  }

  // Those of the rows of the first products that make up the tensor, from the modules that hold
  // them.
  [[nodiscard]] Parts recurrent_rows() const {
    const bool is_gates = target_.kind == TensorKind::recurrent_gates;
    const int64_t inputs = is_gates && scan() != nullptr ? scan()->channels : config_.hidden;
    Parts parts;
    for (const RecurrentRows& rows : is_gates ? modules_.recurrent_gates : modules_.recurrent_in) {
      TensorPart part = product(rows.module, rows.of, inputs);
      part.first_row = rows.first;
      part.n_rows = rows.count;
      parts.push_back(std::move(part));
    }
    return parts;
  }

  [[nodiscard]] TensorPart convolution() const {
    const RecurrentShape shape = recurrent();
    const std::string module = in_layer(modules_.recurrent_convolution);
    if (is_bias_) return {.source = module + ".bias", .shape = {shape.channels}};
    return {.source = module + ".weight", .shape = {shape.channels, 1, shape.taps}};
  }

  // Rows of which the last ones belong to heads of values, so many to each, where these stand in
  // another order.
  [[nodiscard]] Parts by_value_head(const TensorPart& all, int64_t rows) const {
    const std::vector<int64_t>& heads = modules_.value_heads;
    if (heads.empty()) return {all};
    const int64_t before = all.shape[0] - static_cast<int64_t>(heads.size()) * rows;
    Parts parts;
    if (before > 0) parts.push_back(rows_of(all, 0, before));
    for (const int64_t head : heads) parts.push_back(rows_of(all, before + head * rows, rows));
    return parts;
  }

  [[nodiscard]] TensorPart recurrent_out_product() const {
    TensorPart part = residual(product(modules_.recurrent_out, config_.hidden, recurrent().sums));
    if (!is_bias_) part.column_blocks = modules_.value_heads;
    return part;
  }

  [[nodiscard]] TensorPart recurrent_norm_weights() const {
    const bool is_of_heads = delta_net() != nullptr;
    TensorPart part = norm(in_layer(modules_.recurrent_norm),
                           is_of_heads ? recurrent().value_dim : recurrent().sums);
    part.add = 0;
    return part;
  }

  [[nodiscard]] std::string in_layer(const std::string& module) const {
    const bool is_of_ffn = target_.kind >= TensorKind::ffn_norm;
    const std::vector<int64_t>& numbers = is_of_ffn ? modules_.ffn_layers : modules_.mixer_layers;
    const int64_t n = numbers.empty() ? target_.n : numbers.at(index());
    return base_ + modules_.layers + std::to_string(n) + "." + module;
  }

  // The module's weight [rows, cols], or its bias [rows].
  [[nodiscard]] TensorPart matrix(const std::string& module, int64_t rows, int64_t cols) const {
    if (is_bias_) return {.source = module + ".bias", .shape = {rows}};
    return {.source = module + ".weight", .shape = {rows, cols}};
  }

  // The same of a layer's product.
  [[nodiscard]] TensorPart product(const std::string& module, int64_t rows, int64_t cols) const {
    TensorPart part = matrix(in_layer(module), rows, cols);
    if (modules_.transposed && !is_bias_) {
      std::swap(part.shape[0], part.shape[1]);
      part.transposed = true;
    }
    return part;
  }

  // A module without a name has no weights: they are 1.
  [[nodiscard]] TensorPart norm(const std::string& module, int64_t size) const {
    if (module.empty()) return {.source = "", .shape = {size}, .add = 1};
    if (is_bias_) return {.source = module + ".bias", .shape = {size}};
    return {.source = module + ".weight", .shape = {size}, .add = modules_.norm_add};
  }
  [[nodiscard]] TensorPart layer_norm(const std::string& module) const {
    return norm(module.empty() ? "" : in_layer(module), config_.hidden);
  }

  [[nodiscard]] TensorPart base_norm(const std::string& module) const {
    return norm(module.empty() ? "" : base_ + module, config_.hidden);
  }

  [[nodiscard]] TensorPart last_norm() const {
    TensorPart part = base_norm(modules_.output_norm);
    part.scale = modules_.output_norm_scale;
    return part;
  }

  [[nodiscard]] TensorPart output_matrix() const {
    const std::string& module =
        config_.output.tied && !is_bias_ ? base_ + modules_.embedding : modules_.output;
    TensorPart part = matrix(module, config_.output_rows(), config_.hidden);
    part.unit_rows = modules_.unit_output && !is_bias_;
    return part;
  }

  [[nodiscard]] size_t index() const { return static_cast<size_t>(target_.n); }

  [[nodiscard]] TensorPart dense_product() const {
    const size_t n = index();
    const std::vector<DenseConfig> layers = dense_layers(config_);
    const int64_t columns = n == 0 ? config_.hidden : layers.at(n - 1).size;
    return matrix(modules_.dense.at(n).product, layers.at(n).size, columns);
  }

  [[nodiscard]] SidewisePairs pairs() const {
    const AttentionConfig& attention = layer_.attention();
    if (!modules_.interleaved || !attention.rope) return {};
    return {attention.head_dim, modules_.interleaved_heads ? attention.head_dim
                                                           : config_.ropes[*attention.rope].dims()};
  }

  [[nodiscard]] TensorPart distances() const {
    const std::string& common = modules_.common_distances;
    const AttentionConfig& attention = layer_.attention();
    return {.source = common.empty() ? in_layer(modules_.distances) : base_ + common,
            .shape = {attention.relative_bias.buckets, attention.n_heads}};
  }

  // What is added to the residual stream.
  [[nodiscard]] TensorPart residual(TensorPart part) const {
    return scaled(std::move(part), modules_.residual_scale);
  }
  static TensorPart scaled(TensorPart part, float scale) {
    part.scale = scale;
    return part;
  }
  // A branch's last product, after which there may be a norm.
  [[nodiscard]] TensorPart branch_end(TensorPart part) const {
    const bool is_attention = target_.kind == TensorKind::attention_out;
    const BranchNorms& norms = is_attention ? layer_.mixer_norms : layer_.ffn_norms;
    return norms.after ? part : residual(std::move(part));
  }

  [[nodiscard]] TensorPart shared_down_product() const {
    TensorPart part =
        branch_end(product(modules_.shared_down, config_.hidden, layer_.experts->shared.size));
    part.scale *= modules_.shared_scale;
    return part;
  }

  [[nodiscard]] Parts queries_keys_values() const {
    const AttentionConfig& attention = layer_.attention();
    const std::array<int64_t, 3> rows = {attention.q_dim(), attention.k_dim(), attention.v_dim()};
    const bool by_kv_head =
        modules_.qkv.size() == 1 && modules_.joined_qkv == JoinedQkv::by_kv_head;
    const int64_t blocks = by_kv_head ? attention.n_kv_heads : 1;
    const int64_t inputs = config_.mixer_input(target_.n);
    if (is_bias_ && !modules_.qkv_bias) {
      Parts parts = named_gates();
      parts.insert(parts.begin(), {.source = "", .shape = {attention.qkv_dim()}});
      return parts;
    }
    Parts parts = gated_queries() ? halves_of_query_heads(0) : Parts{};
    int64_t before = 0;  // rows of a block that stand before those of this kind
    const size_t kinds = attention.kv_of ? 1 : rows.size();
    for (size_t kind = gated_queries() ? 1 : 0; kind < kinds; ++kind) {
      const int64_t n_rows = rows[kind] / blocks;
      for (int64_t block = 0; block < blocks; ++block) {
        TensorPart part;
        if (modules_.qkv.size() == 1) {
          part = product(modules_.qkv[0], attention.qkv_dim(), inputs);
          part.first_row = block * (attention.qkv_dim() / blocks) + before;
          part.n_rows = n_rows;
        } else {
          const bool is_key = kind == 2 && modules_.keys_as_values.contains(target_.n);
          part = product(modules_.qkv[is_key ? 1 : kind], n_rows, inputs);
        }
        if (kind < 2) part.pairs = pairs();
        if (kind == 2) part.scale = modules_.value_scale;
        parts.push_back(part);
      }
      before += n_rows;
    }
    if (attention.output_gate) {
      const Parts gates = gated_queries() ? halves_of_query_heads(1) : named_gates();
      parts.insert(parts.end(), gates.begin(), gates.end());
    }
    return parts;
  }

  [[nodiscard]] Parts named_gates() const {
    const int64_t n_gates = attention().gates_dim();
    if (!is_bias_) return {product(modules_.output_gate, n_gates, config_.hidden)};
    if (modules_.output_gate_bias.empty()) return {{.source = "", .shape = {n_gates}}};
    const int64_t n_heads = attention().n_heads;
    Parts parts;
    for (int64_t head = 0; head < n_heads; ++head) {
      parts.push_back({.source = in_layer(modules_.output_gate_bias), .shape = {n_heads}});
      parts.back() = rows_of(parts.back(), head, n_gates / n_heads);
      parts.back().row_step = 0;
    }
    return parts;
  }

  // Whether the module of queries holds each head's gates behind its queries.
  [[nodiscard]] bool gated_queries() const {
    return attention().output_gate && modules_.output_gate.empty();
  }

  // Of such a module the queries (0) or the gates (1).
  [[nodiscard]] Parts halves_of_query_heads(int64_t half) const {
    const int64_t head_dim = attention().head_dim;
    TensorPart part = product(modules_.qkv[0], 2 * attention().q_dim(), config_.hidden);
    part.n_rows = head_dim;
    if (half == 0) part.pairs = pairs();
    Parts parts;
    for (int64_t head = 0; head < attention().n_heads; ++head) {
      part.first_row = (2 * head + half) * head_dim;
      parts.push_back(part);
    }
    return parts;
  }

  // Rows [first, first + count) of a product.
  [[nodiscard]] static TensorPart rows_of(TensorPart part, int64_t first, int64_t count) {
    part.first_row = first;
    part.n_rows = count;
    return part;
  }

  [[nodiscard]] TensorPart rotated_rows(const TensorPart& of, int64_t first) const {
    const LatentAttentionConfig& a = latent();
    TensorPart part = rows_of(of, first, a.rope_dim);
    if (modules_.interleaved && a.rope) part.pairs = {a.rope_dim, a.rope_dim};
    return part;
  }

  // Checkpoints have what is rotated behind the rest.
  [[nodiscard]] Parts latent_queries() const {
    const LatentAttentionConfig& a = latent();
    const TensorPart all = a.q_rank > 0
                               ? product(modules_.latent_q, a.q_dim(), a.q_rank)
                               : product(modules_.latent_q_of_input, a.q_dim(), config_.hidden);
    Parts parts;
    for (int64_t head = 0; head < a.n_heads; ++head) {
      const int64_t first = head * a.q_head_dim();
      if (a.rope_dim > 0) parts.push_back(rotated_rows(all, first + a.nope_dim));
      parts.push_back(rows_of(all, first, a.nope_dim));
    }
    return parts;
  }

  [[nodiscard]] Parts latent_rows() const {
    const LatentAttentionConfig& a = latent();
    const TensorPart all = product(modules_.latent_kv, a.kept_dim(), config_.hidden);
    Parts parts;
    if (a.rope_dim > 0) parts.push_back(rotated_rows(all, a.kv_rank));
    parts.push_back(rows_of(all, 0, a.kv_rank));
    return parts;
  }

  // Of each head the transpose of what makes its keys of latents, which stands before its values'.
  [[nodiscard]] Parts latent_keys() const {
    const LatentAttentionConfig& a = latent();
    if (!modules_.latent_k.empty()) return {of_heads(modules_.latent_k, a.kv_rank, a.nope_dim)};
    Parts parts;
    for (int64_t head = 0; head < a.n_heads; ++head) {
      TensorPart part = rows_of(latent_kv_up(), 0, a.kv_rank);
      part.transposed = true;
      part.first_input = head * (a.nope_dim + a.value_head_dim);
      parts.push_back(std::move(part));
    }
    return parts;
  }

  [[nodiscard]] Parts latent_values() const {
    const LatentAttentionConfig& a = latent();
    if (!modules_.latent_v.empty()) {
      return {of_heads(modules_.latent_v, a.value_head_dim, a.kv_rank)};
    }
    Parts parts;
    for (int64_t head = 0; head < a.n_heads; ++head) {
      const int64_t first = head * (a.nope_dim + a.value_head_dim) + a.nope_dim;
      parts.push_back(rows_of(latent_kv_up(), first, a.value_head_dim));
    }
    return parts;
  }

  [[nodiscard]] TensorPart latent_kv_up() const {
    const LatentAttentionConfig& a = latent();
    return product(modules_.latent_kv_up, a.n_heads * (a.nope_dim + a.value_head_dim), a.kv_rank);
  }

  [[nodiscard]] TensorPart of_heads(const std::string& module, int64_t rows, int64_t cols) const {
    TensorPart part = product(module, rows, cols);
    part.shape.insert(part.shape.begin(), latent().n_heads);
    return part;
  }

  [[nodiscard]] Parts head_norms(const std::string& module, int64_t heads) const {
    const int64_t head_dim = attention().head_dim;
    TensorPart part = norm(module.empty() ? "" : in_layer(module), heads * head_dim);
    part.pairs = pairs();
    if (attention().qk_norm == QkNorm::whole) return {part};
    if (modules_.norms_of_each_head) {
      part.shape = {heads, head_dim};
      return {part};
    }
    part.shape = {head_dim};
    return Parts(static_cast<size_t>(heads), part);
  }

  // `prefix` begins the modules' names within the layer.
  [[nodiscard]] Parts gate_up(const FeedForwardConfig& ffn, const std::string& prefix,
                              const std::vector<std::string>& modules) const {
    if (modules.size() == 1) {
      const TensorPart all = product(prefix + modules[0], ffn.up_dim(), config_.hidden);
      if (!modules_.up_first || !ffn.gated) return {all};
      return {rows_of(all, ffn.size, ffn.size), rows_of(all, 0, ffn.size)};
    }
    Parts parts;
    for (const std::string& module : modules) {
      parts.push_back(product(prefix + module, ffn.size, config_.hidden));
    }
    return parts;
  }

  // Those that parts_of(e) has of each expert.
  template <typename PartsOf>
  [[nodiscard]] Parts all_experts(const PartsOf& parts_of) const {
    Parts all;
    for (int64_t e = 0; e < layer_.experts->count; ++e) {
      const Parts one = parts_of(e);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }

  // A tensor [experts, rows, cols], or the biases [experts, rows].
  [[nodiscard]] TensorPart of_all_experts(const std::string& module, int64_t rows,
                                          int64_t cols) const {
    TensorPart part = product(module, rows, cols);
    if (modules_.experts_are_tensors) part.source = in_layer(module);
    if (modules_.experts_are_transposed && !is_bias_) {
      std::swap(part.shape[0], part.shape[1]);
      part.transposed = true;
    }
    part.shape.insert(part.shape.begin(), layer_.experts->count);
    return part;
  }

  [[nodiscard]] TensorPart expert_down(int64_t e) const {
    return branch_end(product(modules_.experts + std::to_string(e) + "." + modules_.expert_down,
                              config_.hidden, layer_.experts->each.size));
  }

  [[nodiscard]] Parts expert_gate_up(int64_t e) const {
    const FeedForwardConfig& each = layer_.experts->each;
    if (modules_.experts_gate_up.empty()) {
      return gate_up(each, modules_.experts + std::to_string(e) + ".", modules_.expert_gate_up);
    }
    const int64_t rows = each.up_dim() / static_cast<int64_t>(modules_.experts_gate_up.size());
    Parts parts;
    for (const std::string& module : modules_.experts_gate_up) {
      TensorPart part = of_all_experts(module, rows, config_.hidden);
      part.first_row = e * rows;
      part.n_rows = rows;
      parts.push_back(std::move(part));
    }
    return parts;
  }

  const ModelConfig& config_;
  const Modules& modules_;
  std::string base_;
  TensorId target_;
  bool is_bias_;
  const LayerConfig& layer_;
};

// A configuration can ask for more than any checkpoint has; its tensors should not be listed first.
void check_number_of_layers(const ModelConfig& config, const Checkpoint& weights) {
  const auto n_tensors = static_cast<int64_t>(weights.tensors().size());
  if (config.n_layers() <= n_tensors) return;
  throw Error(weights.name() + ": the configuration asks for " + std::to_string(config.n_layers()) +
              " layers, but the checkpoint has only " + std::to_string(n_tensors) +
              " tensors; is it complete?");
}

bool has_names_with(const Checkpoint& weights, const std::string& prefix) {
  const auto first = weights.tensors().lower_bound(prefix);
  return first != weights.tensors().end() && first->first.starts_with(prefix);
}

}  // namespace

std::string longest_text(int64_t tokens) {
  return "texts have " + std::to_string(tokens) + " tokens at most";
}

void name_as_fairseq(Modules& modules) {
  modules.positions = "embed_positions";
  modules.attention_norm = modules.attention_stream_norm = "self_attn_layer_norm";
  modules.attention_out = "self_attn.out_proj";
  modules.ffn_norm = modules.ffn_stream_norm = "final_layer_norm";
  modules.gate_up = {"fc1"};
  modules.down = "fc2";
  modules.output_norm = "layer_norm";
}

void leave_out(Modules& modules, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    for (const char* tensor : {".weight", ".bias"}) {
      modules.unused.push_back(std::string(name) + tensor);
    }
  }
}

std::string base_in(const Checkpoint& weights, const Modules& modules) {
  if (has_names_with(weights, modules.base)) return modules.base;
  return modules.base.substr(modules.base.find('.') + 1);
}

TensorParts parts_of(const ModelConfig& config, const Modules& modules, const Checkpoint& weights,
                     const Modules& encoder) {
  check_number_of_layers(config, weights);
  const std::string base = base_in(weights, modules);
  TensorParts parts;
  for (const TensorPlan& plan : tensor_plan(config)) {
    const TensorId& id = plan.id;
    if (plan.role == TensorRole::scales || id.of_encoder || id.predictor > 0) continue;
    parts[id] = PartsMaker(config, modules, base, id).make();
  }
  if (!config.output.none && !config.output.shared) {
    const TensorId output{.kind = TensorKind::output};
    parts[output] = PartsMaker(config, modules, base, output).make();
  }
  if (config.encoder) {
    for (auto& [id, of_tensor] : parts_of(*config.encoder, encoder, weights)) {
      TensorId of_encoder = id;
      of_encoder.of_encoder = true;
      parts[of_encoder] = std::move(of_tensor);
    }
  }
  return parts;
}

}  // namespace faststream::convert
