// The plain float reference: every operation as its definition reads, one thread, no tricks. It is
// the oracle of all tests, so it is written to be checked by eye; sums are in double.
//
// Matrices of any floating type are accepted everywhere, so that tests can hand it what another
// backend works on.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <numeric>
#include <span>
#include <stdexcept>
#include <vector>

#include "kernels/cpu/experts/router.h"
#include "kernels/cpu/host_backend.h"
#include "kernels/cpu/sampling/sorted_ranking.h"
#include "support/hadamard.h"

namespace faststream {
namespace {

size_t index(int64_t i) { return static_cast<size_t>(i); }

float get(const Matrix& m, int64_t row, int64_t col) {
  return load_as_float(m.data, m.dtype, index(row * m.stride + col));
}

void set(const Matrix& m, int64_t row, int64_t col, float value) {
  store_float(m.data, m.dtype, index(row * m.stride + col), value);
}

bool is_float(DType type) {
  return type == DType::f32 || type == DType::f16 || type == DType::bf16;
}

void require_matrix(const Matrix& m, int64_t rows, int64_t cols, const char* what) {
  require(m.rows == rows && m.cols == cols && m.stride >= m.cols && is_float(m.dtype), what);
  require(m.data != nullptr || rows == 0 || cols == 0, what);
}

void require_weight(const Weight& w) {
  require(w.data != nullptr && w.rows > 0 && w.cols > 0, "a weight has no data or no shape");
  require((scale_shape(w.format).columns > 0) == (w.scales != nullptr),
          "a weight lacks its scales, or has some");
  require(!w.rotated || w.quantizes_inputs(), "weights are rotated that do not quantize inputs");
}

void require_batch(const BatchView& batch) {
  require(batch.n_tokens == 0 || batch.n_sequences > 0, "the batch has tokens but no sequence");
  for (int32_t s = 0; s < batch.n_sequences; ++s) {
    const int32_t queries = batch.query_start[s + 1] - batch.query_start[s];
    require(queries >= 0 && queries <= batch.kv_len[s] &&
                batch.kv_len[s] <= batch.max_pages * kPageTokens,
            "a sequence's rows, kv_len and pages contradict each other");
    for (int32_t t = batch.query_start[s]; t < batch.query_start[s + 1]; ++t) {
      require(batch.sequence_of[t] == s &&
                  batch.positions[t] == batch.kv_len[s] - (batch.query_start[s + 1] - t),
              "a row's sequence or position contradicts query_start and kv_len");
    }
  }
}

void require_kv(const KvLayer& kv) {
  require(kv.k != nullptr && kv.v != nullptr && is_float(kv.dtype) && kv.n_pages > 0 &&
              kv.n_kv_heads > 0 && kv.head_dim > 0 && kv.head_dim % 2 == 0 && kv.v_head_dim > 0,
          "a KV layer has no memory or no shape");
  require(!kv.values_in_keys || !kv.is_coded(), "keys with values in them are codes");
  require(!kv.values_in_keys || (kv.v_head_dim <= kv.head_dim && kv.n_kv_heads == 1),
          "values are wider than their keys, or in those of several heads");
}

/// Row of K and V, each of a head's elements, that has `head` at `position` of sequence `s`.
int64_t kv_row(const BatchView& batch, const KvLayer& kv, int32_t s, int32_t position,
               int32_t head) {
  const int32_t page = batch.page_table[s * batch.max_pages + position / kPageTokens];
  require(page >= 0 && page < kv.n_pages, "a page number is outside the cache");
  return (int64_t{page} * kv.n_kv_heads + head) * kPageTokens + position % kPageTokens;
}

double dot(const double* a, const double* b, int64_t n) {
  return std::inner_product(a, a + n, b, 0.0);
}

/// x Wᵀ, [x.rows, w.rows].
std::vector<double> product(const Matrix& x, const Weight& w) {
  std::vector<double> inputs(index(x.rows * x.cols));
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t c = 0; c < x.cols; ++c) {
      inputs[index(r * x.cols + c)] = get(x, r, c);
    }
    if (w.rotated) hadamard(std::span(inputs).subspan(index(r * x.cols), index(x.cols)));
  }
  std::vector<double> result(index(x.rows * w.rows));
  std::vector<float> decoded(index(w.cols));
  for (int64_t o = 0; o < w.rows; ++o) {
    w.decode(o, 0, decoded);
    const std::vector<double> channel(decoded.begin(), decoded.end());
    for (int64_t r = 0; r < x.rows; ++r) {
      const double* row = inputs.data() + r * x.cols;
      result[index(r * w.rows + o)] = dot(row, channel.data(), w.cols);
    }
  }
  return result;
}

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

double softplus(double x) { return x > 30 ? x : std::log1p(std::exp(x)); }

double activated(double x, Activation activation) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::silu:
      return x * sigmoid(x);
    case Activation::gelu:
      return x / 2 * std::erfc(-x / std::numbers::sqrt2);
    case Activation::gelu_tanh:
      return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case Activation::relu:
      return std::max(x, 0.0);
    case Activation::relu_squared:
      return std::max(x, 0.0) * std::max(x, 0.0);
    case Activation::tanh:
      return std::tanh(x);
    case Activation::sigmoid:
      return sigmoid(x);
    case Activation::softplus:
      return softplus(x);
    case Activation::swiglu_clamped:
    case Activation::silu_clamped:
      break;
  }
  throw std::logic_error("unknown activation");
}

double gated(double gate, double up, const Gate& as) {
  if (!is_of_gates(as.activation)) return activated(gate, as.activation) * up;
  const double limit = as.limit;
  up = std::clamp(up, -limit, limit);
  if (as.activation == Activation::silu_clamped) return std::min(gate * sigmoid(gate), limit) * up;
  gate = std::min(gate, limit);
  return gate * sigmoid(1.702 * gate) * (up + 1);
}

void require_states(const BatchView& batch, const StateLayer& states) {
  require(states.data != nullptr && batch.state_from != nullptr, "there are no states");
  for (int32_t s = 0; s < batch.n_sequences; ++s) {
    require(batch.state_from[s] >= 0 && batch.state_from[s] < states.n_states &&
                batch.state_to[s] > 0 && batch.state_to[s] < states.n_states &&
                batch.state_border[s] >= 0 && batch.state_border[s] < states.n_states,
            "a state's number is outside the cache");
    require(batch.state_to[s] != batch.state_from[s] && batch.state_to[s] != batch.state_border[s],
            "a state is written that another one needs");
  }
}

/// Writes the state after token t of sequence s to where it is wanted.
void store_states(const BatchView& batch, int32_t s, int32_t t, const StateLayer& states,
                  const float* state, int64_t size) {
  const auto store = [&](int32_t to) {
    std::copy_n(state, size, states.data + to * states.stride);
  };
  if (t + 1 == batch.query_start[s + 1]) store(batch.state_to[s]);
  const bool is_border = batch.positions[t] + 1 == border_of(batch.kv_len[s]);
  if (is_border && batch.state_border[s] != 0) store(batch.state_border[s]);
}

/// Elements of a row, from `first` on, scaled to length 1 if that is asked for.
std::vector<double> unit_row(const Matrix& m, int64_t row, int64_t first, int64_t count,
                             float unit_eps) {
  std::vector<double> x(index(count));
  for (int64_t i = 0; i < count; ++i) x[index(i)] = get(m, row, first + i);
  if (unit_eps <= 0) return x;
  const double factor = 1 / std::sqrt(dot(x.data(), x.data(), count) + unit_eps);
  for (double& element : x) element *= factor;
  return x;
}

/// One token of one head, whose matrix is `state`.
void recur_head(const Matrix& q, const Matrix& k, const Matrix& v, const Matrix& gates,
                const Recurrence& r, int64_t t, int32_t h, float* state, const Matrix& out) {
  const int64_t key_head = h / (r.n_heads / r.n_key_heads);
  const std::vector<double> query = unit_row(q, t, key_head * r.key_dim, r.key_dim, r.unit_eps);
  const std::vector<double> key = unit_row(k, t, key_head * r.key_dim, r.key_dim, r.unit_eps);
  const int64_t of_head = r.by_channel ? r.key_dim : 1;
  const auto gate = [&](int64_t i) {
    return double{get(gates, t, h * of_head + i)} + r.steps[h * of_head + i];
  };
  const auto step = [&](int64_t i) {
    if (r.steps == nullptr) return 1.0;
    return std::clamp(softplus(gate(i)), double{r.least_step}, double{r.most_step});
  };
  std::vector<double> decays(index(r.key_dim));  // of each row of the matrix
  for (int64_t i = 0; i < r.key_dim; ++i) {
    const int64_t own = r.by_channel ? i : 0;
    const double log_decay = r.least_log_decay < 0
                                 ? r.least_log_decay * sigmoid(-r.rates[h] * gate(own))
                                 : r.rates[h] * step(own);
    decays[index(i)] = std::exp(log_decay);
  }
  const double strength =
      r.delta ? r.strength * sigmoid(get(gates, t, gate_columns(r) - r.n_heads + h)) : step(0);
  for (int64_t j = 0; j < r.value_dim; ++j) {
    const double value = get(v, t, h * r.value_dim + j);
    double known = 0;
    for (int64_t i = 0; i < r.key_dim; ++i) {
      known += decays[index(i)] * state[i * r.value_dim + j] * key[index(i)];
    }
    const double written = strength * (r.delta ? value - known : value);
    double sum = 0;
    for (int64_t i = 0; i < r.key_dim; ++i) {
      float& element = state[i * r.value_dim + j];
      element = static_cast<float>(decays[index(i)] * element + key[index(i)] * written);
      sum += element * query[index(i)] * r.query_scale;
    }
    if (r.skips != nullptr) sum += r.skips[h] * value;
    set(out, t, h * r.value_dim + j, static_cast<float>(sum));
  }
}

double pooled(const std::vector<double>& column, Pooling pooling) {
  const auto n = static_cast<double>(column.size());
  double sum = 0;
  double weighted = 0;
  for (size_t i = 0; i < column.size(); ++i) {
    sum += column[i];
    weighted += static_cast<double>(i + 1) * column[i];
  }
  switch (pooling) {
    case Pooling::first:
      return column.front();
    case Pooling::last:
      return column.back();
    case Pooling::largest:
      return *std::ranges::max_element(column);
    case Pooling::mean:
      return sum / n;
    case Pooling::mean_by_root:
      return sum / std::sqrt(n);
    case Pooling::weighted_mean:
      return weighted / (n * (n + 1) / 2);
  }
  throw std::logic_error("unknown pooling");
}

/// weight and bias are of the row's elements.
void normalize(std::span<double> row, NormKind kind, const float* weight, const float* bias,
               float eps) {
  const auto n = static_cast<double>(row.size());
  double mean = 0;
  if (kind == NormKind::layer) {
    for (const double x : row) mean += x / n;
  }
  double squares = 0;
  for (const double x : row) squares += (x - mean) * (x - mean);
  for (size_t i = 0; i < row.size(); ++i) {
    if (kind == NormKind::none) continue;
    row[i] = (row[i] - mean) / std::sqrt(squares / n + eps) * weight[i];
    if (kind == NormKind::layer && bias != nullptr) row[i] += bias[i];
  }
}

/// Rotates the first elements of a head by row t of cos_sin.
void rotate(std::span<double> head, const Matrix& cos_sin, int64_t t) {
  const int64_t half = cos_sin.cols / 2;
  for (int64_t i = 0; i < half; ++i) {
    const double cosine = get(cos_sin, t, 2 * i);
    const double sine = get(cos_sin, t, 2 * i + 1);
    const double first = head[index(i)];
    const double second = head[index(i + half)];
    head[index(i)] = first * cosine - second * sine;
    head[index(i + half)] = second * cosine + first * sine;
  }
}

/// Columns [first, first + count) of a row.
std::vector<double> columns(const Matrix& m, int64_t row, int64_t first, int64_t count) {
  std::vector<double> values;
  for (int64_t c = first; c < first + count; ++c) values.push_back(get(m, row, c));
  return values;
}

void require_norm(NormKind kind, const float* weight) {
  require(kind == NormKind::none || weight != nullptr, "a norm has no weights");
}

/// A row's result stored, or added to what is there.
void put(const Matrix& out, int64_t row, int64_t col, double value, OutputMode output) {
  if (output == OutputMode::add) value += get(out, row, col);
  set(out, row, col, static_cast<float>(value));
}

/// Part `part` of `parts` of a weight's rows.
Weight expert_part(const Weight& w, int64_t part, int64_t parts) {
  const int64_t rows = w.rows / parts;
  return w.row_range(part * rows, rows);
}

class ReferenceBackend final : public HostBackend {
 public:
  [[nodiscard]] std::string description() const override { return "CPU reference (1 thread)"; }
  [[nodiscard]] DType activation_dtype(WeightFormat) const override { return DType::f32; }
  [[nodiscard]] DType kv_dtype(WeightFormat) const override { return DType::f32; }
  [[nodiscard]] int32_t most_slots() const override { return 4; }
  [[nodiscard]] int32_t first_tokens() const override { return 4; }
  [[nodiscard]] size_t scratch_bytes(const StepBounds& bounds) const override {
    int64_t elements = bounds.context * (2 * bounds.head_dim + 1) + 2 * bounds.vocab;
    for (const ProductBound& product : bounds.products) {
      elements = std::max(elements, product.rows * (product.in + product.out) + product.in);
    }
    return index(elements) * sizeof(double);
  }

  void embed(const BatchView& batch, const Embedding& embedding, const Matrix& out) override {
    const Weight& table = embedding.table;
    const Weight& positions = embedding.positions;
    const Weight& segments = embedding.segments;
    require_weight(table);
    require(is_float(table.format), "embed: the table must be of a floating type");
    require_matrix(out, batch.n_tokens, table.cols, "embed: out must be [tokens, hidden]");
    for (const Weight* rows : {&positions, &segments}) {
      if (rows->data == nullptr) continue;
      require_weight(*rows);
      require(is_float(rows->format) && rows->cols == table.cols,
              "embed: positions and segments must be [rows, hidden] of a floating type");
    }
    for (int32_t t = 0; t < batch.n_tokens; ++t) {
      const int64_t token = token_of(batch, t);
      const int64_t position = int64_t{batch.positions[t]} + embedding.offset;
      require(token >= 0 && token < table.rows, "embed: a token id is outside the vocabulary");
      require(positions.data == nullptr || (position >= 0 && position < positions.rows),
              "embed: a position has no row");
      const int64_t segment = batch.segments != nullptr ? batch.segments[t] : 0;
      require(segments.data == nullptr || (segment >= 0 && segment < segments.rows),
              "embed: a segment has no row");
      std::vector<double> sums(index(table.cols));
      std::vector<float> row(index(table.cols));
      const auto add_row = [&](const Weight& rows, int64_t at, double factor) {
        if (rows.data == nullptr) return;
        rows.decode(at, 0, row);
        for (size_t c = 0; c < row.size(); ++c) sums[c] += factor * double{row[c]};
      };
      add_row(table, token, embedding.multiplier);
      add_row(positions, position, 1);
      add_row(segments, segment, 1);
      for (int64_t c = 0; c < table.cols; ++c) {
        set(out, t, c, static_cast<float>(sums[index(c)]));
      }
    }
  }

  void norm(const Matrix& x, const Norm& norm, OutputMode output, const Matrix& out) override {
    const Matrix rows = x.stride == 0 ? Matrix(x.data, x.dtype, 1, x.cols) : x;  // one, repeated
    require_matrix(rows, rows.rows, x.cols, "norm: x is not a float matrix");
    require_matrix(out, x.rows, x.cols, "norm: out must have x's shape");
    require_norm(norm.kind, norm.weight);
    for (int64_t r = 0; r < x.rows; ++r) {
      std::vector<double> row = columns(x, r, 0, x.cols);
      normalize(row, norm.kind, norm.weight, norm.bias, norm.eps);
      for (int64_t c = 0; c < x.cols; ++c) put(out, r, c, row[index(c)], output);
    }
  }

  void sum_squares(const Matrix& x, const Matrix& sums) override {
    require_matrix(x, x.rows, x.cols, "norm_over_ranks: x is not a float matrix");
    for (int64_t r = 0; r < x.rows; ++r) {
      double sum = 0;
      for (const double value : columns(x, r, 0, x.cols)) sum += value * value;
      set(sums, r, 0, static_cast<float>(sum));
    }
  }

  void norm_by_squares(const Matrix& x, const Norm& norm, const Matrix& sums, int64_t n) override {
    require_norm(norm.kind, norm.weight);
    for (int64_t r = 0; r < x.rows; ++r) {
      const double root = std::sqrt(get(sums, r, 0) / static_cast<double>(n) + norm.eps);
      for (int64_t c = 0; c < x.cols; ++c) {
        set(x, r, c, static_cast<float>(get(x, r, c) / root * norm.weight[c]));
      }
    }
  }

  void linear(Input& input, const Weight& weight, const Epilogue& epilogue,
              const Matrix& out) override {
    const Matrix x = normalize(*this, input);
    require_weight(weight);
    require_matrix(x, x.rows, weight.cols, "linear: x must be [rows, in]");
    require_matrix(out, x.rows, weight.rows, "linear: out must be [rows, out]");
    require(is_of_products(epilogue.activation), "linear: the activation is no product's");
    require(epilogue.activation == Activation::none || epilogue.output != OutputMode::add,
            "linear: what is activated must be stored");
    const std::vector<double> products = product(x, weight);
    for (int64_t r = 0; r < x.rows; ++r) {
      for (int64_t o = 0; o < weight.rows; ++o) {
        double value = products[index(r * weight.rows + o)];
        if (epilogue.bias != nullptr) value += epilogue.bias[o];
        put(out, r, o, activated(value, epilogue.activation), epilogue.output);
      }
    }
  }

  void gated_linear(Input& input, const Weight& gate_up, const float* bias, const Gate& gate,
                    const Matrix& out) override {
    const Matrix x = normalize(*this, input);
    require_weight(gate_up);
    require(gate_up.rows % 2 == 0, "gated_linear: the weight must hold as many gates as ups");
    const int64_t n = gate_up.rows / 2;
    require_matrix(x, x.rows, gate_up.cols, "gated_linear: x must be [rows, in]");
    require_matrix(out, x.rows, n, "gated_linear: out must be [rows, n]");
    const std::vector<double> products = product(x, gate_up);
    for (int64_t r = 0; r < x.rows; ++r) {
      for (int64_t o = 0; o < n; ++o) {
        double its_gate = products[index(r * 2 * n + o)];
        double up = products[index(r * 2 * n + n + o)];
        if (bias != nullptr) {
          its_gate += bias[o];
          up += bias[n + o];
        }
        set(out, r, o, static_cast<float>(gated(its_gate, up, gate)));
      }
    }
  }

  void head_linear(const Matrix& x, const Weight& weight, int64_t n_heads,
                   const Matrix& out) override {
    require_weight(weight);
    require(
        n_heads > 0 && weight.rows % n_heads == 0 && x.cols % n_heads == 0 && out.cols > 0 &&
            !weight.rotated,
        "head_linear: heads must have equal parts of x and of the weight, which is not rotated");
    const int64_t n = weight.rows / n_heads;
    const int64_t from = x.cols / n_heads;
    const int64_t copied = from - weight.cols;
    require(copied >= 0, "head_linear: heads of x must hold what the weight multiplies");
    require_matrix(x, x.rows, x.cols, "head_linear: x is not a float matrix");
    require_matrix(out, x.rows, n_heads * (copied + n),
                   "head_linear: out must be [rows, n_heads (p + n)]");
    for (int64_t h = 0; h < n_heads; ++h) {
      const Matrix part = x.columns(h * from + copied, weight.cols);
      require(part.data != nullptr || part.rows == 0, "head_linear: x has no data");
      const std::vector<double> products = product(part, weight.row_range(h * n, n));
      const Matrix head = out.columns(h * (copied + n), copied + n);
      for (int64_t r = 0; r < x.rows; ++r) {
        for (int64_t c = 0; c < copied; ++c) set(head, r, c, get(x, r, h * from + c));
        for (int64_t c = 0; c < n; ++c) {
          set(head, r, copied + c, static_cast<float>(products[index(r * n + c)]));
        }
      }
    }
  }

  void experts(Input& input, const Matrix& scores, const Router& router, const Experts& experts,
               OutputMode output, const Matrix& out) override {
    const Matrix x = normalize(*this, input);
    require_weight(experts.up);
    require_weight(experts.down);
    const int64_t n = experts.n_experts;
    require(n > 0 && experts.up.rows % n == 0 && experts.down.rows % n == 0,
            "experts: each must have as many rows of the weights");
    const int64_t hidden = experts.down.rows / n;
    const int64_t up_rows = experts.up.rows / n;
    require(up_rows == (experts.gated ? 2 : 1) * experts.down.cols,
            "experts: the first product must make what the second takes");
    require_matrix(x, x.rows, experts.up.cols, "experts: x must be [tokens, in]");
    const int64_t scored = scores.cols;
    require(scored == n || (scored > n && !router.weighs_input && x.cols == hidden),
            "experts: scores must be of all, and those without tensors give what they read");
    require_matrix(scores, x.rows, scored, "experts: scores must be [tokens, experts]");
    require(scores.dtype == DType::f32, "experts: scores must be f32");
    require_matrix(out, x.rows, hidden, "experts: out must be [tokens, hidden]");
    std::vector<ChosenExpert> chosen(index(router.used));
    std::vector<float> middle(index(experts.down.cols));
    std::vector<float> result(index(hidden));
    std::vector<float> weighed(index(x.cols));
    Input activations{.x = Matrix(middle.data(), DType::f32, 1, experts.down.cols)};
    const Matrix row(result.data(), DType::f32, 1, hidden);
    for (int64_t t = 0; t < x.rows; ++t) {
      const float* logits = static_cast<const float*>(scores.data) + t * scores.stride;
      choose_experts({logits, index(scored)}, router, chosen);
      std::vector<double> sums(index(hidden));
      for (const ChosenExpert& one : chosen) {
        if (one.expert >= n) {
          for (int64_t c = 0; c < hidden; ++c) sums[index(c)] += double{one.weight} * get(x, t, c);
          continue;
        }
        const float* up_bias =
            experts.up_bias != nullptr ? experts.up_bias + one.expert * up_rows : nullptr;
        const float* down_bias =
            experts.down_bias != nullptr ? experts.down_bias + one.expert * hidden : nullptr;
        const Weight up = expert_part(experts.up, one.expert, n);
        Input token{.x = x.row_range(t, 1)};
        if (router.weighs_input) {
          for (int64_t c = 0; c < x.cols; ++c) weighed[index(c)] = one.weight * get(x, t, c);
          token.x = Matrix(weighed.data(), DType::f32, 1, x.cols);
        }
        if (experts.gated) {
          gated_linear(token, up, up_bias, experts.gate(), activations.x);
        } else {
          linear(token, up, {.bias = up_bias, .activation = experts.activation}, activations.x);
        }
        linear(activations, expert_part(experts.down, one.expert, n), {.bias = down_bias}, row);
        for (int64_t c = 0; c < hidden; ++c) {
          sums[index(c)] += (router.weighs_input ? 1 : double{one.weight}) * result[index(c)];
        }
      }
      for (int64_t c = 0; c < hidden; ++c) put(out, t, c, sums[index(c)], output);
    }
  }

  void scale(const Matrix& factors, Activation activation, const Matrix& m) override {
    require_matrix(factors, factors.rows == 1 ? 1 : m.rows, factors.cols,
                   "scale: factors must have a row for each, or one");
    require(factors.cols > 0 && m.cols % factors.cols == 0,
            "scale: factors must serve as many columns each");
    const int64_t each = m.cols / factors.cols;
    require_matrix(m, m.rows, m.cols, "scale: m is not a float matrix");
    for (int64_t r = 0; r < m.rows; ++r) {
      for (int64_t c = 0; c < m.cols; ++c) {
        const double factor =
            activated(get(factors, factors.rows == 1 ? 0 : r, c / each), activation);
        set(m, r, c, static_cast<float>(get(m, r, c) * factor));
      }
    }
  }

  void keep_largest(float deviations, const Matrix& m) override {
    require_matrix(m, m.rows, m.cols, "keep_largest: m is not a float matrix");
    const auto n = static_cast<double>(m.cols);
    for (int64_t r = 0; r < m.rows; ++r) {
      const std::vector<double> row = columns(m, r, 0, m.cols);
      const double mean = std::accumulate(row.begin(), row.end(), 0.0) / n;
      double squares = 0;
      for (const double x : row) squares += (x - mean) * (x - mean);
      const double cutoff = mean + deviations * std::sqrt(squares / n);
      for (int64_t c = 0; c < m.cols; ++c) {
        set(m, r, c, static_cast<float>(std::max(row[index(c)] - cutoff, 0.0)));
      }
    }
  }

  void combine(const Matrix& weights, int32_t parts, const Matrix& m) override {
    require(parts >= 1 && parts <= kMostParts && m.cols % parts == 0,
            "combine: rows must have parts of equal size, and not too many");
    require_matrix(m, m.rows, m.cols, "combine: m is not a float matrix");
    require_matrix(weights, m.rows, int64_t{parts} * parts,
                   "combine: weights must be [rows, parts parts]");
    const int64_t n = m.cols / parts;
    for (int64_t row = 0; row < m.rows; ++row) {
      const std::vector<double> before = columns(m, row, 0, m.cols);
      for (int64_t c = 0; c < parts; ++c) {
        for (int64_t i = 0; i < n; ++i) {
          double sum = 0;
          for (int64_t r = 0; r < parts; ++r) {
            sum += get(weights, row, c * parts + r) * before[index(r * n + i)];
          }
          set(m, row, c * n + i, static_cast<float>(sum));
        }
      }
    }
  }

  void match_lengths(const Matrix& like, const Matrix& m) override {
    require_matrix(like, m.rows, m.cols, "match_lengths: like must be [rows, n]");
    require_matrix(m, m.rows, m.cols, "match_lengths: m is not a float matrix");
    const auto mean_square = [](const Matrix& of, int64_t r) {
      double sum = 0;
      for (int64_t c = 0; c < of.cols; ++c) sum += double{get(of, r, c)} * get(of, r, c);
      return sum / static_cast<double>(of.cols);
    };
    for (int64_t r = 0; r < m.rows; ++r) {
      const double factor =
          std::sqrt(mean_square(like, r) / std::max(mean_square(m, r), kLeastMeanSquare));
      for (int64_t c = 0; c < m.cols; ++c) {
        set(m, r, c, static_cast<float>(get(m, r, c) * factor));
      }
    }
  }

  void activate(Activation activation, const Matrix& m) override {
    require_matrix(m, m.rows, m.cols, "activate: m is not a float matrix");
    for (int64_t r = 0; r < m.rows; ++r) {
      for (int64_t c = 0; c < m.cols; ++c) {
        set(m, r, c, static_cast<float>(activated(get(m, r, c), activation)));
      }
    }
  }

  void xielu(const float* numbers, const Matrix& m) override {
    require_matrix(m, m.rows, m.cols, "xielu: m is not a float matrix");
    const double beta = numbers[2];
    for (int64_t r = 0; r < m.rows; ++r) {
      for (int64_t c = 0; c < m.cols; ++c) {
        const double x = get(m, r, c);
        const double bent = x > 0 ? softplus(numbers[0]) * x * x
                                  : (softplus(numbers[1]) + beta) * (std::expm1(x) - x);
        set(m, r, c, static_cast<float>(bent + beta * x));
      }
    }
  }

  void rope_table(const BatchView& batch, const Rope& rope, const Matrix& cos_sin) override {
    require_matrix(cos_sin, batch.n_tokens, cos_sin.cols,
                   "rope_table: cos_sin must be [tokens, 2 pairs]");
    require(cos_sin.cols % 2 == 0, "rope_table: cosines and sines must be pairs");
    const int64_t pairs = cos_sin.cols / 2;
    for (int32_t t = 0; t < batch.n_tokens; ++t) {
      for (int64_t i = 0; i < pairs; ++i) {
        const float frequency = rope_frequency(rope, rope_length(batch, t), i, pairs);
        const float angle = static_cast<float>(batch.positions[t]) * frequency;
        set(cos_sin, t, 2 * i, static_cast<float>(rope.factor * std::cos(double{angle})));
        set(cos_sin, t, 2 * i + 1, static_cast<float>(rope.factor * std::sin(double{angle})));
      }
    }
  }

  void attention(const BatchView& batch, const Matrix& qkv, const Matrix& cos_sin,
                 const HeadTransform& transform, const KvLayer& kv, const AttentionRule& rule,
                 const Matrix& out) override {
    require_kv(kv);
    require(out.cols % kv.v_head_dim == 0, "attention: out must be sums of values of heads");
    const int64_t q_dim = out.cols / kv.v_head_dim * kv.head_dim;
    transform_queries(batch, qkv.columns(0, q_dim), cos_sin, transform, kv);
    if (qkv.cols != q_dim) {
      require(qkv.cols == q_dim + kv.k_dim() + kv.v_dim(),
              "attention: qkv must be the query heads of out, and keys and values");
      append_rows(batch, qkv.columns(q_dim, qkv.cols - q_dim), cos_sin, transform, kv);
    }
    attend(batch, qkv.columns(0, q_dim), kv, rule, out);
  }

  void append(const BatchView& batch, const Matrix& kv_rows, const KvLayer& kv) override {
    require_kv(kv);
    require(kv_rows.cols == kv.k_dim() + kv.v_dim(), "append: a row must be keys and values");
    append_rows(batch, kv_rows, {nullptr, DType::f32, batch.n_tokens, 0}, {}, kv);
  }

  void convolve(const BatchView& batch, const Matrix& x, const Convolution& convolution,
                const StateLayer& states, const Matrix& out) override {
    require_batch(batch);
    require_states(batch, states);
    require_matrix(x, batch.n_tokens, x.cols, "convolve: x must be [tokens, channels]");
    require_matrix(out, batch.n_tokens, x.cols, "convolve: out must be [tokens, channels]");
    require(convolution.taps >= 2, "convolve: there are too few taps");
    const int64_t channels = x.cols;
    const int64_t tail = convolution.taps - 1;
    for (int32_t s = 0; s < batch.n_sequences; ++s) {
      const float* before = states.data + batch.state_from[s] * states.stride;
      std::vector<float> elements(before, before + tail * channels);  // then those of the tokens
      for (int32_t t = batch.query_start[s]; t < batch.query_start[s + 1]; ++t) {
        for (int64_t c = 0; c < channels; ++c) elements.push_back(get(x, t, c));
        const float* first = elements.data() + index(elements.size()) - (tail + 1) * channels;
        for (int64_t c = 0; c < channels; ++c) {
          double sum = convolution.bias != nullptr ? convolution.bias[c] : 0;
          for (int64_t i = 0; i <= tail; ++i) {
            sum += double{convolution.weight[i * channels + c]} * first[i * channels + c];
          }
          set(out, t, c, static_cast<float>(activated(sum, convolution.activation)));
        }
        store_states(batch, s, t, states, first + channels, tail * channels);
      }
    }
  }

  void recur(const BatchView& batch, const Matrix& q, const Matrix& k, const Matrix& v,
             const Matrix& gates, const Recurrence& r, const StateLayer& states,
             const Matrix& out) override {
    require_batch(batch);
    require_states(batch, states);
    require_matrix(q, batch.n_tokens, r.n_key_heads * r.key_dim, "recur: q has another shape");
    require_matrix(k, batch.n_tokens, q.cols, "recur: k has another shape");
    require_matrix(v, batch.n_tokens, r.n_heads * r.value_dim, "recur: v has another shape");
    require(!r.by_channel || (r.delta && r.steps != nullptr),
            "recur: channels decay by themselves, by gates, in delta nets alone");
    require_matrix(gates, batch.n_tokens, gate_columns(r), "recur: gates have another shape");
    require_matrix(out, batch.n_tokens, v.cols, "recur: out has another shape");
    const int64_t size = int64_t{r.n_heads} * r.key_dim * r.value_dim;
    for (int32_t s = 0; s < batch.n_sequences; ++s) {
      const float* before = states.data + batch.state_from[s] * states.stride;
      std::vector<float> state(before, before + size);
      for (int32_t t = batch.query_start[s]; t < batch.query_start[s + 1]; ++t) {
        for (int32_t h = 0; h < r.n_heads; ++h) {
          recur_head(q, k, v, gates, r, t, h, state.data() + int64_t{h} * r.key_dim * r.value_dim,
                     out);
        }
        store_states(batch, s, t, states, state.data(), size);
      }
    }
  }

  void scan(const BatchView& batch, const Matrix& x, const Matrix& steps, const Matrix& b,
            const Matrix& c, const SelectiveScan& scan, const StateLayer& states,
            const Matrix& out) override {
    require_batch(batch);
    require_states(batch, states);
    const int64_t channels = x.cols;
    require_matrix(x, batch.n_tokens, channels, "scan: x must be [tokens, channels]");
    require_matrix(steps, batch.n_tokens, channels, "scan: steps must be [tokens, channels]");
    require_matrix(b, batch.n_tokens, scan.state_size, "scan: b must be [tokens, state_size]");
    require_matrix(c, batch.n_tokens, scan.state_size, "scan: c must be [tokens, state_size]");
    require_matrix(out, batch.n_tokens, channels, "scan: out must be [tokens, channels]");
    const int64_t size = scan.state_size * channels;
    for (int32_t s = 0; s < batch.n_sequences; ++s) {
      const float* before = states.data + batch.state_from[s] * states.stride;
      std::vector<float> state(before, before + size);
      for (int32_t t = batch.query_start[s]; t < batch.query_start[s + 1]; ++t) {
        for (int64_t channel = 0; channel < channels; ++channel) {
          const double input = get(x, t, channel);
          const double step = softplus(double{get(steps, t, channel)} + scan.steps[channel]);
          double sum = scan.skips[channel] * input;
          for (int64_t n = 0; n < scan.state_size; ++n) {
            const int64_t at = n * channels + channel;
            float& element = state[index(at)];
            element = static_cast<float>(std::exp(scan.rates[at] * step) * element +
                                         step * get(b, t, n) * input);
            sum += double{get(c, t, n)} * element;
          }
          set(out, t, channel, static_cast<float>(sum));
        }
        store_states(batch, s, t, states, state.data(), size);
      }
    }
  }

  void gather_rows(const BatchView& batch, const Matrix& x, const Matrix& out) override {
    require_matrix(x, batch.n_tokens, x.cols, "gather_rows: x must have a row a token");
    require_matrix(out, batch.n_logits, x.cols, "gather_rows: out must have a row a logit row");
    for (int32_t r = 0; r < batch.n_logits; ++r) {
      const int32_t row = batch.logit_rows[r];
      require(row >= 0 && row < batch.n_tokens, "gather_rows: a row is outside the batch");
      for (int64_t c = 0; c < x.cols; ++c) {
        set(out, r, c, get(x, row, c));
      }
    }
  }

  void pool(const BatchView& batch, const Matrix& x, Pooling pooling, const Matrix& out) override {
    require_matrix(x, batch.n_tokens, x.cols, "pool: x must have a row a token");
    require_matrix(out, batch.n_sequences, x.cols, "pool: out must have a row a sequence");
    for (int32_t s = 0; s < batch.n_sequences; ++s) {
      const int32_t begin = batch.query_start[s];
      const int32_t end = batch.query_start[s + 1];
      require(begin < end, "pool: a sequence has no rows");
      for (int64_t c = 0; c < x.cols; ++c) {
        std::vector<double> column;
        for (int32_t t = begin; t < end; ++t) column.push_back(get(x, t, c));
        set(out, s, c, static_cast<float>(pooled(column, pooling)));
      }
    }
  }

  void soft_cap(float cap, const Matrix& logits) override {
    require_matrix(logits, logits.rows, logits.cols, "soft_cap: logits is not a float matrix");
    require(cap > 0, "soft_cap: the cap must be above zero");
    for (int64_t r = 0; r < logits.rows; ++r) {
      for (int64_t c = 0; c < logits.cols; ++c) {
        set(logits, r, c, static_cast<float>(cap * std::tanh(get(logits, r, c) / double{cap})));
      }
    }
  }

  void sample_rows(const Matrix& logits, std::span<const SamplingRow> rules,
                   std::span<SampledToken> sampled) override {
    require(logits.dtype == DType::f32 && logits.cols > 0 && rules.size() == sampled.size() &&
                index(logits.rows) == rules.size(),
            "sample: one rule and one token for each row of float32 logits");
    SortedRanking ranking;
    for (size_t r = 0; r < rules.size(); ++r) {
      float* row = static_cast<float*>(logits.data) + r * index(logits.stride);
      sampled[r] = sample_row({row, index(logits.cols)}, rules[r], ranking);
    }
  }

  void copy_pages(std::span<const KvLayer> layers, std::span<const PageCopy> copies) override {
    for (const KvLayer& kv : layers) {
      require_kv(kv);
      for (const PageCopy& copy : copies) {
        require(copy.from >= 0 && copy.from < kv.n_pages && copy.to >= 0 && copy.to < kv.n_pages,
                "copy_pages: a page number is outside the cache");
        copy_page(kv.k, kv.n_kv_heads * kv.k_head_bytes(), copy);
        if (!kv.values_in_keys) copy_page(kv.v, kv.n_kv_heads * kv.v_head_bytes(), copy);
      }
    }
  }

  void read_memory(const std::byte* data, size_t bytes) override {
    for (size_t i = 0; i < bytes; ++i)
      static_cast<void>(static_cast<const volatile std::byte*>(data)[i]);
  }

 private:
  static void copy_page(void* pages, int64_t bytes, const PageCopy& copy) {
    auto* first = static_cast<std::byte*>(pages);
    std::memcpy(first + copy.to * bytes, first + copy.from * bytes, index(bytes));
  }

  static float rope_frequency(const Rope& rope, int32_t length, int64_t i, int64_t pairs) {
    if (rope.original == 0 || length <= rope.original) return rope.frequencies[i];
    if (rope.long_frequencies != nullptr) return rope.long_frequencies[i];
    const double s = rope.dynamic_factor * length / rope.original - (rope.dynamic_factor - 1);
    const auto exponent = -2.0 * static_cast<double>(i) / static_cast<double>(2 * pairs - 2);
    return static_cast<float>(rope.frequencies[i] * std::pow(s, exponent));
  }

  static void require_rotation(const BatchView& batch, const Matrix& cos_sin, int64_t dim) {
    require_matrix(cos_sin, batch.n_tokens, cos_sin.cols,
                   "attention: cos_sin must have a row a token");
    require(cos_sin.cols % 2 == 0 && cos_sin.cols <= dim,
            "attention: an even number of elements is rotated, at most head_dim");
  }

  /// A head of a token, from column `first` on, normalized and rotated. weights and biases are
  /// those of all heads, or null.
  static std::vector<double> transformed(const Matrix& rows, int32_t t, int64_t first, int64_t dim,
                                         const HeadTransform& transform, const float* weights,
                                         const float* biases, const Matrix& cos_sin) {
    std::vector<double> head = columns(rows, t, first, dim);
    const auto of_head = [&](const float* of_all) {
      return of_all != nullptr ? of_all + first : nullptr;
    };
    if (transform.norm_after_rotation) rotate(head, cos_sin, t);
    normalize(head, transform.norm, of_head(weights), of_head(biases), transform.eps);
    if (!transform.norm_after_rotation) rotate(head, cos_sin, t);
    return head;
  }

  /// In place. queries: [tokens, n_heads dim].
  static void transform_queries(const BatchView& batch, const Matrix& queries,
                                const Matrix& cos_sin, const HeadTransform& transform,
                                const KvLayer& kv) {
    const int64_t dim = kv.head_dim;
    require_matrix(queries, batch.n_tokens, queries.cols, "attention: qkv must have a row a token");
    require(queries.cols % dim == 0, "attention: qkv must be whole heads");
    require_rotation(batch, cos_sin, dim);
    require_norm(transform.norm, transform.q_weight);
    require(transform.query_scaling == 0 || transform.query_scaling_from > 0,
            "attention: queries must be scaled from a position on");
    for (int32_t t = 0; t < batch.n_tokens; ++t) {
      double factor = 1;
      if (transform.query_scaling != 0) {
        const int32_t ahead = batch.positions[t] + transform.query_scaling_ahead;
        const int32_t from = transform.query_scaling_from;
        const int32_t lengths = ahead / from;
        factor = transform.query_power
                     ? std::pow(1 + static_cast<double>(ahead) / from, transform.query_scaling)
                     : 1 + transform.query_scaling * std::log(1.0 + lengths);
      }
      for (int64_t first = 0; first < queries.cols; first += dim) {
        std::vector<double> head = transformed(queries, t, first, dim, transform,
                                               transform.q_weight, transform.q_bias, cos_sin);
        if (kv.is_coded()) hadamard(std::span(head));
        for (int64_t i = 0; i < dim; ++i) {
          set(queries, t, first + i, static_cast<float>(head[index(i)] * factor));
        }
      }
    }
  }

  /// Keys, transformed, and values of each token to its page.
  static void append_rows(const BatchView& batch, const Matrix& kv_rows, const Matrix& cos_sin,
                          const HeadTransform& transform, const KvLayer& kv) {
    require_batch(batch);
    const int64_t dim = kv.head_dim;
    const int64_t v_dim = kv.v_head_dim;
    require_matrix(kv_rows, batch.n_tokens, kv_rows.cols,
                   "attention: keys and values must have a row a token");
    require_rotation(batch, cos_sin, dim);
    require_norm(transform.norm, transform.k_weight);
    for (int32_t t = 0; t < batch.n_tokens; ++t) {
      for (int32_t h = 0; h < kv.n_kv_heads; ++h) {
        std::vector<double> key = transformed(kv_rows, t, h * dim, dim, transform,
                                              transform.k_weight, transform.k_bias, cos_sin);
        if (kv.is_coded()) hadamard(std::span(key));
        const int64_t target = kv_row(batch, kv, batch.sequence_of[t], batch.positions[t], h);
        store_row(kv, kv.k, key, target);
        if (kv.values_in_keys) continue;
        std::vector<double> value = columns(kv_rows, t, kv.k_dim() + h * v_dim, v_dim);
        if (transform.v_weight != nullptr) {
          normalize(value, transform.norm, transform.v_weight + h * v_dim, nullptr, transform.eps);
        }
        store_row(kv, kv.v, value, target);
      }
    }
  }

  /// Elements of a head as row `target` (kv_row()) of K or V.
  static void store_row(const KvLayer& kv, void* data, const std::vector<double>& elements,
                        int64_t target) {
    if (!kv.is_coded()) {
      for (size_t i = 0; i < elements.size(); ++i) {
        store_float(data, kv.dtype, index(target) * elements.size() + i,
                    static_cast<float>(elements[i]));
      }
      return;
    }
    const std::vector<float> floats(elements.begin(), elements.end());
    const CodedRow row = coded_row(data, target, static_cast<int64_t>(elements.size()));
    *row.scale = encode_kv(kv.format, floats, row.codes);
  }

  /// Where row `target` of K or V has its codes and their scale.
  struct CodedRow {
    uint8_t* codes;
    KvScale* scale;
  };
  static CodedRow coded_row(void* data, int64_t target, int64_t dim) {
    const int64_t row = target % kPageTokens;
    auto* of_head = static_cast<uint8_t*>(data) +
                    target / kPageTokens * kPageTokens * (dim + int64_t{sizeof(KvScale)});
    return {of_head + row * dim, reinterpret_cast<KvScale*>(of_head + kPageTokens * dim) + row};
  }

  static void attend(const BatchView& batch, const Matrix& q, const KvLayer& kv,
                     const AttentionRule& rule, const Matrix& out) {
    const int64_t dim = kv.head_dim;
    const int64_t v_dim = kv.v_head_dim;
    require_matrix(q, batch.n_tokens, q.cols, "attention: q must have a row a token");
    require_matrix(out, batch.n_tokens, out.cols, "attention: out must have a row a token");
    require(q.cols % (dim * kv.n_kv_heads) == 0,
            "attention: n_heads must be a multiple of n_kv_heads");
    require(rule.window >= 0 && rule.soft_cap >= 0, "attention: a window or a cap is negative");
    const auto n_heads = static_cast<int32_t>(q.cols / dim);
    if (rule.relative != nullptr) require_relative(batch, *rule.relative, n_heads, kv.n_kv_heads);
    const int32_t group = n_heads / kv.n_kv_heads;
    for (int32_t s = 0; s < batch.n_sequences; ++s) {
      const int32_t begin = batch.query_start[s];
      const int32_t end = batch.query_start[s + 1];
      if (begin == end) continue;
      const int32_t seen = seen_by(rule, batch.positions[begin], batch.kv_len[s]).first;
      for (int32_t kv_head = 0; kv_head < kv.n_kv_heads; ++kv_head) {
        const std::vector<double> keys = cached(batch, kv, kv.k, dim, dim, s, seen, kv_head);
        const std::vector<double> values =
            cached(batch, kv, kv.v, kv.v_stride(), v_dim, s, seen, kv_head);
        for (int32_t t = begin; t < end; ++t) {
          for (int32_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
            const Seen tokens = seen_by(rule, batch.positions[t], batch.kv_len[s]);
            const int64_t first = tokens.first - seen;
            const int64_t n = tokens.end - tokens.first;
            const std::vector<double> query = columns(q, t, h * dim, dim);
            const std::vector<double> sums =
                attend_one(query, std::span(keys).subspan(index(first * dim), index(n * dim)),
                           std::span(values).subspan(index(first * v_dim), index(n * v_dim)),
                           tokens, rule, h, n_heads, {t, begin - batch.positions[begin]});
            for (int64_t i = 0; i < v_dim; ++i) {
              set(out, t, h * v_dim + i, static_cast<float>(sums[index(i)]));
            }
          }
        }
      }
    }
  }

  /// The cached positions [first, end) that a query sees.
  struct Seen {
    int32_t position;  // of the query
    int32_t first;
    int32_t end;
  };
  static Seen seen_by(const AttentionRule& rule, int32_t position, int32_t cached) {
    Seen seen{position, 0, rule.bidirectional ? cached : position + 1};
    if (rule.window > 0) {
      seen.first = rule.window_in_blocks ? position / rule.window * rule.window
                                         : std::max(0, position + 1 - rule.window);
      seen.end = std::min(seen.end, position + rule.window);
    }
    return seen;
  }

  /// K or V of a head, `stride` elements from token to token, from position `first` of a sequence
  /// on: [positions, dim].
  static std::vector<double> cached(const BatchView& batch, const KvLayer& kv, void* data,
                                    int64_t stride, int64_t dim, int32_t s, int32_t first,
                                    int32_t head) {
    std::vector<double> elements;
    for (int32_t p = first; p < batch.kv_len[s]; ++p) {
      const int64_t row = kv_row(batch, kv, s, p, head);
      if (kv.is_coded()) {
        const CodedRow coded = coded_row(data, row, dim);
        for (int64_t i = 0; i < dim; ++i) {
          elements.push_back(double{static_cast<float>(*coded.scale)} *
                             decode_kv(kv.format, coded.codes[i]));
        }
        continue;
      }
      for (int64_t i = 0; i < dim; ++i) {
        elements.push_back(load_as_float(data, kv.dtype, index(row * stride + i)));
      }
    }
    return elements;
  }

  static void require_relative(const BatchView& batch, const RelativeScores& relative,
                               int32_t n_heads, int32_t n_kv_heads) {
    require(n_heads == n_kv_heads, "attention: relative scores need a KV head for each head");
    for (const Matrix& scores : {relative.of_queries, relative.of_keys}) {
      if (scores.data == nullptr) continue;
      require_matrix(scores, batch.n_tokens, scores.cols,
                     "attention: relative scores must have a row a token");
      require(scores.cols % n_heads == 0, "attention: heads have as many relative scores each");
    }
    for (int32_t s = 0; s < batch.n_sequences; ++s) {
      require(batch.query_start[s + 1] - batch.query_start[s] == batch.kv_len[s],
              "attention: relative scores need whole texts");
    }
  }

  /// Rows of the batch.
  struct Rows {
    int32_t query;
    int32_t first;  // that of position 0 of its text, if that is in the step
  };

  /// What `relative` adds to q · k of head h.
  static double relative_score(const RelativeScores& relative, const Rows& rows, int32_t h,
                               int64_t n_heads, int64_t position, int64_t key) {
    const int64_t reach = relative.reach;
    const int32_t vector = relative.vectors[reach + std::clamp(key - position, -reach, reach)];
    double sum = 0;
    const auto add = [&](const Matrix& scores, int64_t row) {
      if (scores.data != nullptr) sum += get(scores, row, h * (scores.cols / n_heads) + vector);
    };
    add(relative.of_queries, rows.query);
    add(relative.of_keys, rows.first + key);
    return sum;
  }

  /// What head h of a query gets from the keys and values that it sees.
  static std::vector<double> attend_one(const std::vector<double>& query,
                                        std::span<const double> keys,
                                        std::span<const double> values, const Seen& seen,
                                        const AttentionRule& rule, int32_t h, int64_t n_heads,
                                        const Rows& rows) {
    const auto dim = static_cast<int64_t>(query.size());
    const int64_t n = seen.end - seen.first;
    std::vector<double> scores;
    for (int64_t p = 0; p < n; ++p) {
      double score = dot(query.data(), keys.data() + p * dim, dim);
      if (rule.relative != nullptr) {
        score += relative_score(*rule.relative, rows, h, n_heads, seen.position, seen.first + p);
      }
      score *= rule.scale;
      if (rule.soft_cap > 0) score = rule.soft_cap * std::tanh(score / rule.soft_cap);
      if (rule.slopes != nullptr) {
        score -=
            double{rule.slopes[h]} * std::abs(static_cast<double>(seen.first + p - seen.position));
      }
      if (rule.bias != nullptr) {
        const int64_t reach = rule.bias_reach;
        const int64_t ahead = std::clamp(seen.first + p - seen.position, -reach, reach);
        score += rule.bias[h * (2 * reach + 1) + reach + ahead];
      }
      scores.push_back(score);
    }
    double largest = *std::max_element(scores.begin(), scores.end());
    double total = 0;
    if (rule.sinks != nullptr) {
      largest = std::max(largest, double{rule.sinks[h]});
      total += std::exp(rule.sinks[h] - largest);
    }
    std::vector<double> sums(values.size() / index(n));
    for (int64_t p = 0; p < n; ++p) {
      const double weight = std::exp(scores[index(p)] - largest);
      total += weight;
      const double* value = values.data() + index(p) * sums.size();
      for (double& sum : sums) sum += weight * *value++;
    }
    for (double& sum : sums) sum /= total;
    return sums;
  }
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace faststream
