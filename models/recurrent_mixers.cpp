// Mixers that keep a state of fixed size: a convolution over the last tokens, and what goes on from
// token to token in a matrix a head, or a vector a channel.
#include <cmath>
#include <vector>

#include "models/mixers.h"

namespace faststream {
namespace {

std::vector<float> fetch(Backend& backend, const float* data, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  backend.copy_to_host(values.data(), data, values.size() * sizeof(float));
  return values;
}

// Of rows of `width` values.
std::vector<float> transposed(const std::vector<float>& values, int64_t width) {
  const auto columns = static_cast<size_t>(width);
  const size_t rows = values.size() / columns;
  std::vector<float> result(values.size());
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c) result[c * rows + r] = values[r * columns + c];
  }
  return result;
}

// The convolution's weights, tap by tap.
template <typename Config>
void complete_convolution(RecurrentWeights<Config>& mixer, Backend& backend, Tables& tables) {
  const RecurrentShape& shape = mixer.shape;
  mixer.convolution.weight = tables.add(transposed(
      fetch(backend, mixer.convolution.weight, shape.channels * shape.taps), shape.taps));
}

// So many rates.
std::vector<float> fetch_rates(Backend& backend, const float* decay, int64_t count) {
  std::vector<float> rates = fetch(backend, decay, count);
  for (float& rate : rates) rate = -std::exp(rate);
  return rates;
}

// What goes on in matrices of heads.
template <typename Config>
void complete_heads(RecurrentWeights<Config>& mixer, Backend& backend, Tables& tables) {
  mixer.recurrence.rates = tables.add(fetch_rates(backend, mixer.decay, mixer.shape.n_heads));
}

// The same elements as rows of one head each; the matrix has no gaps.
Matrix by_head(const Matrix& rows, int64_t size) {
  return {rows.data, rows.dtype, rows.rows * rows.cols / size, size};
}

// [tokens, in]
template <typename Config>
Matrix project(const Pass& pass, const RecurrentWeights<Config>& mixer, Input& input) {
  const Matrix projected = pass.rows_in(pass.memory.qkv, mixer.shape.in);
  multiply(pass, input, mixer.in, projected);
  return projected;
}

// [tokens, raised + gates] f32: before the gates there is room for what is made of a latent among
// them.
template <typename Config>
Matrix gates_of(const Pass& pass, const RecurrentWeights<Config>& mixer, Input& input) {
  const RecurrentShape& shape = mixer.shape;
  const Matrix all = pass.rows_in(pass.memory.steps, shape.raised + shape.gates);
  multiply(pass, input, mixer.gates, all.columns(shape.raised, shape.gates));
  return all;
}

// out = the product of a latent among the gates, f32, as the other activations are.
void multiply_latent(const Pass& pass, const Matrix& latent, const Linear& linear,
                     const Matrix& out, const Norm& norm = {}) {
  Input input{.x = latent, .norm = norm, .normed = pass.rows_in(pass.memory.latents, latent.cols)};
  pass.backend.linear(input, linear.weight, {}, out);
}

// [tokens, channels]
template <typename Config>
Matrix convolve(const Pass& pass, const RecurrentWeights<Config>& mixer, const Matrix& x) {
  const Matrix convolved = pass.rows_in(pass.memory.convolved, mixer.shape.channels);
  pass.backend.convolve(pass.batch, x, mixer.convolution, pass.layers.states[mixer.state_layer],
                        convolved);
  return convolved;
}

// What of the states is behind the convolution's.
template <typename Config>
StateLayer matrices_of(const Pass& pass, const RecurrentWeights<Config>& mixer) {
  return pass.layers.states[mixer.state_layer].from(mixer.shape.tail_size());
}

// Of sums without gaps [tokens, sums].
template <typename Config>
void recur(const Pass& pass, const RecurrentWeights<Config>& mixer, const Matrix& q,
           const Matrix& k, const Matrix& v, const Matrix& gates, const Matrix& sums) {
  pass.backend.recur(pass.batch, q, k, v, gates, mixer.recurrence, matrices_of(pass, mixer), sums);
}

}  // namespace

void complete(DeltaNetWeights& mixer, Backend& backend, Tables& tables) {
  complete_convolution(mixer, backend, tables);
  complete_heads(mixer, backend, tables);
}
void complete(StateSpaceWeights& mixer, Backend& backend, Tables& tables) {
  complete_convolution(mixer, backend, tables);
  complete_heads(mixer, backend, tables);
}
void complete(ShortConvolutionWeights& mixer, Backend& backend, Tables& tables) {
  complete_convolution(mixer, backend, tables);
}
void complete(LinearAttentionWeights& mixer, Backend& backend, Tables& tables) {
  complete_heads(mixer, backend, tables);
}
void complete(SelectiveScanWeights& mixer, Backend& backend, Tables& tables) {
  complete_convolution(mixer, backend, tables);
  const SelectiveScanConfig& config = mixer.config;
  mixer.scan.rates = tables.add(transposed(
      fetch_rates(backend, mixer.decay, config.channels * config.state_size), config.state_size));
}

LastProduct mix(const Pass& pass, const DeltaNetWeights& mixer, Input& input) {
  const DeltaNetConfig& config = mixer.config;
  const int64_t k_dim = config.k_dim();
  const Matrix gates = gates_of(pass, mixer, input);
  const Matrix projected = project(pass, mixer, input);
  const int64_t of_recurrence = config.n_decays() + config.n_value_heads;
  if (mixer.gates_up) {
    const Matrix latent = gates.columns(of_recurrence, config.decay_rank);
    multiply_latent(pass, latent, mixer.gates_up, gates.columns(0, config.n_decays()));
  }
  const Matrix qkv = convolve(pass, mixer, projected.columns(0, mixer.shape.channels));
  const Matrix sums = pass.without_gaps(pass.memory.attended, mixer.shape.sums);

  recur(pass, mixer, qkv.columns(0, k_dim), qkv.columns(k_dim, k_dim),
        qkv.columns(2 * k_dim, config.v_dim()), gates.columns(0, of_recurrence), sums);
  renormalize(pass.backend, mixer.norm, by_head(sums, config.value_head_dim));
  Matrix factors;
  if (mixer.factors) {
    factors = projected.columns(0, config.v_dim());  // what was projected is not read any more
    multiply_latent(pass, gates.columns(of_recurrence + config.decay_rank, config.gate_rank),
                    mixer.factors, factors);
  } else {
    factors = projected.columns(mixer.shape.channels, config.v_dim());
  }
  pass.backend.scale(factors, config.gate, sums);
  return {pass, {.x = sums}, mixer.out};
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
    const int64_t size = x_dim / config.n_groups;
    std::vector<SharedNorm> groups;
    for (int64_t first = 0; first < x_dim; first += size) {
      groups.push_back({sums.columns(first, size), mixer.norm.from(first), config.norm_share});
    }
    renormalize(pass.backend, groups);
  };
  if (config.norm_first) normalize_groups();
  pass.backend.scale(projected.columns(mixer.shape.channels, x_dim), config.gate, sums);
  if (!config.norm_first) normalize_groups();
  return {pass, {.x = sums}, mixer.out};
}

LastProduct mix(const Pass& pass, const ShortConvolutionWeights& mixer, Input& input) {
  const int64_t channels = mixer.shape.channels;
  const Matrix projected = project(pass, mixer, input);
  const Matrix x = projected.columns(2 * channels, channels);
  pass.backend.scale(projected.columns(0, channels), Activation::none, x);
  const Matrix convolved = convolve(pass, mixer, x);
  pass.backend.scale(projected.columns(channels, channels), Activation::none, convolved);
  return {pass, {.x = convolved}, mixer.out};
}

LastProduct mix(const Pass& pass, const SelectiveScanWeights& mixer, Input& input) {
  const SelectiveScanConfig& config = mixer.config;
  const int64_t channels = config.channels;
  const Matrix projected = project(pass, mixer, input);
  const Matrix x = convolve(pass, mixer, projected.columns(0, channels));
  Input convolved{.x = x};
  const Matrix gates = gates_of(pass, mixer, convolved);
  if (config.shares_gates) {
    pass.backend.sum_floats_over_ranks(gates.columns(channels, mixer.shape.gates));
  }
  const Matrix steps = gates.columns(0, channels);
  const int64_t first_b = config.step_rank;
  const int64_t first_c = first_b + config.state_size;
  const Matrix b = gates.columns(channels + first_b, config.state_size);
  const Matrix c = gates.columns(channels + first_c, config.state_size);
  const Matrix sums = pass.without_gaps(pass.memory.attended, mixer.shape.sums);

  multiply_latent(pass, gates.columns(channels, config.step_rank), mixer.gates_up, steps,
                  mixer.gates_norm.from(0));
  renormalize(pass.backend, mixer.gates_norm.from(first_b), b);
  renormalize(pass.backend, mixer.gates_norm.from(first_c), c);
  pass.backend.scan(pass.batch, x, steps, b, c, mixer.scan, matrices_of(pass, mixer), sums);
  pass.backend.scale(projected.columns(channels, channels), config.gate, sums);
  return {pass, {.x = sums}, mixer.out};
}

LastProduct mix(const Pass& pass, const LinearAttentionWeights& mixer, Input& input) {
  const LinearAttentionConfig& config = mixer.config;
  const int64_t dim = config.dim();
  const Matrix qkv = pass.rows_in(pass.memory.qkv, mixer.shape.in);
  const Matrix no_gates{nullptr, DType::f32, pass.batch.n_tokens, 0};
  const Matrix sums = pass.without_gaps(pass.memory.attended, mixer.shape.sums);

  multiply_and_activate(pass, input, mixer.in, config.activation, qkv);
  recur(pass, mixer, qkv.columns(0, dim), qkv.columns(dim, dim), qkv.columns(2 * dim, dim),
        no_gates, sums);
  const SharedNorm norm{sums, mixer.norm, config.norm_share};
  renormalize(pass.backend, {&norm, 1});
  const Matrix factors = qkv.columns(0, dim);  // queries are not read any more
  pass.backend.linear(input, mixer.factors.weight, {}, factors);
  pass.backend.scale(factors, config.gate, sums);
  return {pass, {.x = sums}, mixer.out};
}

}  // namespace faststream
