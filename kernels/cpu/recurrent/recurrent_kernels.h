// Convolutions over the last tokens, and recurrences of matrices. Everything is local to the
// including file.
#pragma once

#include "kernels/cpu/activation_kernels.h"
#include "kernels/cpu/isa/kernels.h"
#include "kernels/cpu/isa/simd.h"
#include "kernels/cpu/norm_kernels.h"

namespace faststream {
namespace {

inline void copy_rows(const float* from, int64_t from_stride, int64_t rows, int64_t columns,
                      float* to, int64_t to_stride) {
  for (int64_t i = 0; i < rows; ++i) {
    for_vectors(columns, [&](int64_t c, int64_t count) {
      store_up_to(to + i * to_stride + c, load_up_to(from + i * from_stride + c, count), count);
    });
  }
}

/// The elements of a tap at a token: of the text, or of what was before it.
inline const float* convolved_row(const ConvolveTask& task, int64_t token) {
  return token < 0 ? task.before + (task.taps - 1 + token) * task.stride
                   : task.x + token * task.x_stride;
}

// Tokens whose elements are prefetched: they are lines apart, which a processor does not foresee.
constexpr int64_t kConvolvedAhead = 4;

/// kTaps: so many, or 0: any number.
template <int kTaps, Activation kActivation>
inline void convolve_tokens(const ConvolveTask& task) {
  const int taps = kTaps > 0 ? kTaps : task.taps;
  for (int64_t t = 0; t < task.tokens; ++t) {
    const float* rows[kTaps > 0 ? kTaps : 1];
    for (int i = 0; i < kTaps; ++i) rows[i] = convolved_row(task, t - (taps - 1) + i);
    float* out = task.out + t * task.out_stride;
    for_vectors(task.channels, [&](int64_t c, int64_t count) {
      __builtin_prefetch(task.x + (t + kConvolvedAhead) * task.x_stride + c);
      Vec sum = task.bias != nullptr ? load_up_to(task.bias + c, count) : Vec{};
#pragma GCC unroll 4
      for (int i = 0; i < taps; ++i) {
        const float* x = kTaps > 0 ? rows[i] : convolved_row(task, t - (taps - 1) + i);
        sum += load_up_to(task.weight + i * task.stride + c, count) * load_up_to(x + c, count);
      }
      store_up_to(out + c, activate<kActivation>(sum), count);
    });
  }
}

void convolve(const ConvolveTask& task) {
  with_activation(task.activation, [&]<Activation kActivation>() {
    switch (task.taps) {
      case 3:
        return convolve_tokens<3, kActivation>(task);
      case 4:
        return convolve_tokens<4, kActivation>(task);
      default:
        return convolve_tokens<0, kActivation>(task);
    }
  });
}

// --- Recurrences of matrices
// ------------------------------------------------------------------------------
//
// A token goes over a head's matrix once: what it leaves of a row is multiplied with its query, and
// with the next token's key, whose product the delta rule wants before anything else. Of several
// tokens some columns at a time stay in the first-level cache, in memory of their own, since rows
// of the state would share few of its sets. Sums add rows in one order whatever the columns and
// pieces, so that a text has the same bits.

// Rows that are gone through together: of each column a sum is loaded and stored for so many.
constexpr int kRecurRows = 4;

/// Of the tokens of a piece: factors of the matrix or of its rows, of what is written, and of
/// queries and keys.
struct RecurFactors {
  float* decays;  ///< [kRecurPiece, 1 or key_dim]
  float strengths[kRecurPiece];
  float of_queries[kRecurPiece];
  float of_keys[kRecurPiece];
};

/// The factors of the matrix that gates give, to which steps are added already; and the steps.
inline Vec decays_of(const RecurTask& task, Vec gates, Vec& steps) {
  steps = splat(1);
  if (task.steps != nullptr) {
    const Vec least = splat(task.least_step);
    const Vec most = splat(task.most_step);
    steps = softplus(gates);
    steps = select(steps < least, least, select(steps > most, most, steps));
  }
  if (task.least_log_decay >= 0) return exponential(task.rate * steps);
  return exponential(task.least_log_decay / (1.0F + exponential(task.rate * gates)));
}

/// 1 / |x|, or 1.
inline float unit_factor(const float* x, int64_t n, float unit_eps) {
  if (unit_eps <= 0) return 1;
  return 1.0F / __builtin_sqrtf(sum_of_row(x, n, [](Vec v) { return v * v; }) + unit_eps);
}

inline void make_factors(const RecurTask& task, int64_t first, int64_t tokens,
                         RecurFactors& factors) {
  float gates[kRecurPiece] = {};
  for (int64_t i = 0; i < tokens; ++i) {
    const int64_t t = first + i;
    const float* of_token = task.gates + t * task.gates_stride;
    if (task.by_channel) {
      for_vectors(task.key_dim, [&](int64_t c, int64_t count) {
        const Vec gate = load_up_to(of_token + c, count) + load_up_to(task.steps + c, count);
        Vec step;
        store_up_to(factors.decays + i * task.key_dim + c, decays_of(task, gate, step), count);
      });
    } else if (task.steps != nullptr) {
      gates[i] = of_token[0] + task.steps[0];
    }
    factors.of_queries[i] =
        unit_factor(task.q + t * task.q_stride, task.key_dim, task.unit_eps) * task.query_scale;
    factors.of_keys[i] = unit_factor(task.k + t * task.k_stride, task.key_dim, task.unit_eps);
  }
  if (!task.by_channel) {
    for_vectors(kRecurPiece, [&](int64_t i, int64_t count) {
      Vec step;
      store_up_to(factors.decays + i, decays_of(task, load_up_to(gates + i, count), step), count);
      store_up_to(factors.strengths + i, step, count);
    });
  }
  if (!task.delta) return;
  for (int64_t i = 0; i < tokens; ++i) {
    gates[i] = task.strength_gates[(first + i) * task.gates_stride];
  }
  for_vectors(kRecurPiece, [&](int64_t i, int64_t count) {
    const Vec gate = load_up_to(gates + i, count);
    store_up_to(factors.strengths + i, task.strength / (1.0F + exponential(-gate)), count);
  });
}

/// Rows of a matrix that a token leaves to the next, some columns of them.
struct RecurRows {
  const float* from = nullptr;
  int64_t from_stride = 0;
  float* to = nullptr;
  int64_t to_stride = 0;
  int64_t columns = 0;
};

/// What a token brings: [key_dim] or, of `decays`, perhaps a factor of all rows; and what the rows
/// of the next one's known() are multiplied with.
struct RecurToken {
  const float* decays;
  const float* k;
  const float* q;
  const float* next_key;
};

/// What R rows together add to a vector of sums; one row is added by itself.
template <int R>
class RowSum {
 public:
  explicit RowSum(const float* sums) : sum_(R == 1 ? load(sums) : Vec{}) {}
  void add(int r, Vec factor, Vec element) {
    sum_ = R > 1 && r == 0 ? factor * element : multiply_add(factor, element, sum_);
  }
  void store_to(float* sums) const { store(sums, R == 1 ? sum_ : load(sums) + sum_); }

 private:
  Vec sum_;
};

/// sums [columns] += Σ factors[i] · row i, of R rows.
template <int R>
inline void know_rows(const float* factors, const float* rows, int64_t stride, int64_t columns,
                      float* sums) {
  for_vectors(columns, [&](int64_t c, int64_t count) {
    RowSum<R> sum(sums + c);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      sum.add(r, splat(factors[r]), load_up_to(rows + r * stride + c, count));
    }
    sum.store_to(sums + c);
  });
}

/// What the key knows of the values before it: the sums of the matrix's rows by `factors`.
inline void know(const float* factors, const float* rows, int64_t stride, int64_t key_dim,
                 int64_t columns, float* sums) {
  int64_t i = 0;
  for (; i + kRecurRows <= key_dim; i += kRecurRows) {
    know_rows<kRecurRows>(factors + i, rows + i * stride, stride, columns, sums);
  }
  for (; i < key_dim; ++i) know_rows<1>(factors + i, rows + i * stride, stride, columns, sums);
}

/// Makes R rows from row i on what the token leaves of them, and adds to its sums and to what the
/// next key knows.
template <int R, bool kDelta, bool kByChannel>
inline void update_rows(const RecurRows& rows, const RecurToken& token, int64_t i,
                        const float* written, float* sums, float* known) {
  const float* from = rows.from + i * rows.from_stride;
  float* to = rows.to + i * rows.to_stride;
  // Once for all columns: stores to rows might change what the token's pointers show.
  Vec decays[R];
  Vec keys[R];
  Vec queries[R];
  Vec next_keys[R];
  for (int r = 0; r < R; ++r) {
    decays[r] = splat(token.decays[kByChannel ? i + r : 0]);
    keys[r] = splat(token.k[i + r]);
    queries[r] = splat(token.q[i + r]);
    if (kDelta) next_keys[r] = splat(token.next_key[i + r]);
  }
  for_vectors(rows.columns, [&](int64_t c, int64_t count) {
    const Vec write = load(written + c);
    RowSum<R> sum(sums + c);
    RowSum<R> next(known + c);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const Vec before = load_up_to(from + r * rows.from_stride + c, count);
      const Vec element = multiply_add(keys[r], write, decays[r] * before);
      store_up_to(to + r * rows.to_stride + c, element, count);
      sum.add(r, queries[r], element);
      if (kDelta) next.add(r, next_keys[r], element);
    }
    sum.store_to(sums + c);
    if (kDelta) next.store_to(known + c);
  });
}

/// sums [columns] = or += factors[i] · row i, as it is or as the token leaves it.
template <bool kAdds, bool kByChannel, bool kUpdates>
inline void stream_row(const RecurRows& rows, const RecurToken& token, const float* factors,
                       int64_t i, const float* written, float* sums) {
  const float* from = rows.from + i * rows.from_stride;
  float* to = rows.to + i * rows.to_stride;
  const Vec factor = splat(factors[i]);
  const Vec key = splat(token.k[i]);
  const Vec decay = splat(token.decays[kByChannel ? i : 0]);
  for_vectors(rows.columns, [&](int64_t c, int64_t count) {
    Vec element = load_up_to(from + c, count);
    if (kUpdates) {
      element = multiply_add(key, load(written + c), decay * element);
      store_up_to(to + c, element, count);
    }
    store(sums + c, kAdds ? multiply_add(factor, element, load(sums + c)) : factor * element);
  });
}

/// A token that comes alone, whose rows are in memory: they are read one after the other, as memory
/// is read fastest (rows of 512 bytes by a Zen 4 core: 34 GB/s, four at a time 11), but added in
/// the order of those above, and with as many roundings.
template <int R, bool kByChannel, bool kUpdates>
inline void stream_rows(const RecurRows& rows, const RecurToken& token, const float* factors,
                        int64_t i, const float* written, float* sums) {
  if constexpr (R == 1) {
    stream_row<true, kByChannel, kUpdates>(rows, token, factors, i, written, sums);
  } else {
    alignas(64) float parts[kMostRecurColumns];
    stream_row<false, kByChannel, kUpdates>(rows, token, factors, i, written, parts);
    for (int r = 1; r < R; ++r) {
      stream_row<true, kByChannel, kUpdates>(rows, token, factors, i + r, written, parts);
    }
    for (int64_t c = 0; c < rows.columns; c += kLanes) {
      store(sums + c, load(sums + c) + load(parts + c));
    }
  }
}

/// sums += what the rows give, as they are (by factors), or as the token leaves them (by its
/// query).
template <bool kByChannel, bool kUpdates>
inline void stream(const RecurRows& rows, const RecurToken& token, const float* factors,
                   int64_t key_dim, const float* written, float* sums) {
  int64_t i = 0;
  for (; i + kRecurRows <= key_dim; i += kRecurRows) {
    stream_rows<kRecurRows, kByChannel, kUpdates>(rows, token, factors, i, written, sums);
  }
  for (; i < key_dim; ++i) {
    stream_rows<1, kByChannel, kUpdates>(rows, token, factors, i, written, sums);
  }
}

/// The keys by which the matrix before token t is known: times the factors of its rows.
template <bool kByChannel>
inline const float* knowing_key(const RecurTask& task, int64_t t, const float* decays,
                                float* room) {
  const float* k = task.k + t * task.k_stride;
  if (!kByChannel) return k;
  for_vectors(task.key_dim, [&](int64_t i, int64_t count) {
    store_up_to(room + i, load_up_to(k + i, count) * load_up_to(decays + i, count), count);
  });
  return room;
}

/// The tokens [first, first + tokens) of a piece, and columns from `column` on. The first one reads
/// rows.from, the others what those before them wrote to rows.to. kAlone: there is one.
template <bool kDelta, bool kByChannel, bool kAlone>
inline void recur_piece(const RecurTask& task, const RecurFactors& factors, int64_t first,
                        int64_t tokens, int64_t column, RecurRows rows, float* next_key) {
  alignas(64) float written[kMostRecurColumns] = {};
  alignas(64) float known[kMostRecurColumns] = {};
  alignas(64) float sums[kMostRecurColumns] = {};
  const int64_t left = task.columns - column;
  const int64_t columns = rows.columns < left ? rows.columns : left;
  const int64_t n_decays = kByChannel ? task.key_dim : 1;
  const auto decays_at = [&](int64_t i) { return factors.decays + i * n_decays; };
  const auto token_at = [&](int64_t i, const float* next) {
    const int64_t t = first + i;
    return RecurToken{decays_at(i), task.k + t * task.k_stride, task.q + t * task.q_stride, next};
  };
  if (kDelta) {
    const float* key = knowing_key<kByChannel>(task, first, decays_at(0), next_key);
    if (kAlone) {
      stream<kByChannel, false>(rows, token_at(0, nullptr), key, task.key_dim, written, known);
    } else {
      know(key, rows.from, rows.from_stride, task.key_dim, rows.columns, known);
    }
  }
  for (int64_t i = 0; i < tokens; ++i) {
    const int64_t t = first + i;
    const float* values = task.v + t * task.v_stride + column;
    const float of_key = factors.of_keys[i];
    const float of_known = kByChannel ? of_key : decays_at(i)[0] * of_key;
    for_vectors(columns, [&](int64_t c, int64_t count) {
      Vec value = load_up_to(values + c, count);
      if (kDelta) value -= of_known * load(known + c);
      store(written + c, factors.strengths[i] * value * of_key);
    });
    for (int64_t c = 0; c < rows.columns; c += kLanes) {
      store(sums + c, Vec{});
      store(known + c, Vec{});
    }
    if (kAlone) {
      const RecurToken token = token_at(i, nullptr);
      stream<kByChannel, true>(rows, token, token.q, task.key_dim, written, sums);
    } else {
      const int64_t next = i + 1 < tokens ? i + 1 : i;  // the last one's is not used
      const RecurToken token = token_at(
          i, kDelta ? knowing_key<kByChannel>(task, first + next, decays_at(next), next_key)
                    : nullptr);
      int64_t r = 0;
      for (; r + kRecurRows <= task.key_dim; r += kRecurRows) {
        update_rows<kRecurRows, kDelta, kByChannel>(rows, token, r, written, sums, known);
      }
      for (; r < task.key_dim; ++r) {
        update_rows<1, kDelta, kByChannel>(rows, token, r, written, sums, known);
      }
    }
    float* out = task.out + t * task.out_stride + column;
    for_vectors(columns, [&](int64_t c, int64_t count) {
      const Vec sum = factors.of_queries[i] * load(sums + c);
      store_up_to(out + c, multiply_add(splat(task.skip), load_up_to(values + c, count), sum),
                  count);
    });
    rows.from = rows.to;
    rows.from_stride = rows.to_stride;
    if (task.border != nullptr && t + 1 == task.border_tokens) {
      copy_rows(rows.from, rows.from_stride, task.key_dim, columns, task.border + column,
                task.stride);
    }
  }
}

template <bool kDelta, bool kByChannel>
inline void recur_tokens(const RecurTask& task) {
  float* next_key = task.scratch;
  RecurFactors factors;
  factors.decays = next_key + padded_recur_dim(task.key_dim);
  float* matrix = factors.decays + kRecurPiece * padded_recur_dim(task.key_dim);
  if (task.tokens == 1) {
    make_factors(task, 0, 1, factors);
    for (int64_t c = 0; c < task.columns; c += kMostRecurColumns) {
      const int64_t left = task.columns - c;
      recur_piece<kDelta, kByChannel, true>(task, factors, 0, 1, c,
                                            {task.from + c, task.stride, task.to + c, task.stride,
                                             left < kMostRecurColumns ? left : kMostRecurColumns},
                                            next_key);
    }
    return;
  }
  const auto for_blocks = [&](const auto& body) {
    float* block = matrix;
    for (int64_t c = 0; c < task.columns; c += kRecurColumns) {
      body(c, task.columns - c < kRecurColumns ? task.columns - c : kRecurColumns, block);
      block += task.key_dim * kRecurColumns;
    }
  };
  for_blocks([&](int64_t c, int64_t columns, float* block) {
    for (int64_t i = 0; i < task.key_dim * kRecurColumns; i += kLanes) store(block + i, Vec{});
    copy_rows(task.from + c, task.stride, task.key_dim, columns, block, kRecurColumns);
  });
  for (int64_t first = 0; first < task.tokens; first += kRecurPiece) {
    const int64_t tokens = task.tokens - first < kRecurPiece ? task.tokens - first : kRecurPiece;
    make_factors(task, first, tokens, factors);
    for_blocks([&](int64_t c, int64_t, float* block) {
      recur_piece<kDelta, kByChannel, false>(
          task, factors, first, tokens, c,
          {block, kRecurColumns, block, kRecurColumns, kRecurColumns}, next_key);
    });
  }
  for_blocks([&](int64_t c, int64_t columns, float* block) {
    copy_rows(block, kRecurColumns, task.key_dim, columns, task.to + c, task.stride);
  });
}

void recur(const RecurTask& task) {
  if (!task.delta) {
    recur_tokens<false, false>(task);
  } else if (task.by_channel) {
    recur_tokens<true, true>(task);
  } else {
    recur_tokens<true, false>(task);
  }
}

// --- Selective scans
// --------------------------------------------------------------------------------------

constexpr float kLog2E = 1.44269504F;

/// 2^x within 3e-7, relative to it, of x that are not above 0; not below about 2^-126. Of a
/// polynomial on [-1/2, 1/2], that of Cephes' exp2f.
inline Vec shrinking_power(Vec x) {
  constexpr float kRounder = 0x1.8p23F;
  x = larger(splat(-126), x);
  const Vec shifted = x + kRounder;
  const Vec r = x - (shifted - kRounder);
  Vec p = r * 1.535336188319500E-4F + 1.339887440266574E-3F;
  p = p * r + 9.618437357674640E-3F;
  p = p * r + 5.550332471162809E-2F;
  p = p * r + 2.402264791363012E-1F;
  p = p * r + 6.931472028550421E-1F;
  p = p * r + 1.0F;
  const WordVec exponent = reinterpret_cast<WordVec>(shifted) << 23;
  return reinterpret_cast<Vec>(reinterpret_cast<WordVec>(p) + exponent);
}

/// What a token reads and writes of some channels, a row a state.
struct ScanRows {
  const float* rates = nullptr;  ///< of e, or of powers of 2
  int64_t rates_stride = 0;
  const float* from = nullptr;
  int64_t from_stride = 0;
  float* to = nullptr;
  int64_t to_stride = 0;
};

template <bool kOfPowers>
inline void scan_token(const ScanTask& task, int64_t t, const ScanRows& rows) {
  const float* b = task.b + t * task.b_stride;
  const float* c = task.c + t * task.c_stride;
  for_vectors(task.channels, [&](int64_t channel, int64_t count) {
    const auto load_row = [&](const float* row) { return load_up_to(row + channel, count); };
    const Vec x = load_row(task.x + t * task.x_stride);
    const Vec step = softplus(load_row(task.gates + t * task.gates_stride) + load_row(task.steps));
    const Vec taken = step * x;
    Vec sum = load_row(task.skips) * x;
    for (int64_t n = 0; n < task.state_size; ++n) {
      Vec rate = load_row(rows.rates + n * rows.rates_stride);
      if (!kOfPowers) rate *= kLog2E;
      const Vec decay = shrinking_power(rate * step);
      const Vec before = load_row(rows.from + n * rows.from_stride);
      const Vec element = multiply_add(splat(b[n]), taken, decay * before);
      sum = multiply_add(splat(c[n]), element, sum);
      store_up_to(rows.to + n * rows.to_stride + channel, element, count);
    }
    store_up_to(task.out + t * task.out_stride + channel, sum, count);
  });
}

void scan(const ScanTask& task) {
  if (task.tokens == 1) {
    scan_token<false>(task, 0,
                      {task.rates, task.stride, task.from, task.stride, task.to, task.stride});
    if (task.border != nullptr && task.border_tokens == 1) {
      copy_rows(task.to, task.stride, task.state_size, task.channels, task.border, task.stride);
    }
    return;
  }
  // In rows of their own: those of the states would share few sets of the first-level cache.
  float* rates = task.scratch;
  float* state = rates + task.state_size * kScanChannels;
  copy_rows(task.rates, task.stride, task.state_size, task.channels, rates, kScanChannels);
  for (int64_t i = 0; i < task.state_size * kScanChannels; i += kLanes) {
    store(rates + i, load(rates + i) * kLog2E);
  }
  copy_rows(task.from, task.stride, task.state_size, task.channels, state, kScanChannels);
  for (int64_t t = 0; t < task.tokens; ++t) {
    scan_token<true>(task, t, {rates, kScanChannels, state, kScanChannels, state, kScanChannels});
    if (task.border != nullptr && t + 1 == task.border_tokens) {
      copy_rows(state, kScanChannels, task.state_size, task.channels, task.border, task.stride);
    }
  }
  copy_rows(state, kScanChannels, task.state_size, task.channels, task.to, task.stride);
}

}  // namespace
}  // namespace faststream
