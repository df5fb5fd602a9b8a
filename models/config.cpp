#include "models/config.h"

#include <algorithm>
#include <cmath>

#include "models/tensor_plan.h"
#include "support/error.h"
#include "support/printable.h"

namespace faststream {

std::vector<float> plain_frequencies(double theta, int64_t dims) {
  std::vector<float> frequencies(static_cast<size_t>((dims + 1) / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dims);
    frequencies[i] = 1.0F / std::pow(static_cast<float>(theta), exponent);
  }
  return frequencies;
}

int32_t ModelConfig::rope_length(int64_t n_tokens) const {
  int64_t length = 0;
  for (const RopeConfig& rope : ropes) {
    if (rope.original_max_context == 0 || n_tokens <= rope.original_max_context) continue;
    const bool is_dynamic = rope.long_frequencies.empty();
    length = std::max(length, is_dynamic ? n_tokens : rope.original_max_context + 1);
  }
  return static_cast<int32_t>(length);
}

bool ModelConfig::outgrows(int32_t rope_length, int64_t n_tokens) const {
  return std::ranges::any_of(ropes, [&](const RopeConfig& rope) {
    return !rope.long_frequencies.empty() && rope_length <= rope.original_max_context &&
           n_tokens > rope.original_max_context;
  });
}

namespace {

// T5's bucket of a key `ahead` of a query, in float32 as Transformers computes it.
int64_t bucket_of(const RelativeBiasConfig& bias, int64_t ahead) {
  const int64_t n = bias.bidirectional ? bias.buckets / 2 : bias.buckets;  // of one side
  const int64_t first = bias.bidirectional && ahead > 0 ? n : 0;
  const int64_t distance = bias.bidirectional ? std::abs(ahead) : std::max<int64_t>(-ahead, 0);
  const int64_t exact = n / 2;
  if (distance < exact) return first + distance;
  const float share = std::log(static_cast<float>(distance) / static_cast<float>(exact)) /
                      static_cast<float>(std::log(static_cast<double>(bias.max_distance) /
                                                  static_cast<double>(exact))) *
                      static_cast<float>(n - exact);
  return first + std::min(exact + static_cast<int64_t>(share), n - 1);
}

// How many rows from the middle one that of a distance is, in float32 as Transformers computes it.
int64_t steps_to(const RelativeScoresConfig& scores, int64_t distance) {
  const int64_t exact = scores.rows / 4;
  if (scores.max_distance == 0 || distance <= exact) return distance;
  const auto of_exact = static_cast<float>(exact);
  const float share = std::log(static_cast<float>(distance) / of_exact) /
                      std::log(static_cast<float>(scores.max_distance - 1) / of_exact);
  return exact + static_cast<int64_t>(std::ceil(share * static_cast<float>(exact - 1)));
}

}  // namespace

ModelConfig plain_decoder(const PlainShape& shape) {
  const NormConfig norm{.kind = NormKind::rms, .eps = shape.norm_eps};
  ModelConfig config;
  config.hidden = shape.hidden;
  config.vocab = shape.vocab;
  config.max_context = shape.max_context;
  config.output.norm = norm;
  RopeConfig& rope = config.ropes.emplace_back();
  rope.name = "rope";
  rope.frequencies = plain_frequencies(shape.rope_theta, shape.head_dim);
  LayerConfig layer;
  layer.name = "layer";
  layer.mixer_norms.before = norm;
  layer.ffn_norms.before = norm;
  AttentionConfig attention;
  attention.n_heads = shape.n_heads;
  attention.n_kv_heads = shape.n_kv_heads;
  attention.head_dim = shape.head_dim;
  attention.scale = 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
  attention.rope = 0;
  layer.mixers = {attention};
  layer.ffn.size = shape.ffn_hidden;
  config.layer_kinds = {std::move(layer)};
  config.layers.assign(static_cast<size_t>(shape.n_layers), 0);
  return config;
}

KvGeometry kv_read(const AttentionConfig& attention) {
  return {.n_heads = attention.n_kv_heads,
          .k_head_dim = attention.head_dim,
          .v_head_dim = attention.v_head_dim(),
          .window = attention.window,
          .exact = attention.sinks};
}

namespace {

std::optional<KvGeometry> geometry_of(const AttentionConfig& attention) {
  if (attention.kv_of) return std::nullopt;
  return kv_read(attention);
}
template <typename Recurrent>
std::optional<KvGeometry> geometry_of(const Recurrent& /*mixer*/) {
  return std::nullopt;
}

std::optional<KvGeometry> geometry_of(const LatentAttentionConfig& attention) {
  return KvGeometry{.n_heads = 1,
                    .k_head_dim = attention.kept_dim(),
                    .v_head_dim = attention.kv_rank,
                    .values_in_keys = true,
                    .exact = true};
}

}  // namespace

std::optional<KvGeometry> kv_geometry(const Mixer& mixer) {
  return std::visit([](const auto& kind) { return geometry_of(kind); }, mixer);
}

bool lends_kv(const ModelConfig& config, int64_t layer) {
  return std::ranges::any_of(config.layer_kinds, [&](const LayerConfig& kind) {
    const auto* attention = kind.find<AttentionConfig>();
    return attention != nullptr && attention->kv_of == layer;
  });
}

namespace {

template <typename Attention>
int64_t heads_of(const Attention& mixer) {
  return mixer.n_heads;
}
int64_t heads_of(const DeltaNetConfig& mixer) { return mixer.n_value_heads; }
int64_t heads_of(const ShortConvolutionConfig& /*mixer*/) { return 1; }
int64_t heads_of(const SelectiveScanConfig& /*mixer*/) { return 1; }

}  // namespace

int64_t n_heads_of(const Mixer& mixer) {
  return std::visit([](const auto& kind) { return heads_of(kind); }, mixer);
}

RecurrentShape recurrent_shape(const DeltaNetConfig& mixer, int64_t /*hidden*/) {
  const int64_t channels = 2 * mixer.k_dim() + mixer.v_dim();
  const bool is_raised = mixer.decay_rank > 0;
  return {.in = channels + (mixer.gate_rank > 0 ? 0 : mixer.v_dim()),
          .channels = channels,
          .taps = mixer.convolution.taps,
          .gates = (is_raised ? 0 : mixer.n_decays()) + mixer.n_value_heads + mixer.decay_rank +
                   mixer.gate_rank,
          .rank = std::max(mixer.decay_rank, mixer.gate_rank),
          .raised = is_raised ? mixer.n_decays() : 0,
          .sums = mixer.v_dim(),
          .n_heads = mixer.n_value_heads,
          .key_dim = mixer.key_head_dim,
          .value_dim = mixer.value_head_dim};
}

RecurrentShape recurrent_shape(const StateSpaceConfig& mixer, int64_t /*hidden*/) {
  const int64_t channels = mixer.x_dim() + 2 * mixer.n_groups * mixer.state_size;
  return {.in = channels + mixer.x_dim(),
          .channels = channels,
          .taps = mixer.convolution.taps,
          .gates = mixer.n_heads,
          .sums = mixer.x_dim(),
          .n_heads = mixer.n_heads,
          .key_dim = mixer.state_size,
          .value_dim = mixer.head_dim};
}

RecurrentShape recurrent_shape(const ShortConvolutionConfig& mixer, int64_t hidden) {
  const int64_t channels = mixer.channels > 0 ? mixer.channels : hidden;
  return {
      .in = 3 * channels, .channels = channels, .taps = mixer.convolution.taps, .sums = channels};
}

RecurrentShape recurrent_shape(const SelectiveScanConfig& mixer, int64_t /*hidden*/) {
  return {.in = 2 * mixer.channels,
          .channels = mixer.channels,
          .taps = mixer.convolution.taps,
          .gates = mixer.step_rank + 2 * mixer.state_size,
          .rank = mixer.step_rank,
          .raised = mixer.channels,
          .sums = mixer.channels,
          .n_heads = 1,
          .key_dim = mixer.state_size,
          .value_dim = mixer.channels};
}

RecurrentShape recurrent_shape(const LinearAttentionConfig& mixer, int64_t /*hidden*/) {
  return {.in = 3 * mixer.dim(),
          .sums = mixer.dim(),
          .n_heads = mixer.n_heads,
          .key_dim = mixer.head_dim,
          .value_dim = mixer.head_dim};
}

namespace {

std::optional<RecurrentShape> shape_of(const AttentionConfig& /*mixer*/, int64_t /*hidden*/) {
  return std::nullopt;
}
std::optional<RecurrentShape> shape_of(const LatentAttentionConfig& /*mixer*/, int64_t /*hidden*/) {
  return std::nullopt;
}
template <typename Recurrent>
std::optional<RecurrentShape> shape_of(const Recurrent& mixer, int64_t hidden) {
  return recurrent_shape(mixer, hidden);
}

}  // namespace

std::optional<RecurrentShape> recurrent_shape(const Mixer& mixer, int64_t hidden) {
  return std::visit([&](const auto& kind) { return shape_of(kind, hidden); }, mixer);
}

std::optional<KvGeometry> kv_geometry(const LayerConfig& layer) {
  for (const Mixer& mixer : layer.mixers) {
    if (const auto kept = kv_geometry(mixer)) return kept;
  }
  if (layer.aside) return kv_read(layer.aside->attention);
  return std::nullopt;
}

std::optional<RecurrentShape> recurrent_shape(const LayerConfig& layer, int64_t hidden) {
  for (const Mixer& mixer : layer.mixers) {
    if (const auto kept = recurrent_shape(mixer, hidden)) return kept;
  }
  return std::nullopt;
}

bool reads_predictor(const ModelConfig& config, size_t predictor) {
  return predictor > 0 && predictor < config.predictors.size() &&
         !config.predictors[predictor].hidden_input->of_decoder;
}

bool read_last_states(const ModelConfig& config) {
  if (config.predictors.empty()) return false;
  const LayerStatesConfig states = states_for_predictors(config);
  return !states || states.after.back() == config.n_layers();
}

std::vector<int64_t> states_kept(const ModelConfig& config) {
  const LayerStatesConfig states = states_for_predictors(config);
  if (states || !config.stage || config.predictors.empty()) return states.after;
  return {config.n_layers()};
}

ModelConfig predictor_of(const ModelConfig& config, size_t predictor) {
  ModelConfig own = config.predictors.at(predictor);
  if (own.embedding.shared) own.embedding_format = config.embedding_format;
  if (own.output.shared) own.output_format = config.output_format;
  if (reads_predictor(config, predictor + 1)) own.predictors = {config.predictors[predictor + 1]};
  return own;
}

std::string why_context_ends(const ModelConfig& config) {
  switch (config.context_end) {
    case ContextEnd::trained:
      break;
    case ContextEnd::sparse_attention:
      return "this version does not know the sparse attention that the model has for longer texts";
    case ContextEnd::scaled_queries:
      return "this version does not know how the model scales the queries of longer texts";
  }
  return "the model has no more";
}

std::vector<DenseConfig> dense_layers(const ModelConfig& config) {
  if (config.pooling) return config.pooling->dense;
  if (!config.output.dense) return {};
  return {config.output.dense};
}

std::vector<int64_t> kv_layers(const ModelConfig& config) {
  std::vector<int64_t> layers;
  const auto [first, end] = config.own_layers();
  for (int64_t n = first; n < end; ++n) {
    if (kv_geometry(config.layer(n))) layers.push_back(n);
  }
  return layers;
}

std::vector<int64_t> state_layers(const ModelConfig& config) {
  std::vector<int64_t> layers;
  const auto [first, end] = config.own_layers();
  for (int64_t n = first; n < end; ++n) {
    if (recurrent_shape(config.layer(n), config.hidden)) layers.push_back(n);
  }
  return layers;
}

void set_formats(ModelConfig& config, WeightFormat layers, WeightFormat embedding,
                 WeightFormat output) {
  config.weight_format = layers;
  config.embedding_format = embedding;
  config.output_format = output;
  for (ModelConfig& predictor : config.predictors) {
    set_formats(predictor, layers, embedding, output);
  }
  if (!config.encoder) return;
  auto encoder = std::make_shared<ModelConfig>(*config.encoder);
  set_formats(*encoder, layers, embedding, output);
  config.encoder = std::move(encoder);
}

std::vector<float> bias_by_distance(const RelativeBiasConfig& bias,
                                    const std::vector<float>& table) {
  const auto n_heads = static_cast<int64_t>(table.size()) / bias.buckets;
  const int64_t n_distances = 2 * bias.max_distance + 1;
  std::vector<float> by_distance(static_cast<size_t>(n_heads * n_distances));
  for (int64_t i = 0; i < n_distances; ++i) {
    const int64_t bucket = bucket_of(bias, i - bias.max_distance);
    for (int64_t head = 0; head < n_heads; ++head) {
      by_distance[static_cast<size_t>(head * n_distances + i)] =
          table[static_cast<size_t>(bucket * n_heads + head)];
    }
  }
  return by_distance;
}

std::vector<int32_t> row_by_distance(const RelativeScoresConfig& scores) {
  const int64_t half = scores.rows / 2;
  const int64_t reach = scores.reach();
  std::vector<int32_t> rows;
  for (int64_t distance = -reach; distance <= reach; ++distance) {
    const int64_t steps = steps_to(scores, std::abs(distance));
    const int64_t row = half + (distance > 0 ? -steps : steps);
    rows.push_back(static_cast<int32_t>(std::clamp<int64_t>(row, 0, scores.rows - 1)));
  }
  return rows;
}

namespace {

// Further limits of the same kind.
constexpr int64_t kMaxCount = int64_t{1} << 20;
constexpr int64_t kMaxHeadsOfAllLayers = 1 << 18;  // the largest models have 2^15
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxBuckets = 4096;
constexpr int64_t kMaxDistance = 1024;

// Checks members of one part of a description, which sentences name.
class Checker {
 public:
  Checker(std::string_view where, std::string part) : where_(where), part_(std::move(part)) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(std::string(where_) + ": " + part_ + what);
  }
  void count(const char* name, int64_t value, int64_t max, int64_t min = 1) const {
    if (value < min || value > max) {
      fail(std::string(name) + " is " + std::to_string(value) + ", outside " + std::to_string(min) +
           " to " + std::to_string(max));
    }
  }
  void number(const char* name, double value, double min, double max) const {
    if (!(value >= min && value <= max)) fail(std::string(name) + " is out of range");
  }
  void norm(const char* name, const NormConfig& norm) const {
    number((std::string(name) + "'s eps").c_str(), norm.eps, 0, 1);
    if (norm.bias && norm.kind != NormKind::layer) {
      fail(std::string(name) + " has a bias, which only layer normalization has");
    }
  }

 private:
  std::string_view where_;
  std::string part_;
};

constexpr int64_t kMostLayerStates = 16;
constexpr double kLargest = 1e12;  // of factors and frequencies

void check_rope(const RopeConfig& rope, std::string_view where) {
  const Checker check(where, "rope " + in_quotes(rope.name) + ": ");
  check.count("the number of frequencies", static_cast<int64_t>(rope.frequencies.size()),
              kMaxHeadDim / 2);
  for (const auto* frequencies : {&rope.frequencies, &rope.long_frequencies}) {
    for (const float f : *frequencies) check.number("a frequency", f, 0, kLargest);
  }
  check.number("attention_factor", rope.attention_factor, -kLargest, kLargest);
  check.count("original_max_context", rope.original_max_context, kMaxContext, 0);
  check.number("dynamic_factor", rope.dynamic_factor, 0, kLargest);
  const bool is_long = !rope.long_frequencies.empty();
  if (is_long && rope.long_frequencies.size() != rope.frequencies.size()) {
    check.fail("there must be as many long_frequencies as frequencies");
  }
  const int rules = static_cast<int>(is_long) + static_cast<int>(rope.dynamic_factor > 0);
  if (rules != static_cast<int>(rope.original_max_context > 0)) {
    check.fail("original_max_context belongs to either long_frequencies or dynamic_factor");
  }
  if (rope.dynamic_factor > 0 && rope.frequencies.size() < 2) {
    check.fail("dynamic_factor needs two frequencies or more");
  }
}

void check_relative_bias(const RelativeBiasConfig& bias, const Checker& check) {
  if (!bias) return;
  check.count("relative_bias.buckets", bias.buckets, kMaxBuckets, 4);
  // As many small distances have buckets by themselves.
  const int64_t of_one_side = bias.bidirectional ? bias.buckets / 2 : bias.buckets;
  check.count("relative_bias.max_distance", bias.max_distance, kMaxDistance, of_one_side / 2 + 1);
}

void check_relative_scores(const AttentionConfig& attention, const LayerConfig& layer,
                           const Checker& check) {
  const RelativeScoresConfig& scores = attention.relative_scores;
  if (!scores) return;
  check.count("relative_scores.rows", scores.rows, kMaxBuckets, 2);
  if (scores.rows % 2 != 0) check.fail("relative_scores.rows is odd");
  if (scores.max_distance != 0) {
    if (scores.rows % 4 != 0) check.fail("relative_scores.rows is not a multiple of four");
    check.count("relative_scores.max_distance", scores.max_distance, kMaxCount,
                scores.rows / 4 + 2);
  }
  if (!scores.of_queries && !scores.of_keys) {
    check.fail("relative_scores are neither of queries nor of keys");
  }
  if (!attention.bidirectional || attention.n_heads != attention.n_kv_heads || attention.rope ||
      attention.qk_norm != QkNorm::none || attention.kv_of || layer.cross_attention) {
    check.fail(
        "relative_scores are of bidirectional attention with keys for each head, which are neither "
        "rotated nor normalized");
  }
}

void check_cross_attention(const AttentionConfig& attention, const LayerConfig& layer,
                           const ModelConfig& config, const Checker& check) {
  const BranchNorms& norms = layer.cross_attention->norms;
  check.norm("cross attention's norm before", norms.before);
  check.norm("cross attention's norm after", norms.after);
  check.norm("cross attention's norm of the stream", norms.stream);
  if (!config.encoder) check.fail("there is cross attention, but no encoder");
  if (layer.parallel) check.fail("parallel branches have no cross attention between them");
  if (attention.qk_norm != QkNorm::none) {
    check.fail("cross attention does not normalize queries and keys");
  }
}

void check_gate(Activation gate, const Checker& check) {
  if (is_of_gates(gate))
    check.fail("swiglu_clamped and silu_clamped are no activations of factors");
}

void check_mixer(const AttentionConfig& attention, const LayerConfig& layer,
                 const ModelConfig& config, const Checker& check) {
  check.count("n_heads", attention.n_heads, kMaxHeads);
  check.count("n_kv_heads", attention.n_kv_heads, kMaxHeads);
  check.count("head_dim", attention.head_dim, kMaxHeadDim);
  check.count("value_head_dim", attention.v_head_dim(), kMaxHeadDim);
  if (attention.n_heads % attention.n_kv_heads != 0) {
    check.fail("n_heads (" + std::to_string(attention.n_heads) +
               ") is not a multiple of n_kv_heads (" + std::to_string(attention.n_kv_heads) + ")");
  }
  if (attention.head_dim % 2 != 0) check.fail("head_dim is odd; rotary embeddings need pairs");
  check.number("scale", attention.scale, -kLargest, kLargest);
  check.number("soft_cap", attention.soft_cap, 0, kLargest);
  check.number("query_scaling", attention.query_scaling, 0, kLargest);
  check.count("query_scaling_from", attention.query_scaling_from, kMaxContext,
              attention.query_scaling != 0 ? 1 : 0);
  check.count("query_scaling_ahead", attention.query_scaling_ahead, kMaxContext, 0);
  if (attention.head_gate && !attention.output_gate) check.fail("head_gate needs an output_gate");
  check_gate(attention.gate, check);
  check.count("window", attention.window, kMaxContext, 0);
  if (attention.window_in_blocks && (attention.window == 0 || attention.bidirectional)) {
    check.fail("window_in_blocks needs a window, of earlier positions alone");
  }
  check.norm("qk_norm", attention.qk_norm_as);
  if ((attention.qk_norm != QkNorm::none) != static_cast<bool>(attention.qk_norm_as)) {
    check.fail("qk_norm needs a normalization");
  }
  if (attention.qk_norm_after_rope && attention.qk_norm != QkNorm::head) {
    check.fail("qk_norm_after_rope needs a qk_norm of each head");
  }
  if (attention.v_norm &&
      (attention.qk_norm != QkNorm::head || attention.qk_norm_as.kind != NormKind::rms)) {
    check.fail("values have a norm, but not each head of queries and keys an RMS norm");
  }
  if (attention.rope) {
    if (*attention.rope >= config.ropes.size()) check.fail("its rope does not exist");
    if (config.ropes[*attention.rope].dims() > attention.head_dim) {
      check.fail("its rope rotates more than head_dim elements");
    }
  }
  check.norm("sums_norm", attention.sums_norm);
  if (attention.sums_norm && layer.cross_attention) {
    check.fail("sums_norm is of layers without cross attention");
  }
  if (!attention.slopes.empty() &&
      static_cast<int64_t>(attention.slopes.size()) != attention.n_heads) {
    check.fail("there must be as many slopes as heads");
  }
  for (const float slope : attention.slopes) check.number("a slope", slope, -kLargest, kLargest);
  check_relative_bias(attention.relative_bias, check);
  check_relative_scores(attention, layer, check);
  if (attention.bidirectional && !config.output.none) {
    check.fail("tokens see later ones, so that there can be no output matrix");
  }
  if (layer.cross_attention) check_cross_attention(attention, layer, config, check);
}

// Experts of layer n, which may be added after the next one.
void check_deferred(int64_t n, const ModelConfig& config, const Checker& check) {
  const auto defers = [&](int64_t of) {
    const std::optional<ExpertsConfig>& experts = config.layer(of).experts;
    return experts && experts->deferred;
  };
  if (!defers(n)) return;
  if (n + 1 == config.n_layers() || !config.layer(n + 1).has_feed_forward() || defers(n + 1)) {
    check.fail("layer " + std::to_string(n) +
               " defers its experts, but none with a feed-forward that defers none follows it");
  }
}

// The keys and values of layer n, which may be those of an earlier layer.
void check_kv_of(const AttentionConfig& attention, int64_t n, const ModelConfig& config,
                 const Checker& check) {
  if (!attention.kv_of) return;
  const int64_t source = *attention.kv_of;
  if (source < 0 || source >= n) {
    check.fail("layer " + std::to_string(n) + " reads keys and values of layer " +
               std::to_string(source) + ", which is none before it");
  }
  std::optional<KvGeometry> kept = kv_geometry(config.layer(source));
  KvGeometry read = kv_read(attention);
  read.exact = kept && kept->exact;
  // Positions that no longer layer sees are given up.
  const bool sees_more =
      kept && kept->window > 0 && (read.window == 0 || read.window > kept->window);
  if (kept) kept->window = read.window;
  if (kept != read || sees_more || attention.bidirectional) {
    check.fail("layer " + std::to_string(n) + " cannot read the keys and values of layer " +
               std::to_string(source) + ", which has none, or others");
  }
  if (config.layer(n).cross_attention || attention.qk_norm == QkNorm::whole) {
    check.fail(
        "cross attention, or a norm of all queries together, has keys and values of its own");
  }
}

void check_mixer(const LatentAttentionConfig& attention, const LayerConfig& layer,
                 const ModelConfig& config, const Checker& check) {
  check.count("n_heads", attention.n_heads, kMaxHeads);
  check.count("q_rank", attention.q_rank, kMaxCount, 0);
  check.count("kv_rank", attention.kv_rank, kMaxHeadDim);
  check.count("rope_dim", attention.rope_dim, kMaxHeadDim, 0);
  check.count("nope_dim", attention.nope_dim, kMaxHeadDim);
  check.count("value_head_dim", attention.value_head_dim, kMaxHeadDim);
  check.count("what is kept of a token", attention.kept_dim(), kMaxHeadDim);
  if (attention.kept_dim() % 2 != 0) check.fail("what is kept of a token has an odd width");
  check.number("scale", attention.scale, -kLargest, kLargest);
  check.norm("latent_norm", attention.latent_norm);
  if (!attention.latent_norm || attention.latent_norm.bias) {
    check.fail("latent_norm must be a normalization without bias");
  }
  if (attention.rope) {
    if (*attention.rope >= config.ropes.size()) check.fail("its rope does not exist");
    if (config.ropes[*attention.rope].dims() != attention.rope_dim) {
      check.fail("its rope rotates other elements than rope_dim");
    }
  }
  if (layer.cross_attention) check.fail("cross attention is beside attention alone");
}

constexpr int64_t kMaxTaps = 64;

void check_convolution(const ConvolutionConfig& convolution, const Checker& check) {
  check.count("the convolution's taps", convolution.taps, kMaxTaps, 2);
  if (!is_of_products(convolution.activation)) {
    check.fail("softplus, swiglu_clamped and silu_clamped are no activations of convolutions");
  }
}

// What all mixers with a state have in common.
void check_recurrent(const LayerConfig& layer, const Checker& check) {
  if (layer.cross_attention) check.fail("recurrent layers have no cross attention");
}

void check_mixer(const DeltaNetConfig& mixer, const LayerConfig& layer,
                 const ModelConfig& /*config*/, const Checker& check) {
  check.count("n_key_heads", mixer.n_key_heads, kMaxHeads);
  check.count("n_value_heads", mixer.n_value_heads, kMaxHeads);
  check.count("key_head_dim", mixer.key_head_dim, kMaxHeadDim);
  check.count("value_head_dim", mixer.value_head_dim, kMaxHeadDim);
  if (mixer.n_value_heads % mixer.n_key_heads != 0) {
    check.fail("n_value_heads (" + std::to_string(mixer.n_value_heads) +
               ") is not a multiple of n_key_heads (" + std::to_string(mixer.n_key_heads) + ")");
  }
  check.number("strength", mixer.strength, 0, kLargest);
  check.number("least_log_decay", mixer.least_log_decay, -kLargest, 0);
  check.count("decay_rank", mixer.decay_rank, kMaxCount, 0);
  check.count("gate_rank", mixer.gate_rank, kMaxCount, 0);
  check.norm("norm", mixer.norm);
  check_convolution(mixer.convolution, check);
  check_gate(mixer.gate, check);
  check_recurrent(layer, check);
}

void check_mixer(const StateSpaceConfig& mixer, const LayerConfig& layer,
                 const ModelConfig& /*config*/, const Checker& check) {
  check.count("n_heads", mixer.n_heads, kMaxHeads);
  check.count("head_dim", mixer.head_dim, kMaxHeadDim);
  check.count("n_groups", mixer.n_groups, mixer.n_heads);
  check.count("state_size", mixer.state_size, kMaxHeadDim);
  if (mixer.n_heads % mixer.n_groups != 0) {
    check.fail("n_heads (" + std::to_string(mixer.n_heads) + ") is not a multiple of n_groups (" +
               std::to_string(mixer.n_groups) + ")");
  }
  check.number("least_step", mixer.least_step, 0, kLargest);
  if (mixer.most_step) check.number("most_step", *mixer.most_step, mixer.least_step, kLargest);
  check.norm("norm", mixer.norm);
  check_convolution(mixer.convolution, check);
  check_gate(mixer.gate, check);
  check_recurrent(layer, check);
}

void check_mixer(const ShortConvolutionConfig& mixer, const LayerConfig& layer,
                 const ModelConfig& /*config*/, const Checker& check) {
  check_convolution(mixer.convolution, check);
  check_recurrent(layer, check);
}

void check_mixer(const SelectiveScanConfig& mixer, const LayerConfig& layer,
                 const ModelConfig& /*config*/, const Checker& check) {
  check.count("channels", mixer.channels, kMaxCount);
  check.count("state_size", mixer.state_size, kMaxHeadDim);
  check.count("step_rank", mixer.step_rank, kMaxCount);
  check.norm("norm", mixer.norm);
  if (mixer.norm.bias) check.fail("norm must be a normalization without bias");
  check_convolution(mixer.convolution, check);
  check_gate(mixer.gate, check);
  check_recurrent(layer, check);
}

void check_mixer(const LinearAttentionConfig& mixer, const LayerConfig& layer,
                 const ModelConfig& /*config*/, const Checker& check) {
  check.count("n_heads", mixer.n_heads, kMaxHeads);
  check.count("head_dim", mixer.head_dim, kMaxHeadDim);
  check.norm("norm", mixer.norm);
  if (!is_of_products(mixer.activation)) {
    check.fail("softplus, swiglu_clamped and silu_clamped are no activations of products");
  }
  check_gate(mixer.gate, check);
  check_recurrent(layer, check);
}

void check_product(const char* name, int64_t size, Activation activation, bool gated,
                   const Checker& check) {
  check.count(name, size, kMaxCount);
  if (activation == Activation::softplus) {
    check.fail("softplus is no activation of feed-forwards");
  }
  if (is_of_gates(activation) && !gated) {
    check.fail("swiglu_clamped and silu_clamped are activations of gated feed-forwards only");
  }
}

void check_feed_forward(const char* size, const FeedForwardConfig& ffn, const Checker& check) {
  check_product(size, ffn.size, ffn.activation, ffn.gated, check);
  if (ffn.xielu && (ffn.gated || ffn.activation != Activation::none)) {
    check.fail("xielu is in the place of another activation, and without gates");
  }
  check.norm("middle_norm", ffn.middle_norm);
  check.number("gate_limit", ffn.gate_limit, 0, kLargest);
  if (!ffn.cutoff) return;
  check.number("cutoff", *ffn.cutoff, -kLargest, kLargest);
  if (!ffn.gated || is_of_gates(ffn.activation)) {
    check.fail("cutoff is of gates, of which an activation makes factors");
  }
}

void check_experts(const ExpertsConfig& experts, const Checker& check) {
  check.count("the number of experts", experts.count, kMaxExperts);
  check.count("the number of identities", experts.identities, kMaxExperts, 0);
  check.count("the number of all experts", experts.scored(), kMaxExperts);
  check.count("the number of experts used", experts.router.used, experts.scored());
  check_feed_forward("the size of experts", experts.each, check);
  if (experts.each.xielu || experts.shared.xielu) check.fail("experts have no xielu");
  if (experts.each.cutoff) check.fail("experts have no cutoff");
  if (experts.each.middle_norm || experts.shared.middle_norm) {
    check.fail("experts have no middle_norm");
  }
  check.count("groups", experts.router.groups, experts.scored());
  check.count("groups_used", experts.router.groups_used, experts.router.groups);
  if (experts.scored() % experts.router.groups != 0 ||
      experts.router.used > experts.scored() / experts.router.groups * experts.router.groups_used) {
    check.fail("the experts' groups are not equal, or too small for the experts used");
  }
  if (experts.identities > 0 && experts.router.weighs_input) {
    check.fail("identities are weighed by what they give");
  }
  if (experts.deferred && (experts.shared.size == 0 || experts.has_parts() || experts.sum_bias)) {
    check.fail("deferred experts need a shared one, and neither norms after nor a bias");
  }
  const bool is_mixer = experts.router.score == Router::Score::sparse_mixer;
  check.number("the router's margin", experts.router.margin, 0, is_mixer ? kLargest : 0);
  if (is_mixer && (experts.router.correction || experts.router.groups > 1)) {
    check.fail("experts that a sparse_mixer scores have neither a correction nor groups");
  }
  check.number("the router's soft_cap", experts.router.soft_cap, 0, kLargest);
  check.number("the experts' scale", experts.router.scale, -kLargest, kLargest);
  check.norm("the router's norm", experts.router_norm);
  check.norm("the experts' norm", experts.norm);
  check.norm("the norm after the experts", experts.norm_after);
  check.norm("the norm after the shared expert", experts.shared_norm_after);
  if (experts.shared.size != 0) {
    check_feed_forward("the size of the shared expert", experts.shared, check);
    if (experts.shared_gate && experts.shared.bias) {
      check.fail("a shared expert with a gate cannot have biases");
    }
  } else if (experts.shared_gate || experts.shared_norm_after) {
    check.fail("there is a gate or a norm, but no shared expert");
  }
}

void check_aside(const AsideConfig& aside, const LayerConfig& layer, const ModelConfig& config,
                 const Checker& check) {
  const AttentionConfig& attention = aside.attention;
  check.norm("the norm of the block beside the stream", aside.norm);
  check.norm("the norm of its feed-forward", aside.ffn_norm);
  check_mixer(attention, layer, config, check);
  check_feed_forward("the size of its feed-forward", aside.ffn, check);
  if (attention.qkv_bias || attention.out_bias || attention.qk_norm != QkNorm::none ||
      attention.sinks || attention.relative_bias || attention.relative_scores || attention.kv_of ||
      attention.output_gate || attention.bidirectional || attention.sums_norm || aside.ffn.xielu ||
      aside.ffn.middle_norm || layer.parallel || layer.cross_attention) {
    check.fail("a block beside the stream has plain attention and a plain feed-forward");
  }
}

void check_mixers(const LayerConfig& layer, const ModelConfig& config, const Checker& check) {
  if (layer.mixers.empty()) check.fail("there is no mixer");
  int keep_kv = layer.aside ? 1 : 0;
  int keep_states = 0;
  for (size_t n = 0; n < layer.mixers.size(); ++n) {
    const Mixer& mixer = layer.mixers[n];
    if (n > 0 && mixer.index() <= layer.mixers[n - 1].index()) {
      check.fail("mixers are not in the order of their kinds, one of each");
    }
    std::visit([&](const auto& kind) { check_mixer(kind, layer, config, check); }, mixer);
    keep_kv += static_cast<int>(kv_geometry(mixer).has_value());
    keep_states += static_cast<int>(recurrent_shape(mixer, config.hidden).has_value());
  }
  if (keep_kv > 1 || keep_states > 1) {
    check.fail("two mixers keep keys and values, or two keep a state");
  }
}

void check_laurel(const LayerConfig& layer, const Checker& check) {
  check.count("laurel's rank", layer.laurel.rank, kMaxCount, 0);
  check.norm("laurel's norm", layer.laurel.norm);
  if (!layer.laurel) {
    if (layer.laurel.norm) check.fail("there is no laurel, but something is said of it");
    return;
  }
  if (!layer.laurel.norm || !layer.mixer_norms.before || layer.parallel) {
    check.fail("laurel needs norms, before the mixer too, and no parallel branches");
  }
}

void check_token_convolution(const LayerConfig& layer, const ModelConfig& config,
                             const Checker& check) {
  const TokenConvolutionConfig& convolution = layer.token_convolution;
  if (!convolution) {
    if (convolution == TokenConvolutionConfig{}) return;
    check.fail("there is no convolution of tokens, but something is said of it");
  }
  check.count("token_convolution.taps", convolution.taps, kMaxTaps, 3);
  check_product("token_convolution.taps", convolution.taps, convolution.activation, false, check);
  check.norm("token_convolution.norm", convolution.norm);
  if (convolution.taps % 2 == 0) check.fail("token_convolution.taps is an even number");
  // A step holds whole texts.
  if (!config.output.none || config.encoder || !layer.has_feed_forward()) {
    check.fail("there is a convolution of tokens beside what is no encoder's layer");
  }
}

void check_layer(const LayerConfig& layer, const ModelConfig& config, std::string_view where) {
  const Checker check(where, "layer kind " + in_quotes(layer.name) + ": ");
  check_mixers(layer, config, check);
  if (layer.aside) check_aside(*layer.aside, layer, config, check);
  for (const BranchNorms* norms : {&layer.mixer_norms, &layer.ffn_norms}) {
    check.norm("the norm before", norms->before);
    check.norm("the norm after", norms->after);
    check.norm("the norm of the stream", norms->stream);
  }
  if (layer.parallel && layer.mixer_norms.stream) {
    check.fail("parallel branches have no normalization of the stream between them");
  }
  check_laurel(layer, check);
  check_token_convolution(layer, config, check);
  if (layer.experts) {
    if (layer.ffn.size != 0) check.fail("there are both experts and a feed-forward");
    check_experts(*layer.experts, check);
    if (layer.parallel && (layer.experts->router_norm || layer.experts->norm)) {
      check.fail("experts beside the mixer read what that reads");
    }
  } else if (layer.has_feed_forward()) {
    check_feed_forward("the size of the feed-forward", layer.ffn, check);
  } else if (layer.ffn != FeedForwardConfig{} || layer.ffn_norms != BranchNorms{} ||
             layer.parallel || layer.scaled || config.layer_inputs || config.altup) {
    check.fail("there is no feed-forward, but something is said of it");
  }
}

void check_layer_inputs(const LayerInputsConfig& inputs, const ModelConfig& config,
                        const Checker& check) {
  if (!inputs) return;
  check_product("the size of layers' inputs", inputs.size, inputs.activation, false, check);
  check.count("the size of all layers' inputs", config.layer_inputs_dim(), kMaxCount);
  check.number("the multiplier of layers' inputs", inputs.multiplier, -kLargest, kLargest);
  check.norm("the norm of layers' inputs", inputs.norm);
  check.norm("the norm after layers' inputs", inputs.norm_after);
}

void check_altup(const AltUpConfig& altup, const Checker& check) {
  if (altup) check.count("altup's streams", altup.streams, kMostParts - 1, 2);
  check.norm("altup's norm", altup.norm);
  if (static_cast<bool>(altup) != static_cast<bool>(altup.norm)) {
    check.fail("altup needs streams and a norm");
  }
}

// What an encoder's layers cache lies in the pages of its decoder's layers until cross attention's
// keys and values take its place (Runner::encode()).
void check_encoder(const ModelConfig& encoder, const ModelConfig& decoder, std::string_view where) {
  const Checker check(where, "encoder: ");
  if (encoder.encoder) check.fail("it has an encoder itself");
  if (!encoder.output.none) check.fail("it has an output matrix");
  if (encoder.embedding.shared &&
      (encoder.vocab != decoder.vocab || encoder.hidden != decoder.hidden)) {
    check.fail("it shares the decoder's embedding, but has other sizes");
  }
  ModelConfig alone = encoder;
  alone.embedding.shared = false;
  validate(alone, std::string(where) + ": encoder");
  for (int64_t n = 0; n < encoder.n_layers(); ++n) {
    if (lends_kv(encoder, n)) check.fail("one of its layers reads the keys and values of another");
    if (recurrent_shape(encoder.layer(n), encoder.hidden)) check.fail("it has recurrent layers");
  }
  std::optional<KvGeometry> first;
  for (const ModelConfig* stack : {&decoder, &encoder}) {
    for (const LayerConfig& layer : stack->layer_kinds) {
      const std::optional<KvGeometry> kv = kv_geometry(layer);
      if (!first) first = kv;
      if (kv && (kv->k_dim() != first->k_dim() || kv->v_dim() != first->v_dim())) {
        check.fail(
            "its keys and values, or those of a layer of the decoder, are not as wide as others");
      }
    }
  }
}

void check_layer_states(const LayerStatesConfig& states, const ModelConfig& decoder,
                        const Checker& check) {
  check.norm("the norm of layers' states", states.norm);
  if (!states) {
    if (states != LayerStatesConfig{}) check.fail("no layer's states are read, but they have more");
    return;
  }
  check.count("the number of layers' states", states.count(), kMostLayerStates);
  for (size_t n = 0; n < states.after.size(); ++n) {
    check.count("layers before a state", states.after[n], decoder.n_layers(),
                n == 0 ? 0 : states.after[n - 1] + 1);
  }
  if (states.norm_of_each && !states.norm) check.fail("layers' states have no norm each");
  if (decoder.predictors.size() > 1) check.fail("it is not alone, but reads layers' states");
}

// Of those whose first mixer reads the embedding and the hidden state side by side.
void check_side_by_side(const ModelConfig& predictor, const Checker& check) {
  const HiddenInputConfig& input = *predictor.hidden_input;
  if (input.normed_stream && !(input.side_by_side && input.norm)) {
    check.fail("its layers' input is a norm that it has not");
  }
  if (!input.side_by_side) return;
  if (predictor.layers.empty() || predictor.layers.front() >= predictor.layer_kinds.size()) return;
  const LayerConfig& first = predictor.layer(0);
  const size_t kind = predictor.layers.front();
  if (std::ranges::count(predictor.layers, kind) > 1) {
    check.fail("its first layer reads two inputs side by side, which no other of its kind does");
  }
  const bool is_plain = first.mixers.size() == 1 && first.find<AttentionConfig>() != nullptr &&
                        !first.parallel && !first.laurel && !first.aside;
  if (!is_plain || first.mixer_norms.before) {
    check.fail("what reads two inputs side by side is attention alone, without a norm before");
  }
}

// Tokens of which the output matrix has rows.
void check_output_tokens(const ModelConfig& predictor, const Checker& check) {
  const OutputConfig& output = predictor.output;
  if (output.tokens.empty()) return;
  if (output.shared || output.tied || output.none) {
    check.fail("rows of the output matrix are some tokens', but it has none of its own");
  }
  std::vector<bool> has_row(static_cast<size_t>(predictor.vocab));
  for (const int32_t token : output.tokens) {
    check.count("a token of the output matrix", token, predictor.vocab - 1, 0);
    if (has_row[static_cast<size_t>(token)]) {
      check.fail("two rows of the output matrix are those of token " + std::to_string(token));
    }
    has_row[static_cast<size_t>(token)] = true;
  }
}

// A predictor is a decoder that begins with another one's hidden states.
void check_predictor(const ModelConfig& predictor, const ModelConfig& decoder,
                     std::string_view where) {
  const Checker check(where, "predictor: ");
  if (!predictor.hidden_input) check.fail("it reads no hidden states");
  check.norm("the norm of hidden states", predictor.hidden_input->norm);
  if (predictor.hidden != decoder.hidden || predictor.vocab != decoder.vocab) {
    check.fail("it has another width or vocabulary than the decoder");
  }
  if (predictor.encoder || !predictor.predictors.empty() || predictor.layer_inputs) {
    check.fail("it has an encoder, predictors or layers' inputs itself");
  }
  if (decoder.altup || decoder.layer_inputs) {
    check.fail("the decoder's hidden states are more than one stream and tokens give");
  }
  if (predictor.output.none || (predictor.output.shared && decoder.output.none)) {
    check.fail("it has no output matrix");
  }
  if (predictor.output.shared && (predictor.output.tied || predictor.output.bias)) {
    check.fail("its output matrix is the decoder's, but something else is said of it");
  }
  check_layer_states(predictor.hidden_input->layer_states, decoder, check);
  check_side_by_side(predictor, check);
  check_output_tokens(predictor, check);
  ModelConfig alone = predictor;
  alone.output.tokens.clear();
  alone.embedding.shared = alone.output.shared = false;
  alone.hidden_input.reset();
  validate(alone, std::string(where) + ": predictor");
}

void check_formats(const ModelConfig& config, const Checker& check) {
  constexpr int64_t kMostRules = 10'000;
  check.count("the number of other formats", static_cast<int64_t>(config.formats.size()),
              kMostRules, 0);
  for (const FormatRule& rule : config.formats) {
    const std::string name(kind_name(rule.tensor));
    if (!takes_format(rule.tensor)) check.fail("formats: " + name + " has no format of its own");
    if (!is_of_layers(rule.tensor) && (rule.first_layer != 0 || rule.n_layers != 0)) {
      check.fail("formats: " + name + " is in no layer");
    }
    const std::string of = "formats, layers of " + name;
    check.count(of.c_str(), rule.n_layers, config.n_layers(), 0);
    check.count((of + ", the first").c_str(), rule.first_layer, config.n_layers() - rule.n_layers,
                0);
  }
}

void check_dense(const DenseConfig& dense, const Checker& check) {
  check_product("the size of a dense layer", dense.size, dense.activation, false, check);
  check.norm("a dense layer's norm", dense.norm);
}

// Texts are read twice: as they are by the encoder, and by the decoder behind that token.
void check_start(const ModelConfig& config, const Checker& check) {
  const std::optional<int32_t> start = config.pooling->start;
  if (start.has_value() != static_cast<bool>(config.encoder)) {
    check.fail("pooling needs a first token of the decoder's where there is an encoder alone");
  }
  if (!start) return;
  check.count("the decoder's first token", *start, config.vocab - 1, 0);
  if (config.encoder->max_context < config.max_context) {
    check.fail("the encoder reads shorter texts than the decoder, which reads the same");
  }
}

void check_pooling(const ModelConfig& config, const Checker& check) {
  const PoolingConfig& pooling = *config.pooling;
  if (!config.output.none) check.fail("there is pooling beside an output matrix");
  check_start(config, check);
  check.count("the longest text", pooling.max_tokens, config.max_context, 0);
  check.count("the number of dense layers", static_cast<int64_t>(pooling.dense.size()), kMaxLayers,
              0);
  check.count("the number of dense layers before pooling", pooling.dense_before,
              static_cast<int64_t>(pooling.dense.size()), 0);
  for (const DenseConfig& dense : pooling.dense) check_dense(dense, check);
}

}  // namespace

void validate(const ModelConfig& config, std::string_view where) {
  const Checker check(where, "");
  check.count("hidden", config.hidden, kMaxCount);
  check.count("vocab", config.vocab, kMaxVocab);
  check.count("max_context", config.max_context, kMaxContext);
  check.count("the number of layers", config.n_layers(), kMaxLayers);
  check.count("the number of layer kinds", static_cast<int64_t>(config.layer_kinds.size()),
              config.n_layers());
  check.count("the number of ropes", static_cast<int64_t>(config.ropes.size()), kMaxLayers, 0);
  check.number("the embedding's multiplier", config.embedding.multiplier, -kLargest, kLargest);
  check.count("the number of learned positions", config.embedding.positions, kMaxContext, 0);
  check.count("the offset of positions", config.embedding.offset, kMaxContext, 0);
  if (config.embedding.positions != 0 &&
      config.embedding.positions - config.embedding.offset < config.max_context) {
    check.fail("there are fewer learned positions than max_context");
  }
  check.count("the number of segments", config.embedding.segments, kMaxCount, 0);
  check.count("the size of embeddings", config.embedding.size, kMaxCount, 0);
  if (config.embedding.size != 0 &&
      (!config.output.none || config.embedding.shared || config.encoder || config.hidden_input ||
       config.layer_inputs || config.altup)) {
    check.fail("embeddings of a size of their own are those of encoders");
  }
  check.norm("the embedding's norm", config.embedding.norm);
  check.norm("the output's norm", config.output.norm);
  check.number("the output's soft_cap", config.output.soft_cap, 0, kLargest);
  for (const RopeConfig& rope : config.ropes) check_rope(rope, where);
  for (const LayerConfig& layer : config.layer_kinds) check_layer(layer, config, where);
  check_layer_inputs(config.layer_inputs, config, check);
  check_altup(config.altup, check);
  check_formats(config, check);
  int64_t heads = 0;
  for (const size_t kind : config.layers) {
    if (kind >= config.layer_kinds.size()) check.fail("a layer's kind does not exist");
    const LayerConfig& layer = config.layer_kinds[kind];
    int64_t of_mixers = 0;
    for (const Mixer& mixer : layer.mixers) of_mixers += n_heads_of(mixer);
    if (layer.aside) of_mixers += layer.aside->attention.n_heads;
    heads += std::max(of_mixers, layer.experts ? layer.experts->scored() : 0);
  }
  check.count("the number of heads or experts of all layers", heads, kMaxHeadsOfAllLayers);
  for (int64_t n = 0; n < config.n_layers(); ++n) {
    const auto* attention = config.layer(n).find<AttentionConfig>();
    if (attention != nullptr) check_kv_of(*attention, n, config, check);
    check_deferred(n, config, check);
  }
  if (config.activation_bits != 8 && config.activation_bits != 16) {
    check.fail("activation_bits must be 8 or 16");
  }
  if (config.rotated && config.activation_bits != 8) {
    check.fail("matrices are rotated for activations of 8 bits, but activation_bits is 16");
  }
  if (config.values_rotated && (!config.rotated || !is_integer(config.weight_format))) {
    check.fail("values are rotated, but matrices of the layers are not");
  }
  if (!is_float(config.embedding_format)) {
    check.fail("the embedding table must be f32, f16 or bf16");
  }
  const OutputConfig& output = config.output;
  if (config.pooling) check_pooling(config, check);
  if (output.none && (output.tied || output.bias || output.soft_cap != 0 || output.dense)) {
    check.fail("there is no output matrix, but something is said of it");
  }
  if (output.dense) {
    check_dense(output.dense, check);
    if (output.dense.size != config.hidden) {
      check.fail("the dense layer before the output matrix is not as wide as hidden states");
    }
    if (!config.predictors.empty() || config.hidden_input) {
      check.fail("there is a dense layer before the output matrix of a predictor or beside one");
    }
  }
  if (output.tied && config.output_format != config.embedding_format) {
    check.fail("the output matrix is tied to the embedding table but has another type");
  }
  if (config.embedding.shared) check.fail("the embedding is shared with no decoder");
  if (output.shared) check.fail("the output matrix is shared with no decoder");
  if (config.hidden_input) check.fail("hidden states are of no decoder");
  if (!output.tokens.empty()) check.fail("a decoder's output matrix has a row for each token");
  check.count("the number of predictors", static_cast<int64_t>(config.predictors.size()),
              kMaxPredictors, 0);
  for (const ModelConfig& predictor : config.predictors) check_predictor(predictor, config, where);
  if (!config.predictors.empty() && config.predictors.front().hidden_input->of_decoder) {
    check.fail("predictor: the first one reads nothing but the decoder's hidden states");
  }
  if (config.encoder) check_encoder(*config.encoder, config, where);
}

}  // namespace faststream
