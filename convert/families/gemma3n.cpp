// Gemma 3n: layers as Gemma 4's, with inputs of their own and keys and values of earlier ones,
// whose streams alternate (AltUp), with a residual that is learned (LAuReL) and gates of which few
// stay.
#include "convert/families/gemma3n.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "convert/families/family.h"

namespace faststream::convert {
namespace {

constexpr PlainShape kShape3n = {.n_layers = 35,
                                 .hidden = 2048,
                                 .n_heads = 8,
                                 .n_kv_heads = 2,
                                 .head_dim = 256,
                                 .ffn_hidden = 16384,
                                 .vocab = 262400,
                                 .max_context = 32768,
                                 .norm_eps = 1e-6F,
                                 .rope_theta = 1e6};

// How many standard deviations above its mean a share of a normal distribution ends, from 0 to 1.
double normal_quantile(double share) {
  double low = -40;
  double high = 40;
  for (int step = 0; step < 100; ++step) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::numbers::sqrt2) / 2 < share ? low : high) = middle;
  }
  return low;
}

// "activation_sparsity_pattern": of each layer the share of gates that do not stay; 0: all do.
std::vector<double> sparsities_in(const JsonView& config, int64_t n_layers) {
  constexpr int64_t kSparseLayers = 10;
  constexpr double kSparsity = 0.95;
  const auto count = static_cast<size_t>(n_layers);
  const auto said = config.find("activation_sparsity_pattern");
  std::vector<double> shares(count);
  if (!said) {
    if (n_layers > kSparseLayers) std::fill_n(shares.begin(), kSparseLayers, kSparsity);
    return shares;
  }
  if (!said->value().is_array()) return std::vector(count, said->as<double>());
  const std::vector<JsonView> list = said->elements();
  if (list.size() != count) said->fail("has not an entry for each layer");
  std::ranges::transform(list, shares.begin(),
                         [](const JsonView& share) { return share.as<double>(); });
  return shares;
}

std::vector<std::optional<float>> cutoffs_in(const JsonView& config, int64_t n_layers) {
  std::vector<std::optional<float>> cutoffs;
  for (const double share : sparsities_in(config, n_layers)) {
    if (!(share >= 0 && share < 1)) {
      config.member("activation_sparsity_pattern").fail("has a share that is not from 0 to 1");
    }
    std::optional<float>& cutoff = cutoffs.emplace_back();
    if (share != 0) cutoff = static_cast<float>(normal_quantile(share));
  }
  return cutoffs;
}

Gemma4Shape gemma3n_layers(const JsonView& config, const PlainShape& sizes) {
  constexpr int64_t kEvery = 5;  // layer sees all
  constexpr int64_t kSharing = 15;
  Gemma4Shape shape;
  shape.window = window_in(config, 512);
  shape.n_own = sizes.n_layers - number_of(config, "num_kv_shared_layers", sizes.n_layers - 1,
                                           std::min(kSharing, sizes.n_layers - 1));
  shape.input_size = count_in(config, "hidden_size_per_layer_input", kMaxSize, 256);
  const std::vector<bool> windowed =
      windowed_in(config, sizes.n_layers, [](int64_t n) { return (n + 1) % kEvery != 0; });
  const std::vector<int64_t> widths =
      counts_of_layers(config, "intermediate_size", sizes.n_layers, kMaxSize, sizes.ffn_hidden);
  for (size_t n = 0; n < windowed.size(); ++n) {
    shape.layers.push_back({.windowed = windowed[n],
                            .head_dim = sizes.head_dim,
                            .n_kv_heads = sizes.n_kv_heads,
                            .ffn_size = widths[n]});
  }
  return shape;
}

// The table of layers' inputs has rows for fewer ids: others, of pictures and sounds, take the
// first.
int64_t rows_of_inputs(const JsonView& config, int64_t vocab) {
  constexpr std::string_view kKey = "vocab_size_per_layer_input";
  constexpr int64_t kMostOthers = 4096;
  const int64_t rows = count_in(config, kKey, kMaxSize, 262144);
  if (vocab - rows > kMostOthers) {
    config.fail("\"vocab_size_per_layer_input\" is much smaller than \"vocab_size\"");
  }
  return rows;
}

void name_altup(const JsonView& config, const ModelConfig& model, Modules& m) {
  m.layer_inputs_rows = rows_of_inputs(config, model.vocab);
  m.altup_in = "altup_projections.";
  m.altup_norm = "altup.router_norm";
  m.altup_gates = "altup.modality_router";
  m.altup_gates_scale = gemma3n_gates_scale(model);
  m.altup_predict = "altup.prediction_coefs";
  m.altup_correct = "altup.correction_coefs";
  m.altup_out = "altup_unembed_projections.";
  m.laurel_in = "laurel.linear_left";
  m.laurel_out = "laurel.linear_right";
  m.laurel_norm = "laurel.post_laurel_norm";
  m.input_scale = "altup.correct_output_scale";
  if (!model.layer_inputs.scaled) m.unused.push_back(m.input_scale);
}

}  // namespace

float gemma3n_gates_scale(const ModelConfig& model) { return 1 / static_cast<float>(model.hidden); }

void make_gemma3n(const Gemma4Shape& layers, const Gemma3nShape& shape, ModelConfig& model) {
  make_gemma4(layers, model);
  model.altup = {.streams = shape.streams, .norm = model.output.norm};
  model.layer_inputs.scaled = shape.scaled_inputs;
  const LaurelConfig laurel{.rank = shape.laurel_rank, .norm = model.output.norm};
  change_layers(model, [&](int64_t n, LayerConfig& layer) {
    layer.scaled = false;
    layer.laurel = laurel;
    layer.ffn.cutoff = shape.cutoffs[static_cast<size_t>(n)];
    if (layer.ffn.cutoff) layer.name += " with few gates";
  });
}

FamilyModel describe_gemma3n(const FamilySource& source) {
  const JsonView& config = source.config;
  refuse_other(config, "altup_active_idx", 0);
  const PlainShape sizes = shape_in(config, kShape3n);
  FamilyModel model{plain_decoder_in(config, sizes, {.tied = true, .rope_of = "full_attention"})};
  const double theta = config.get("rope_local_base_freq", 10000.0);
  model.config.ropes.insert(
      model.config.ropes.begin(),
      rope_of_windows_in(
          config, {.head_dim = sizes.head_dim, .max_context = sizes.max_context, .theta = theta}));
  model.config.output.soft_cap = number_in(config, "final_logit_softcapping", 30);
  LayerConfig& first = model.config.layer_kinds[0];
  set_attention_bias(first, config.get("attention_bias", false));
  first.ffn.activation = activation_in(config, "hidden_activation", "gelu_pytorch_tanh");
  make_gemma3n(gemma3n_layers(config, sizes),
               {.streams = count_in(config, "altup_num_inputs", kMostParts, 4),
                .laurel_rank = count_in(config, "laurel_rank", kMaxSize, 64),
                .scaled_inputs = config.get("altup_correct_scale", true),
                .cutoffs = cutoffs_in(config, sizes.n_layers)},
               model.config);
  model.modules = gemma4_modules(model.config, false);
  name_altup(config, model.config, model.modules);
  return model;
}

}  // namespace faststream::convert
