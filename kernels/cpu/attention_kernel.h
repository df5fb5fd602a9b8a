// Attention of a block of queries over KV pages with an online softmax (arXiv:2205.14135), for the
// vectors of the including file's instruction set.
//
// A page of keys is transposed once for all rows (tokens x query heads of the group), so that
// scores need no horizontal sums: lanes are keys in the scores and dimensions in the values.
#pragma once

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd.h"

namespace faststream {
namespace {

constexpr int kRowBlock = kLanes == 16 ? 4 : 2;  // rows whose sums stay in registers
constexpr int kKeyVectors = kMaxPageTokens / kLanes;
static_assert(kMaxPageTokens % kLanes == 0 && kMaxAttentionRows % kRowBlock == 0);

/// AttentionTask::scratch, carved up. `padded` is head_dim rounded up to whole vectors.
struct AttentionScratch {
  AttentionScratch(float* memory, int64_t padded)
      : queries(memory),
        sums(queries + kMaxAttentionRows * padded),
        keys(sums + kMaxAttentionRows * padded),
        keys_transposed(keys + kMaxPageTokens * padded),
        values(keys_transposed + kMaxPageTokens * padded),
        weights(values + kMaxPageTokens * padded),
        largest(weights + kMaxAttentionRows * kMaxPageTokens),
        total(largest + kMaxAttentionRows) {}

  float* queries;          // [rows, padded], scaled
  float* sums;             // [rows, padded] of weighted values
  float* keys;             // [kMaxPageTokens, padded]
  float* keys_transposed;  // [padded, kMaxPageTokens]
  float* values;           // [kMaxPageTokens, padded]
  float* weights;          // [rows, kMaxPageTokens]
  float* largest;          // [rows] score so far
  float* total;            // [rows] of weights so far
};

template <class T>
inline void load_page_rows(const T* from, int64_t keys, int64_t dim, int64_t padded, float* to) {
  for (int64_t j = 0; j < keys; ++j) {
    for (int64_t i = 0; i < padded; i += kLanes) {
      store(to + j * padded + i, i + kLanes <= dim ? widen(from + j * dim + i)
                                                   : widen_some(from + j * dim + i, dim - i));
    }
  }
}

inline void load_page(const void* base, FloatType type, int64_t offset, int64_t keys, int64_t dim,
                      int64_t padded, float* to) {
  switch (type) {
    case FloatType::f32:
      load_page_rows(static_cast<const float*>(base) + offset, keys, dim, padded, to);
      break;
    case FloatType::f16:
      load_page_rows(static_cast<const StoredF16*>(base) + offset, keys, dim, padded, to);
      break;
    case FloatType::bf16:
      load_page_rows(static_cast<const StoredBf16*>(base) + offset, keys, dim, padded, to);
      break;
  }
}

/// keys [count, padded] to [padded, kMaxPageTokens]. Columns past `count` are whatever was there;
/// their scores are overwritten.
inline void transpose_keys(const float* keys, int64_t padded, int64_t count, float* transposed) {
#if defined(__AVX512F__)
  for (int64_t i = 0; i < padded; i += 16) {
    for (int64_t j = 0; j < count; j += 16) {
      __m512i rows[16];
      for (int64_t r = 0; r < 16; ++r) {
        rows[r] = _mm512_loadu_si512(keys + (j + r) * padded + i);
      }
      transpose16(rows);
      for (int64_t r = 0; r < 16; ++r) {
        _mm512_storeu_si512(transposed + (i + r) * kMaxPageTokens + j, rows[r]);
      }
    }
  }
#else
  for (int64_t j = 0; j < count; ++j) {
    for (int64_t i = 0; i < padded; ++i) {
      transposed[i * kMaxPageTokens + j] = keys[j * padded + i];
    }
  }
#endif
}

/// weights [R, kMaxPageTokens] = queries [R, padded] · keys.
template <int R>
inline void score_block(const float* queries, const float* keys_transposed, int64_t padded,
                        int64_t dim, float* weights) {
  Vec sum[R][kKeyVectors] = {};
  for (int64_t i = 0; i < dim; ++i) {
    Vec keys[kKeyVectors];
    for (int v = 0; v < kKeyVectors; ++v) {
      keys[v] = load(keys_transposed + i * kMaxPageTokens + v * kLanes);
    }
    for (int r = 0; r < R; ++r) {
      const Vec query = splat(queries[r * padded + i]);
      for (int v = 0; v < kKeyVectors; ++v) {
        sum[r][v] += query * keys[v];
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < kKeyVectors; ++v) {
      store(weights + r * kMaxPageTokens + v * kLanes, sum[r][v]);
    }
  }
}

/// The keys [begin, end) that a row sees: of a page, perhaps none.
struct VisibleKeys {
  int64_t begin;
  int64_t end;
};

/// The positions that token `token` of the task sees.
inline VisibleKeys visible_positions(const AttentionTask& task, int64_t token) {
  const int64_t position = task.position + token;
  VisibleKeys keys{0, task.bidirectional ? task.cached : position + 1};
  if (task.window > 0) {
    const int64_t begin = position + 1 - task.window;
    const int64_t end = position + task.window;
    if (begin > 0) keys.begin = begin;
    if (end < keys.end) keys.end = end;
  }
  return keys;
}

/// Of the page from position `first` on, by token `token` of the task.
inline VisibleKeys visible_keys(const AttentionTask& task, int64_t token, int64_t first) {
  const VisibleKeys keys = visible_positions(task, token);
  const int64_t begin = keys.begin - first;
  const int64_t end = keys.end - first;
  return {begin > 0 ? begin : 0, end < kMaxPageTokens ? end : kMaxPageTokens};
}

/// The changes of a rule to a row's scores of a page: the soft cap, then `slope` for each position
/// between key and query; the key of column 0 is `distance` (negative where later) before the
/// query.
inline void change_scores(float soft_cap, float slope, int64_t distance, float* scores) {
  for (int64_t j = 0; j < kMaxPageTokens; j += kLanes) {
    Vec score = load(scores + j);
    if (soft_cap != 0) score = soft_cap * hyperbolic_tangent(score / soft_cap);
    if (slope != 0) {
      IntVec lanes;
      for (int i = 0; i < kLanes; ++i) lanes[i] = i;
      const Vec behind = __builtin_convertvector(lanes + static_cast<int32_t>(j - distance), Vec);
      score -= slope * larger(behind, -behind);
    }
    store(scores + j, score);
  }
}

/// Adds the bias of each key's distance, as AttentionRule has it. The key of column 0 is `distance`
/// (negative where later) before the query.
inline void add_bias(const float* bias, int64_t reach, int64_t distance, float* scores) {
  if (distance <= reach && kMaxPageTokens - 1 - distance <= reach) {  // all keys within reach
    const float* own = bias + (reach - distance);
    for (int64_t j = 0; j < kMaxPageTokens; j += kLanes) {
      store(scores + j, load(scores + j) + load(own + j));
    }
    return;
  }
  for (int64_t j = 0; j < kMaxPageTokens; ++j) {
    int64_t ahead = j - distance;
    if (ahead < -reach) ahead = -reach;
    if (ahead > reach) ahead = reach;
    scores[j] += bias[reach + ahead];
  }
}

/// Scores become weights relative to the row's new largest score; returns what earlier sums shrink
/// by.
inline float soften(float* weights, VisibleKeys keys, float& largest, float& total) {
  if (keys.begin >= keys.end) {
    for (int64_t j = 0; j < kMaxPageTokens; ++j) weights[j] = 0;
    return 1;
  }
  for (int64_t j = 0; j < keys.begin; ++j) weights[j] = -__builtin_inff();
  for (int64_t j = keys.end; j < kMaxPageTokens; ++j) weights[j] = -__builtin_inff();
  Vec top = load(weights);
  for (int v = 1; v < kKeyVectors; ++v) {
    top = larger(load(weights + v * kLanes), top);
  }
  const float page_largest = largest_lane(top);
  const float new_largest = page_largest > largest ? page_largest : largest;  // finite
  const float shrink = exponential(splat(largest - new_largest))[0];
  Vec page_total = {};
  for (int v = 0; v < kKeyVectors; ++v) {
    const Vec weight = exponential(load(weights + v * kLanes) - new_largest);
    store(weights + v * kLanes, weight);
    page_total += weight;
  }
  largest = new_largest;
  total = total * shrink + sum_of_lanes(page_total);
  return shrink;
}

/// sums [R, V vectors] = sums * shrink + weights [R, keys] · values.
template <int R, int V>
inline void add_values(const float* weights, const float* values, int64_t keys, int64_t padded,
                       const float* shrink, float* sums) {
  Vec sum[R][V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) {
      sum[r][v] = load(sums + r * padded + v * kLanes) * shrink[r];
    }
  }
  for (int64_t j = 0; j < keys; ++j) {
    Vec value[V];
    for (int v = 0; v < V; ++v) {
      value[v] = load(values + j * padded + v * kLanes);
    }
    for (int r = 0; r < R; ++r) {
      const Vec weight = splat(weights[r * kMaxPageTokens + j]);
      for (int v = 0; v < V; ++v) {
        sum[r][v] += weight * value[v];
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) {
      store(sums + r * padded + v * kLanes, sum[r][v]);
    }
  }
}

/// Row i of a task is token i / group, head i % group; rows up to the next kRowBlock are zero.
inline void prepare_rows(const AttentionTask& task, int64_t padded, const AttentionScratch& s) {
  const int64_t dim = task.head_dim;
  const int64_t rows = int64_t{task.tokens} * task.group;
  const int64_t rounded = (rows + kRowBlock - 1) / kRowBlock * kRowBlock;
  // A sink is a score that has been seen already.
  for (int64_t row = 0; row < rounded; ++row) {
    s.largest[row] = task.sinks != nullptr ? task.sinks[row % task.group] : -__builtin_inff();
    s.total[row] = task.sinks != nullptr ? 1 : 0;
  }
  for (int64_t i = 0; i < rounded * padded; ++i) {
    s.sums[i] = 0;
    s.queries[i] = 0;
  }
  for (int64_t row = 0; row < rows; ++row) {
    const float* q = task.q + (row / task.group) * task.q_stride + (row % task.group) * dim;
    for (int64_t i = 0; i < dim; ++i) {
      s.queries[row * padded + i] = q[i] * task.scale;
    }
  }
}

/// R rows of a task, from `row` on, and a page of keys, which begin at position `first`.
template <int R>
inline void attend_rows(const AttentionTask& task, const AttentionScratch& s, int64_t padded,
                        int64_t row, int64_t first, int64_t keys) {
  const int64_t rows = int64_t{task.tokens} * task.group;
  const bool changes_scores = task.soft_cap != 0 || task.slopes != nullptr;
  float* weights = s.weights + row * kMaxPageTokens;
  score_block<R>(s.queries + row * padded, s.keys_transposed, padded, task.head_dim, weights);
  float shrink[R];
  for (int r = 0; r < R; ++r) {
    const int64_t real = row + r < rows ? row + r : rows - 1;
    const int64_t token = real / task.group;
    float* scores = weights + r * kMaxPageTokens;
    if (changes_scores) {
      const float slope = task.slopes != nullptr ? task.slopes[real % task.group] : 0;
      change_scores(task.soft_cap, slope, task.position + token - first, scores);
    }
    if (task.bias != nullptr) {
      const float* bias = task.bias + real % task.group * (2 * task.bias_reach + 1);
      add_bias(bias, task.bias_reach, task.position + token - first, scores);
    }
    shrink[r] =
        soften(scores, visible_keys(task, token, first), s.largest[row + r], s.total[row + r]);
  }
  float* sums = s.sums + row * padded;
  int64_t i = 0;
  for (; i + 4 * kLanes <= padded; i += 4 * kLanes) {
    add_values<R, 4>(weights, s.values + i, keys, padded, shrink, sums + i);
  }
  for (; i < padded; i += kLanes) {
    add_values<R, 1>(weights, s.values + i, keys, padded, shrink, sums + i);
  }
}

void attend(const AttentionTask& task) {
  const int64_t dim = task.head_dim;
  const int64_t padded = (dim + kLanes - 1) / kLanes * kLanes;
  const int64_t rows = int64_t{task.tokens} * task.group;
  const AttentionScratch s(task.scratch, padded);
  prepare_rows(task, padded, s);

  const int64_t begin = visible_positions(task, 0).begin / task.page_tokens * task.page_tokens;
  const int64_t end = visible_positions(task, task.tokens - 1).end;
  for (int64_t first = begin; first < end; first += task.page_tokens) {
    const int64_t left = end - first;
    const int64_t keys = left < task.page_tokens ? left : task.page_tokens;
    const int64_t offset = task.pages[first / task.page_tokens] * task.page_stride;
    load_page(task.k, task.type, offset, keys, dim, padded, s.keys);
    transpose_keys(s.keys, padded, keys, s.keys_transposed);
    load_page(task.v, task.type, offset, keys, dim, padded, s.values);
    if (rows == 1) {  // in decode, where no heads share keys
      attend_rows<1>(task, s, padded, 0, first, keys);
      continue;
    }
    for (int64_t row = 0; row < rows; row += kRowBlock) {
      attend_rows<kRowBlock>(task, s, padded, row, first, keys);
    }
  }
  for (int64_t row = 0; row < rows; ++row) {
    float* out = task.out + (row / task.group) * task.out_stride + (row % task.group) * dim;
    const float inverse = 1.0F / s.total[row];
    for (int64_t i = 0; i < dim; ++i) {
      out[i] = s.sums[row * padded + i] * inverse;
    }
  }
}

}  // namespace
}  // namespace faststream
