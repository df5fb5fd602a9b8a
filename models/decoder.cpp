// The decoder or encoder that a description asks for: one forward pass for every family. An encoder
// is a decoder whose tokens see each other, and whose output are its hidden states.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "models/activations.h"
#include "models/adapter_plan.h"
#include "models/altup.h"
#include "models/aside.h"
#include "models/decoder_weights.h"
#include "models/feed_forward.h"
#include "models/laurel.h"
#include "models/layer_inputs.h"
#include "models/mixers.h"
#include "models/model.h"
#include "models/stream.h"
#include "models/tables.h"
#include "models/token_convolution.h"

namespace faststream {
namespace {

class Decoder : public Model {
 public:
  Decoder(const ModelConfig& config, const WeightLookup& lookup, Backend& backend,
          const BatchLimits& limits)
      : Decoder(config, find_weights(config, lookup), backend, limits) {
    if (!config.encoder) return;
    encoder_ = std::make_unique<Decoder>(
        *config.encoder, find_encoder_weights(*config.encoder, lookup, weights_.embedding.table),
        backend, limits);
  }

  Decoder(const ModelConfig& config, DecoderWeights weights, Backend& backend,
          const BatchLimits& limits)
      : config_(config),
        backend_(backend),
        weights_(std::move(weights)),
        tables_(backend),
        states_kept_(states_kept(config)) {
    const DType act = backend.activation_dtype(config.weight_format);
    activations_.layout(config, act, limits, [&](Matrix& matrix) {
      buffers_.push_back(backend.allocate(matrix_bytes(matrix)));
      matrix.data = buffers_.back().get();
    });
    for (const RopeConfig& rope : config.ropes) {
      const bool has_long = !rope.long_frequencies.empty();
      ropes_.push_back({.frequencies = tables_.add(rope.frequencies),
                        .factor = rope.attention_factor,
                        .original = static_cast<int32_t>(rope.original_max_context),
                        .long_frequencies = has_long ? tables_.add(rope.long_frequencies) : nullptr,
                        .dynamic_factor = rope.dynamic_factor});
    }
    if (config.altup)
      weights_.altup.share = tables_.add({1 / static_cast<float>(config.altup.streams)});
    for (size_t n = 0; n < weights_.layers.size(); ++n) {
      LayerWeights& layer = weights_.layers[n];
      const int64_t number = config.own_layers().first + static_cast<int64_t>(n);
      complete_experts(config.layer(number), config.rank, layer, backend_, tables_);
      if (layer.aside) complete(layer.aside->attention, backend_, tables_);
      for (MixerWeights& mixer : layer.mixers) {
        std::visit([&](auto& kind) { complete(kind, backend_, tables_); }, mixer);
      }
      if (layer.laurel) layer.laurel.factor = tables_.add({std::sqrt(0.5F)});
      if (layer.token_convolution) {
        layer.token_convolution.zeros =
            tables_.add(std::vector<float>(static_cast<size_t>(config.hidden)));
      }
    }
  }

  LogitProduct forward(const BatchView& batch, const LayerMemory& memory) override {
    const Stream last = run_layers(
        batch, memory, [&](const Matrix& rows) { return rows_with_logits(batch, rows); });
    keep_last_state(batch, last);
    layer_states_ = activations_.layer_states.first_rows(batch.n_tokens);
    return product_of(last);
  }

  [[nodiscard]] Matrix stage_input(int64_t rows) const override {
    return activations_.residual.first_rows(rows);
  }

  [[nodiscard]] Matrix stage_states(int64_t tokens) const override {
    return activations_.layer_states.first_rows(tokens);
  }

  Matrix run_stage(const BatchView& batch, const LayerMemory& memory) override {
    const auto wanted = [&](const Matrix& rows) { return rows_with_logits(batch, rows); };
    const Stream stream = run_layers(batch, memory, wanted);
    if (config_.has_last_layer()) keep_last_state(batch, stream);
    return stream.parts();
  }

  [[nodiscard]] Matrix finish_input(int64_t rows) const override {
    return activations_.last.first_rows(rows);
  }

  [[nodiscard]] Matrix finish_states(int64_t tokens) const override {
    return activations_.finished_states.first_rows(tokens);
  }

  LogitProduct finish(int64_t rows, int64_t tokens) override {
    hidden_states_ = tokens > 0 ? finish_states(tokens) : finish_input(rows);
    if (states_for_predictors(config_)) layer_states_ = finish_states(tokens);
    Stream last(backend_, activations_, rows);
    last.keep(finish_input(rows));
    return product_of(last);
  }

  Matrix encode(const BatchView& batch, const LayerMemory& memory) override {
    Stream stream = run_layers(batch, memory, [](const Matrix& rows) { return rows; });
    stream.normalize(weights_.output_norm);
    return stream.rows();
  }

  void read_sources(const BatchView& batch, std::span<const KvLayer> kv) override {
    const ModelConfig& source = encoder_->config_;
    std::vector<KvLayer> of_encoder;
    for (const int64_t n : kv_layers(source)) {
      const KvGeometry geometry = *kv_geometry(source.layer(n));
      KvLayer& scratch = of_encoder.emplace_back(kv.front());
      scratch.n_kv_heads = static_cast<int32_t>(geometry.n_heads);
      scratch.head_dim = static_cast<int32_t>(geometry.k_head_dim);
      scratch.v_head_dim = static_cast<int32_t>(geometry.v_head_dim);
      scratch.values_in_keys = geometry.values_in_keys;
    }
    const Matrix states = encoder_->encode(batch, {.kv = of_encoder});
    Input encoded{.x = states, .normed = rows_of(encoder_->activations_.normed, states)};
    const Pass pass{backend_, activations_, batch, {.kv = kv}};
    for (const LayerWeights& layer : weights_.layers) {
      if (layer.cross) read_source(pass, layer.cross, encoded);
    }
  }

  [[nodiscard]] Matrix hidden_states() const override { return hidden_states_; }
  [[nodiscard]] const Norm& output_norm() const override { return weights_.output_norm; }
  [[nodiscard]] Matrix layer_states() const override { return layer_states_; }

  void join_layer_states(const Matrix& states, const Matrix& to) override {
    const HiddenInputWeights& weights = weights_.hidden_input;
    const Matrix joined = rows_of(activations_.joined_states, states);
    if (config_.hidden_input->layer_states.norm_of_each) {
      for (int64_t at = 0; at < states.cols; at += config_.hidden) {
        backend_.norm(states.columns(at, config_.hidden), part_of(weights.states_norm, at),
                      OutputMode::store, joined.columns(at, config_.hidden));
      }
    } else {
      backend_.norm(states, weights.states_norm, OutputMode::store, joined);
    }
    Input input{.x = joined};
    backend_.linear(input, weights.states_projection.weight,
                    {.bias = weights.states_projection.bias}, to);
  }

  [[nodiscard]] Matrix hidden_input() const override { return activations_.hidden_input; }
  [[nodiscard]] Matrix kept_hidden() const override { return activations_.kept_hidden; }

  Matrix embed(const BatchView& batch, const LayerMemory& memory) override {
    Matrix states = encode(batch, memory);
    size_t n = 0;
    for (; n < activations_.token_vectors.size(); ++n) {
      states = apply_dense(n, states, activations_.token_vectors[n]);
    }
    Matrix vectors = activations_.vectors[n].first_rows(batch.n_sequences);
    backend_.pool(batch, states, config_.pooling->mode, vectors);
    for (; n < weights_.dense.size(); ++n) {
      vectors = apply_dense(n, vectors, activations_.vectors[n + 1]);
    }
    return vectors;
  }

 private:
  // What pooling's n-th dense layer makes of rows, in memory for at least as many.
  Matrix apply_dense(size_t n, const Matrix& rows, const Matrix& memory) {
    const DenseWeights& dense = weights_.dense[n];
    Input input{.x = rows};
    const Matrix out = rows_of(memory, rows);
    backend_.linear(
        input, dense.product.weight,
        {.bias = dense.product.bias, .activation = config_.pooling->dense[n].activation}, out);
    renormalize(backend_, dense.norm, out);
    return out;
  }

  // Predictors read last states, of more tokens than those whose logits are wanted.
  [[nodiscard]] bool keeps_states(const BatchView& batch) const {
    return batch.host->n_states() > 0 && read_last_states(config_);
  }

  // last: after the last layer, of the rows that were wanted.
  void keep_last_state(const BatchView& batch, const Stream& last) {
    hidden_states_ = last.rows();
    if (!keeps_states(batch)) return;
    hidden_states_ = Stream(backend_, activations_, batch.n_tokens).rows();
    keep_layer_state(config_.n_layers(), hidden_states_);
  }

  // What predictors read of the stream after so many layers.
  void keep_layer_state(int64_t n_layers, const Matrix& rows) {
    const auto found = std::ranges::find(states_kept_, n_layers);
    if (found == states_kept_.end()) return;
    const int64_t at = (found - states_kept_.begin()) * config_.hidden;
    backend_.norm(rows, {}, OutputMode::store,
                  rows_of(activations_.layer_states, rows).columns(at, config_.hidden));
  }

  // With weights from that element on.
  static Norm part_of(Norm norm, int64_t first) {
    if (norm.weight != nullptr) norm.weight += first;
    if (norm.bias != nullptr) norm.bias += first;
    return norm;
  }

  // Of the stream after the last layer.
  LogitProduct product_of(const Stream& last) {
    Input input = last.before(weights_.output_norm, activations_.last_normed);
    if (config_.output.dense && input.x.rows > 0) input = through_dense(input);
    return {.input = input,
            .weight = weights_.output.weight,
            .bias = weights_.output.bias,
            .soft_cap = config_.output.soft_cap};
  }

  // Returns those rows of the residual stream that wanted(rows) leaves of all, which may be none.
  // They are all that the last feed-forward works on: other tokens see no more of a token than
  // what mixers keep of it. For predictors it works on all once more, where these are: the wanted
  // ones are to be the same without them, to the last bit. A stage that has not the last layer
  // returns all rows.
  template <typename Wanted>
  Stream run_layers(const BatchView& batch, const LayerMemory& memory, Wanted wanted) {
    const Pass pass{backend_, activations_, batch, memory};
    Stream stream(backend_, activations_, batch.n_tokens);

    for (size_t n = 0; n < ropes_.size(); ++n) {
      backend_.rope_table(batch, ropes_[n], activations_.cos_sin[n].first_rows(batch.n_tokens));
    }
    if (config_.has_first_layer()) begin(batch, stream);
    if (activations_.beside_embedding.cols > 0) {
      const Matrix wide = rows_of(activations_.beside_embedding, stream.rows());
      backend_.norm(stream.rows(), {}, OutputMode::store,
                    wide.columns(config_.hidden, config_.hidden));
    }
    LayerInputs inputs(pass, weights_.layer_inputs, stream);
    const AltUp altup(pass, weights_.altup, stream);
    Deferred deferred(pass);
    const auto keep_wanted = [&] {
      const Matrix rows = wanted(stream.parts());
      if (rows.data == stream.parts().data) return;
      stream.keep(rows);
      inputs.keep_wanted();
      deferred.keep_wanted();
    };
    const auto [first, end] = config_.own_layers();
    for (int64_t n = first; n < end; ++n) {
      const LayerConfig& layer = config_.layer(n);
      const LayerWeights& weights = weights_.layers[static_cast<size_t>(n - first)];

      keep_layer_state(n, stream.rows());
      keep_tokens_around(pass, weights.token_convolution, stream);
      altup.predict(weights.altup, stream);
      // Parallel branches, and mixers, all read what the layer begins with, and a laurel what
      // mixers read.
      const bool is_shared = layer.parallel || layer.mixers.size() > 1;
      Input input = stream.before(weights.mixer_norms.before, activations_.normed, is_shared);
      if (config_.mixer_input(n) != config_.hidden) {
        input = {.x = rows_of(activations_.beside_hidden, stream.rows())};
      }
      if (layer.aside) input.x = with_aside(pass, *layer.aside, *weights.aside, stream.rows());
      if (is_shared || layer.laurel) normalize(backend_, input);
      Input ffn_input = input;
      if (has_own_input(layer)) {
        ffn_input =
            stream.before(weights.ffn_norms.before, activations_.normed_for_ffn, layer.parallel);
        normalize(backend_, ffn_input);
      }
      stream.add(weights.mixer_norms, [&](OutputMode output, const Matrix& out) {
        add_up(pass, layer.shares_mixers, output, out, [&](OutputMode mode, const Matrix& to) {
          mix(pass, weights.mixers, input, mode, to);
        });
      });
      augment(pass, weights.laurel, input, stream);
      if (weights.cross) {
        Input cross_input = stream.before(weights.cross.norms.before, activations_.normed);
        LastProduct product = attend_to_source(pass, weights.cross, cross_input);
        stream.add(weights.cross.norms, [&](OutputMode output, const Matrix& out) {
          add_up(pass, layer.shares_mixers, output, out, product);
        });
      }
      if (!layer.has_feed_forward()) continue;
      if (!layer.parallel) {
        if (n + 1 == config_.n_layers()) {
          const Stream all = stream;
          const Deferred deferred_of_all = deferred;
          keep_wanted();
          if (keeps_states(batch) && stream.rows().data != all.rows().data) {
            end_last_layer(pass, all, deferred_of_all);
          }
        }
        if (stream.rows().rows == 0) break;
        ffn_input = stream.before(weights.ffn_norms.before, activations_.normed);
      }
      feed_forward(pass, layer, weights, ffn_input, stream, deferred);
      add_convolution(pass, weights.token_convolution, stream);
      altup.correct(weights.altup, stream);
      inputs.add(n, weights.input, stream);
      if (weights.scale != nullptr) stream.scale(weights.scale);
    }
    if (!config_.has_last_layer()) return stream;
    keep_wanted();
    altup.merge(stream);
    return stream;
  }

  // The embeddings, as the first layer reads them.
  void begin(const BatchView& batch, Stream& stream) {
    if (weights_.embedding_projection) {
      project_embedding(batch, stream);
    } else {
      backend_.embed(batch, weights_.embedding, stream.rows());
      stream.normalize(weights_.embedding_norm);
    }
    if (config_.hidden_input) join_hidden(stream);
  }

  void project_embedding(const BatchView& batch, Stream& stream) {
    const Matrix embedded = rows_of(activations_.embedded, stream.rows());
    backend_.embed(batch, weights_.embedding, embedded);
    Input input{.x = embedded,
                .norm = weights_.embedding_norm,
                .normed = rows_of(activations_.embedded_normed, stream.rows())};
    const Linear& projection = weights_.embedding_projection;
    backend_.linear(input, projection.weight, {.bias = projection.bias}, stream.rows());
    stream.is_changed();
  }

  // The last layer's feed-forward, of all tokens whose states predictors read.
  void end_last_layer(const Pass& pass, Stream stream, Deferred deferred) {
    const Batch& batch = *pass.batch.host;
    if (batch.n_states() < batch.n_tokens()) {
      stream.keep(stream.parts().row_range(batch.states_first, batch.n_states()));
      deferred.keep(batch.states_first, batch.n_states());
    }
    const LayerWeights& weights = weights_.layers.back();
    Input input = stream.before(weights.ffn_norms.before, activations_.normed);
    feed_forward(pass, config_.layer(config_.n_layers() - 1), weights, input, stream, deferred);
    if (weights.scale != nullptr) stream.scale(weights.scale);
  }

  // Makes of embeddings what a predictor's layers read.
  void join_hidden(Stream& stream) {
    const HiddenInputConfig& config = *config_.hidden_input;
    const HiddenInputWeights& weights = weights_.hidden_input;
    const Matrix& rows = stream.rows();
    const Matrix hidden = rows_of(activations_.hidden_input, rows);
    const Matrix both = rows_of(activations_.beside_hidden, rows);
    backend_.norm(rows, {}, OutputMode::store, both.columns(0, config_.hidden));
    backend_.norm(hidden, weights.norm, OutputMode::store,
                  both.columns(config_.hidden, config_.hidden));
    if (config.side_by_side) {
      backend_.norm(hidden, config.normed_stream ? weights.norm : Norm{}, OutputMode::store, rows);
    } else {
      Input input{.x = both};
      backend_.linear(input, weights.projection.weight, {}, rows);
    }
    stream.is_changed();
  }

  // What the output matrix multiplies in place of that.
  Input through_dense(Input input) {
    const DenseWeights& dense = weights_.dense.front();
    const Matrix rows = rows_of(activations_.vectors.front(), input.x);
    backend_.linear(input, dense.product.weight,
                    {.bias = dense.product.bias,
                     .activation = config_.output.dense.activation,
                     .in_order = true},
                    rows);
    return {.x = rows, .norm = dense.norm, .normed = rows_of(activations_.last_normed, rows)};
  }

  // `rows` itself where it has no others.
  Matrix rows_with_logits(const BatchView& batch, const Matrix& rows) {
    if (rows.rows == batch.n_logits) return rows;
    const Matrix last = activations_.last.first_rows(batch.n_logits);
    backend_.gather_rows(batch, rows, last);
    return last;
  }

  static Matrix rows_of(const Matrix& memory, const Matrix& like) {
    return memory.first_rows(like.rows);
  }

  ModelConfig config_;
  Backend& backend_;
  DecoderWeights weights_;
  Activations activations_;
  std::vector<Buffer> buffers_;  // of activations
  Tables tables_;
  std::vector<Rope> ropes_;
  std::unique_ptr<Decoder> encoder_;
  std::vector<int64_t> states_kept_;
  Matrix hidden_states_;  // these two: of the last pass
  Matrix layer_states_;
};

// Those that rows are multiplied with are among them: where adapters change gates, these and what
// they multiply are products of their own, too.
std::vector<TensorPlan> tensors_of_steps(const ModelConfig& config) {
  std::vector<TensorPlan> plans = tensor_plan(config);
  if (config.adapters.empty()) return plans;
  std::vector<TensorPlan> more = adapter_plans(config);
  for (TensorPlan plan : plans) {
    if (!plan.gated || !takes_adapter(plan)) continue;
    plan.cuts_gates = true;
    more.push_back(std::move(plan));
  }
  std::ranges::move(more, std::back_inserter(plans));
  return plans;
}

// Every product of a forward pass: of those of equal shape the one of most rows.
std::vector<ProductBound> products(const ModelConfig& config, const BatchLimits& limits) {
  const std::vector<TensorPlan> plans = tensors_of_steps(config);
  std::set<TensorId> biases;
  for (const TensorPlan& plan : plans) {
    if (plan.id.member == TensorMember::bias) biases.insert(plan.id);
  }
  std::vector<ProductBound> bounds;
  for (const TensorPlan& plan : plans) {
    if (!plan.is_multiplied() || plan.id.predictor > 0) continue;
    const ModelConfig& stack = stack_of(config, plan.id);
    const RouterConfig router =
        plan.experts > 0 ? stack.layer(plan.id.n).experts->router : RouterConfig{};
    const bool keeps_states = read_last_states(config) && is_of_layers(plan.id.kind);
    const bool is_of_wanted = plan.readers == TensorReaders::wanted && !keeps_states;
    const int64_t rows = is_of_wanted ? limits.max_logits : limits.max_tokens;
    const TensorId of_bias =
        bias_of(plan.role == TensorRole::table ? TensorId{TensorKind::output} : plan.id);
    const int64_t blocks = std::max<int64_t>(plan.blocks, 1);
    const ProductBound bound{.rows = rows * router.used * blocks,
                             .in = plan.shape[1],
                             .out = plan.shape[0] / std::max<int64_t>(plan.experts, 1) / blocks,
                             .format = plan.format,
                             .gated = plan.gated && !plan.cuts_gates,
                             .bias = biases.contains(of_bias),
                             .activation = !plan.gated && plan.activation != Activation::none,
                             .experts = plan.experts,
                             .weighs_input = router.weighs_input,
                             .input_bits = stack.activation_bits};
    const auto same_shape = std::ranges::find_if(bounds, [bound](ProductBound other) {
      other.rows = bound.rows;
      return other == bound;
    });
    if (same_shape == bounds.end()) {
      bounds.push_back(bound);
    } else {
      same_shape->rows = std::max(same_shape->rows, bound.rows);
    }
  }
  return bounds;
}

}  // namespace

size_t activation_bytes(const ModelConfig& config, DType activations, const BatchLimits& limits) {
  size_t total = 0;
  Activations{}.layout(config, activations, limits,
                       [&](const Matrix& matrix) { total += matrix_bytes(matrix); });
  if (config.encoder) total += activation_bytes(*config.encoder, activations, limits);
  return total;
}

StepBounds step_bounds(const ModelConfig& config, const BatchLimits& limits, int64_t sequences,
                       int64_t context) {
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;
  int64_t head_dim = 0;
  LatentBound latent;
  for (const LayerConfig& layer : config.layer_kinds) {
    const std::optional<KvGeometry> kv = kv_geometry(layer);
    if (!kv) continue;
    for (const Mixer& mixer : layer.mixers) n_heads = std::max(n_heads, n_heads_of(mixer));
    if (layer.aside) n_heads = std::max(n_heads, layer.aside->attention.n_heads);
    n_kv_heads = std::max(n_kv_heads, kv->n_heads);
    head_dim = std::max({head_dim, kv->k_head_dim, kv->v_head_dim});
    if (const auto* mixer = layer.find<LatentAttentionConfig>()) {
      latent.n_heads = std::max(latent.n_heads, mixer->n_heads);
      latent.head_dim = std::max(latent.head_dim, mixer->nope_dim + mixer->value_head_dim);
      latent.kept_dim = std::max(latent.kept_dim, mixer->kept_dim());
    }
  }
  StepBounds bounds{
      .tokens = limits.max_tokens,
      .sequences = sequences,
      .logits = limits.max_logits,
      .context = context,
      .vocab = config.output_rows(),
      .n_heads = n_heads,
      .n_kv_heads = n_kv_heads,
      .head_dim = head_dim,
      .recurrent_heads = largest_of_layers(
          config,
          [&](const LayerConfig& layer) {
            return recurrent_shape(layer, config.hidden).value_or(RecurrentShape{}).n_heads;
          }),
      .latent = latent,
      .weight_format = config.weight_format,
      .products = products(config, limits)};
  if (config.encoder) {
    const StepBounds of_encoder = step_bounds(*config.encoder, limits, sequences, 0);
    bounds.n_heads = std::max(bounds.n_heads, of_encoder.n_heads);
    bounds.n_kv_heads = std::max(bounds.n_kv_heads, of_encoder.n_kv_heads);
    bounds.head_dim = std::max(bounds.head_dim, of_encoder.head_dim);
    bounds.context = std::max(bounds.context, config.encoder->max_context);
  }
  return bounds;
}

std::unique_ptr<Model> make_model(const ModelConfig& config, const WeightLookup& weights,
                                  Backend& backend, const BatchLimits& limits) {
  return std::make_unique<Decoder>(config, weights, backend, limits);
}

std::unique_ptr<Model> make_predictor(const ModelConfig& config, size_t predictor,
                                      const WeightLookup& weights, Backend& backend,
                                      const BatchLimits& limits) {
  return std::make_unique<Decoder>(predictor_of(config, predictor),
                                   find_predictor_weights(config, predictor, weights), backend,
                                   limits);
}

}  // namespace faststream
