// Mixers that keep a state of fixed size: a convolution over the last tokens, and what goes on from
// token to token in a matrix a head.
#include <cmath>

#include "models/mixers.h"

namespace faststream {
namespace {

std::vector<float> fetch(Backend& backend, const float* data, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  backend.copy_to_host(values.data(), data, values.size() * sizeof(float));
  return values;
}

// The convolution's weights, tap by tap; rates = -exp(decay).
template <typename Config>
void add_tables(RecurrentWeights<Config>& mixer, Backend& backend, Tables& tables) {
  const auto channels = static_cast<size_t>(mixer.shape.channels);
  const auto taps = static_cast<size_t>(mixer.shape.taps);
  const std::vector<float> weights =
      fetch(backend, mixer.convolution.weight, mixer.shape.channels * mixer.shape.taps);
  std::vector<float> by_tap(weights.size());
  for (size_t c = 0; c < channels; ++c) {
    for (size_t i = 0; i < taps; ++i) by_tap[i * channels + c] = weights[c * taps + i];
  }
  mixer.convolution.weight = tables.add(by_tap);
  if (mixer.decay == nullptr) return;
  std::vector<float> rates = fetch(backend, mixer.decay, mixer.shape.n_heads);
  for (float& rate : rates) rate = -std::exp(rate);
  mixer.recurrence.rates = tables.add(rates);
}

// The same elements as rows of one head each; the matrix has no gaps.
Matrix by_head(const Matrix& rows, int64_t size) {
  return {rows.data, rows.dtype, rows.rows * rows.cols / size, size};
}

// [tokens, in]
template <typename Config>
Matrix project(const Pass& pass, const RecurrentWeights<Config>& mixer, Input& input) {
  const Matrix projected = pass.rows_in(pass.memory.qkv, mixer.shape.in);
  pass.backend.linear(input, mixer.in.weight, {.bias = mixer.in.bias}, projected);
  return projected;
}

// [tokens, gates] f32
template <typename Config>
Matrix gates_of(const Pass& pass, const RecurrentWeights<Config>& mixer, Input& input) {
  const Matrix gates = pass.rows_in(pass.memory.steps, mixer.shape.gates);
  pass.backend.linear(input, mixer.gates.weight, {.bias = mixer.gates.bias}, gates);
  return gates;
}

// [tokens, channels]
template <typename Config>
Matrix convolve(const Pass& pass, const RecurrentWeights<Config>& mixer, const Matrix& x) {
  const Matrix convolved = pass.rows_in(pass.memory.convolved, mixer.shape.channels);
  pass.backend.convolve(pass.batch, x, mixer.convolution, pass.layers.states[mixer.state_layer],
                        convolved);
  return convolved;
}

// Of sums without gaps [tokens, sums].
template <typename Config>
void recur(const Pass& pass, const RecurrentWeights<Config>& mixer, const Matrix& q,
           const Matrix& k, const Matrix& v, const Matrix& gates, const Matrix& sums) {
  const StateLayer& states = pass.layers.states[mixer.state_layer];
  pass.backend.recur(pass.batch, q, k, v, gates, mixer.recurrence,
                     states.from(mixer.shape.tail_size()), sums);
}

}  // namespace

void complete(DeltaNetWeights& mixer, Backend& backend, Tables& tables) {
  add_tables(mixer, backend, tables);
}
void complete(StateSpaceWeights& mixer, Backend& backend, Tables& tables) {
  add_tables(mixer, backend, tables);
}
void complete(ShortConvolutionWeights& mixer, Backend& backend, Tables& tables) {
  add_tables(mixer, backend, tables);
}

LastProduct mix(const Pass& pass, const DeltaNetWeights& mixer, Input& input) {
  const DeltaNetConfig& config = mixer.config;
  const int64_t k_dim = config.k_dim();
  const Matrix gates = gates_of(pass, mixer, input);
  const Matrix projected = project(pass, mixer, input);
  const Matrix qkv = convolve(pass, mixer, projected.columns(0, mixer.shape.channels));
  const Matrix sums = pass.without_gaps(pass.memory.attended, mixer.shape.sums);

  recur(pass, mixer, qkv.columns(0, k_dim), qkv.columns(k_dim, k_dim),
        qkv.columns(2 * k_dim, config.v_dim()), gates, sums);
  renormalize(pass.backend, mixer.norm, by_head(sums, config.value_head_dim));
  pass.backend.scale(projected.columns(mixer.shape.channels, config.v_dim()), config.gate, sums);
  return {pass.backend, {.x = sums}, mixer.out};
}

LastProduct mix(const Pass& pass, const StateSpaceWeights& mixer, Input& input) {
  const StateSpaceConfig& config = mixer.config;
  const int64_t x_dim = config.x_dim();
  const int64_t of_groups = config.n_groups * config.state_size;
  const Matrix steps = gates_of(pass, mixer, input);
  const Matrix projected = project(pass, mixer, input);
  const Matrix xbc = convolve(pass, mixer, projected.columns(0, mixer.shape.channels));
  const Matrix sums = pass.without_gaps(pass.memory.attended, mixer.shape.sums);

  recur(pass, mixer, xbc.columns(x_dim + of_groups, of_groups), xbc.columns(x_dim, of_groups),
        xbc.columns(0, x_dim), steps, sums);
  const auto normalize_groups = [&] {
    if (mixer.norm.kind == NormKind::none) return;
    const int64_t size = x_dim / config.n_groups;
    for (int64_t group = 0; group < config.n_groups; ++group) {
      Norm norm = mixer.norm;
      norm.weight += group * size;
      renormalize(pass.backend, norm, sums.columns(group * size, size));
    }
  };
  if (config.norm_first) normalize_groups();
  pass.backend.scale(projected.columns(mixer.shape.channels, x_dim), config.gate, sums);
  if (!config.norm_first) normalize_groups();
  return {pass.backend, {.x = sums}, mixer.out};
}

LastProduct mix(const Pass& pass, const ShortConvolutionWeights& mixer, Input& input) {
  const int64_t channels = mixer.shape.channels;
  const Matrix projected = project(pass, mixer, input);
  const Matrix x = projected.columns(2 * channels, channels);
  pass.backend.scale(projected.columns(0, channels), Activation::none, x);
  const Matrix convolved = convolve(pass, mixer, x);
  pass.backend.scale(projected.columns(channels, channels), Activation::none, convolved);
  return {pass.backend, {.x = convolved}, mixer.out};
}

}  // namespace faststream
