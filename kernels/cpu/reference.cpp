// The plain float reference: every operation as its definition reads, one thread, no tricks. It is
// the oracle of all tests, so it is written to be checked by eye; sums are in double.
//
// Matrices of any floating type are accepted everywhere, so that tests can hand it what another
// backend works on.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>
#include <vector>

#include "kernels/cpu/host_backend.h"
#include "kernels/cpu/sample.h"

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
  require(w.data != nullptr && w.rows > 0 && w.cols > 0 && w.dtype != DType::u8,
          "a weight has no data or no shape");
  require((w.dtype == DType::i8) == (w.scales != nullptr), "exactly i8 weights have scales");
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
              kv.n_kv_heads > 0 && kv.head_dim > 0 && kv.head_dim % 2 == 0,
          "a KV layer has no memory or no shape");
}

/// Element of K or V where dimension 0 of `head` at `position` of sequence `s` is.
size_t kv_index(const BatchView& batch, const KvLayer& kv, int32_t s, int32_t position,
                int32_t head) {
  const int32_t page = batch.page_table[s * batch.max_pages + position / kPageTokens];
  require(page >= 0 && page < kv.n_pages, "a page number is outside the cache");
  const int64_t row = (int64_t{page} * kv.n_kv_heads + head) * kPageTokens + position % kPageTokens;
  return index(row * kv.head_dim);
}

/// x Wᵀ, [x.rows, w.rows].
std::vector<double> product(const Matrix& x, const Weight& w) {
  std::vector<double> inputs(index(x.rows * x.cols));
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t c = 0; c < x.cols; ++c) {
      inputs[index(r * x.cols + c)] = get(x, r, c);
    }
  }
  std::vector<double> result(index(x.rows * w.rows));
  std::vector<double> channel(index(w.cols));
  for (int64_t o = 0; o < w.rows; ++o) {
    const double scale = w.dtype == DType::i8 ? w.scales[o] : 1.0;
    for (int64_t c = 0; c < w.cols; ++c) {
      channel[index(c)] = load_as_float(w.data, w.dtype, index(o * w.cols + c));
    }
    for (int64_t r = 0; r < x.rows; ++r) {
      double sum = 0;
      for (int64_t c = 0; c < w.cols; ++c) {
        sum += inputs[index(r * x.cols + c)] * channel[index(c)];
      }
      result[index(r * w.rows + o)] = sum * scale;
    }
  }
  return result;
}

double silu(double x) { return x / (1.0 + std::exp(-x)); }

/// What sample_row() asks of a ranking, by sorting all tokens.
class SortedRanking {
 public:
  class Candidates;

  void read(std::span<const float> logits) {
    keys_.clear();
    bool has_nan = false;
    for (size_t i = 0; i < logits.size(); ++i) {
      has_nan |= std::isnan(logits[i]);
      keys_.push_back(token_key(logits[i], static_cast<int32_t>(i)));
    }
    std::sort(keys_.begin(), keys_.end(), std::greater<>());
    check_logits(has_nan, key_logit(keys_[0]));
  }
  [[nodiscard]] uint64_t best() const { return keys_[0]; }
  [[nodiscard]] uint64_t total(const Softmax& softmax) const {
    uint64_t sum = 0;
    for (const uint64_t key : keys_) sum += softmax.mass(key_logit(key));
    return sum;
  }
  [[nodiscard]] std::span<const uint64_t> top(int32_t n) const {
    return std::span(keys_).first(std::min(keys_.size(), index(n)));
  }
  [[nodiscard]] Candidates candidates(const Softmax& softmax, int32_t kept) const;

 private:
  std::vector<uint64_t> keys_;  // descending
};

class SortedRanking::Candidates {
 public:
  struct Found {
    uint64_t key;
    uint64_t cumulative;
  };

  Candidates(const Softmax& softmax, std::span<const uint64_t> keys)
      : softmax_(softmax), keys_(keys) {}

  [[nodiscard]] uint64_t total() const { return mass_within(kMassOctaves); }
  [[nodiscard]] uint64_t mass_within(float octaves) const {
    uint64_t sum = 0;
    for (const uint64_t key : keys_) {
      if (softmax_.octaves(key_logit(key)) <= octaves) sum += softmax_.mass(key_logit(key));
    }
    return sum;
  }
  [[nodiscard]] Found find(uint64_t mass) const {
    uint64_t sum = 0;
    for (const uint64_t key : keys_) {
      sum += softmax_.mass(key_logit(key));
      if (sum >= mass) return {key, sum};
    }
    throw std::logic_error("sample: the candidates' mass is less than was asked for");
  }

 private:
  Softmax softmax_;
  std::span<const uint64_t> keys_;
};

SortedRanking::Candidates SortedRanking::candidates(const Softmax& softmax, int32_t kept) const {
  return {softmax, top(kept)};
}

class ReferenceBackend final : public HostBackend {
 public:
  [[nodiscard]] std::string description() const override { return "CPU reference (1 thread)"; }
  [[nodiscard]] DType activation_dtype(DType) const override { return DType::f32; }
  [[nodiscard]] DType kv_dtype(DType) const override { return DType::f32; }
  [[nodiscard]] StepSizes step_sizes() const override {
    return {.sequences = 4, .prompt_tokens = 32, .first_tokens = 4};
  }
  [[nodiscard]] size_t scratch_bytes(const StepBounds& bounds) const override {
    int64_t elements = bounds.context * (2 * bounds.head_dim + 1) + 2 * bounds.vocab;
    for (const ProductBound& product : bounds.products) {
      elements = std::max(elements, product.rows * (product.in + product.out) + product.in);
    }
    return index(elements) * sizeof(double);
  }

  void embed(const BatchView& batch, const Weight& table, const Matrix& out) override {
    require_weight(table);
    require(is_float(table.dtype), "embed: the table must be of a floating type");
    require_matrix(out, batch.n_tokens, table.cols, "embed: out must be [tokens, hidden]");
    for (int32_t t = 0; t < batch.n_tokens; ++t) {
      const int32_t token = batch.tokens[t];
      require(token >= 0 && token < table.rows, "embed: a token id is outside the vocabulary");
      for (int64_t c = 0; c < table.cols; ++c) {
        set(out, t, c, load_as_float(table.data, table.dtype, index(token * table.cols + c)));
      }
    }
  }

  void rms_norm(const Matrix& x, const float* weight, float eps, const Matrix& out) override {
    require_matrix(x, x.rows, x.cols, "rms_norm: x is not a float matrix");
    require_matrix(out, x.rows, x.cols, "rms_norm: out must have x's shape");
    for (int64_t r = 0; r < x.rows; ++r) {
      double squares = 0;
      for (int64_t c = 0; c < x.cols; ++c) {
        squares += double{get(x, r, c)} * get(x, r, c);
      }
      const double scale = 1.0 / std::sqrt(squares / static_cast<double>(x.cols) + eps);
      for (int64_t c = 0; c < x.cols; ++c) {
        set(out, r, c, static_cast<float>(get(x, r, c) * scale * weight[c]));
      }
    }
  }

  void linear(const Matrix& x, const Weight& weight, const float* bias, LinearOutput mode,
              const Matrix& out) override {
    require_weight(weight);
    require_matrix(x, x.rows, weight.cols, "linear: x must be [rows, in]");
    require_matrix(out, x.rows, weight.rows, "linear: out must be [rows, out]");
    const std::vector<double> products = product(x, weight);
    for (int64_t r = 0; r < x.rows; ++r) {
      for (int64_t o = 0; o < weight.rows; ++o) {
        double value = products[index(r * weight.rows + o)];
        if (bias != nullptr) value += bias[o];
        if (mode == LinearOutput::add) value += get(out, r, o);
        set(out, r, o, static_cast<float>(value));
      }
    }
  }

  void gated_linear(const Matrix& x, const Weight& gate_up, Activation activation,
                    const Matrix& out) override {
    require_weight(gate_up);
    require(activation == Activation::silu, "gated_linear: unknown activation");
    require(gate_up.rows % 2 == 0, "gated_linear: the weight must hold as many gates as ups");
    const int64_t n = gate_up.rows / 2;
    require_matrix(x, x.rows, gate_up.cols, "gated_linear: x must be [rows, in]");
    require_matrix(out, x.rows, n, "gated_linear: out must be [rows, n]");
    const std::vector<double> products = product(x, gate_up);
    for (int64_t r = 0; r < x.rows; ++r) {
      for (int64_t o = 0; o < n; ++o) {
        const double gate = products[index(r * 2 * n + o)];
        const double up = products[index(r * 2 * n + n + o)];
        set(out, r, o, static_cast<float>(silu(gate) * up));
      }
    }
  }

  void rope_table(const BatchView& batch, const float* inv_freq, const Matrix& cos_sin) override {
    require_matrix(cos_sin, batch.n_tokens, cos_sin.cols,
                   "rope_table: cos_sin must be [tokens, head_dim]");
    require(cos_sin.cols % 2 == 0, "rope_table: head_dim must be even");
    for (int32_t t = 0; t < batch.n_tokens; ++t) {
      for (int64_t i = 0; i < cos_sin.cols / 2; ++i) {
        const float angle = static_cast<float>(batch.positions[t]) * inv_freq[i];
        set(cos_sin, t, 2 * i, static_cast<float>(std::cos(double{angle})));
        set(cos_sin, t, 2 * i + 1, static_cast<float>(std::sin(double{angle})));
      }
    }
  }

  void rope_append(const BatchView& batch, const Matrix& cos_sin, const Matrix& qkv,
                   const KvLayer& kv) override {
    require_batch(batch);
    require_kv(kv);
    const int64_t dim = kv.head_dim;
    require_matrix(cos_sin, batch.n_tokens, dim, "rope_append: cos_sin must be [tokens, head_dim]");
    require_matrix(qkv, batch.n_tokens, qkv.cols, "rope_append: qkv must have a row a token");
    require(qkv.cols % dim == 0 && qkv.cols / dim > 2 * int64_t{kv.n_kv_heads},
            "rope_append: qkv must be [tokens, (n_heads + 2 n_kv_heads) head_dim]");
    const int64_t n_heads = qkv.cols / dim - 2 * int64_t{kv.n_kv_heads};
    for (int32_t t = 0; t < batch.n_tokens; ++t) {
      const int32_t s = batch.sequence_of[t];
      const auto rotated = [&](int64_t column, int64_t i) {
        const int64_t pair = i % (dim / 2);
        const float cosine = get(cos_sin, t, 2 * pair);
        const float sine = get(cos_sin, t, 2 * pair + 1);
        const float first = get(qkv, t, column + pair);
        const float second = get(qkv, t, column + pair + dim / 2);
        return i == pair ? first * cosine - second * sine : second * cosine + first * sine;
      };
      std::vector<float> head(index(dim));
      for (int64_t h = 0; h < n_heads; ++h) {
        for (int64_t i = 0; i < dim; ++i) {
          head[index(i)] = rotated(h * dim, i);
        }
        for (int64_t i = 0; i < dim; ++i) {
          set(qkv, t, h * dim + i, head[index(i)]);
        }
      }
      for (int32_t h = 0; h < kv.n_kv_heads; ++h) {
        const size_t target = kv_index(batch, kv, s, batch.positions[t], h);
        for (int64_t i = 0; i < dim; ++i) {
          store_float(kv.k, kv.dtype, target + index(i), rotated((n_heads + h) * dim, i));
          store_float(kv.v, kv.dtype, target + index(i),
                      get(qkv, t, (n_heads + kv.n_kv_heads + h) * dim + i));
        }
      }
    }
  }

  void attention(const BatchView& batch, const Matrix& q, const KvLayer& kv, float scale,
                 const Matrix& out) override {
    require_batch(batch);
    require_kv(kv);
    const int64_t dim = kv.head_dim;
    require_matrix(q, batch.n_tokens, q.cols, "attention: q must have a row a token");
    require_matrix(out, batch.n_tokens, q.cols, "attention: out must have q's shape");
    require(q.cols % (dim * kv.n_kv_heads) == 0,
            "attention: n_heads must be a multiple of n_kv_heads");
    const auto n_heads = static_cast<int32_t>(q.cols / dim);
    const int32_t group = n_heads / kv.n_kv_heads;
    std::vector<double> weights;
    std::vector<double> sums(index(dim));
    for (int32_t t = 0; t < batch.n_tokens; ++t) {
      const int32_t s = batch.sequence_of[t];
      const int32_t visible = batch.positions[t] + 1;
      for (int32_t h = 0; h < n_heads; ++h) {
        weights.assign(index(visible), 0);
        double largest = -std::numeric_limits<double>::infinity();
        for (int32_t p = 0; p < visible; ++p) {
          const size_t key = kv_index(batch, kv, s, p, h / group);
          double dot = 0;
          for (int64_t i = 0; i < dim; ++i) {
            dot += double{get(q, t, h * dim + i)} * load_as_float(kv.k, kv.dtype, key + index(i));
          }
          weights[index(p)] = dot * scale;
          largest = std::max(largest, weights[index(p)]);
        }
        double total = 0;
        std::fill(sums.begin(), sums.end(), 0.0);
        for (int32_t p = 0; p < visible; ++p) {
          const double weight = std::exp(weights[index(p)] - largest);
          const size_t value = kv_index(batch, kv, s, p, h / group);
          total += weight;
          for (int64_t i = 0; i < dim; ++i) {
            sums[index(i)] += weight * load_as_float(kv.v, kv.dtype, value + index(i));
          }
        }
        for (int64_t i = 0; i < dim; ++i) {
          set(out, t, h * dim + i, static_cast<float>(sums[index(i)] / total));
        }
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

  void sample(const Matrix& logits, std::span<const SamplingRow> rules,
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
      const int64_t page = int64_t{kv.n_kv_heads} * kPageTokens * kv.head_dim;
      for (const PageCopy& copy : copies) {
        require(copy.from >= 0 && copy.from < kv.n_pages && copy.to >= 0 && copy.to < kv.n_pages,
                "copy_pages: a page number is outside the cache");
        for (int64_t i = 0; i < page; ++i) {
          store_float(kv.k, kv.dtype, index(copy.to * page + i),
                      load_as_float(kv.k, kv.dtype, index(copy.from * page + i)));
          store_float(kv.v, kv.dtype, index(copy.to * page + i),
                      load_as_float(kv.v, kv.dtype, index(copy.from * page + i)));
        }
      }
    }
  }
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace faststream
