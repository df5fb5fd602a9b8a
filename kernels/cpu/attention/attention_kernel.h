// Attention of a block of queries over KV pages with an online softmax (arXiv:2205.14135), for the
// vectors of the including file's instruction set.
//
// A page of keys is transposed once for all rows (tokens x query heads of the group), so that
// scores need no horizontal sums: lanes are keys in the scores and dimensions in the values. The
// next page, of this task or the next one, is prefetched meanwhile: decode reads each page once,
// from memory, for which it would wait most of the time.
#pragma once

#include "kernels/cpu/isa/kernels.h"
#include "kernels/cpu/isa/simd.h"

namespace faststream {
namespace {

constexpr int kRowBlock = kLanes == 16 ? 4 : 2;  // rows whose sums stay in registers
constexpr int kKeyVectors = kMaxPageTokens / kLanes;
constexpr int kScoreSums = kLanes == 16 ? 2 : 1;  // of each score
static_assert(kMaxPageTokens % kLanes == 0 && kMaxAttentionRows % kRowBlock == 0);

inline int64_t whole_vectors(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

/// AttentionTask::scratch, carved up.
struct AttentionScratch {
  explicit AttentionScratch(const AttentionTask& task)
      : k_padded(whole_vectors(task.head_dim)),
        v_padded(whole_vectors(task.v_head_dim)),
        queries(task.scratch),
        sums(queries + kMaxAttentionRows * k_padded),
        keys_transposed(sums + kMaxAttentionRows * v_padded),
        values(keys_transposed + kMaxPageTokens * (k_padded + 48)),
        weights(values + kMaxPageTokens * v_padded),
        k_scales(weights + kMaxAttentionRows * kMaxPageTokens),
        v_scales(k_scales + kMaxPageTokens),
        largest(v_scales + kMaxPageTokens),
        total(largest + kMaxAttentionRows) {}

  int64_t k_padded;        // head_dim in whole vectors
  int64_t v_padded;        // likewise v_head_dim
  float* queries;          // [rows, k_padded], scaled
  float* sums;             // [rows, v_padded] of weighted values
  float* keys_transposed;  // [k_padded + 48, kMaxPageTokens]: a turn may write 64 dimensions
  float* values;           // [kMaxPageTokens, v_padded]
  float* weights;          // [rows, kMaxPageTokens]
  float* k_scales;         // [kMaxPageTokens] of a page's keys, where they are codes
  float* v_scales;         // likewise
  float* largest;          // [rows] score so far
  float* total;            // [rows] of weights so far
};

/// Whether a page has codes, and their scales behind them.
template <class T>
constexpr bool kIsCoded = sizeof(T) == 1;

template <class T>
inline void widen_values(const T* from, int64_t keys, int64_t stride, int64_t dim, int64_t padded,
                         float* to) {
  for (int64_t j = 0; j < keys; ++j) {
    for (int64_t i = 0; i < padded; i += kLanes) {
      store(to + j * padded + i, i + kLanes <= dim ? widen(from + j * stride + i)
                                                   : widen_some(from + j * stride + i, dim - i));
    }
  }
}

#if defined(__AVX512F__)
// Rows of `transposed` from words of each key: of one dimension, of two, or of four.

inline void store_dimensions(const float*, __m512i words, float* transposed) {
  store(transposed, reinterpret_cast<Vec>(words));
}

inline void store_dimensions(const StoredBf16*, __m512i words, float* transposed) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000U));
  store(transposed, reinterpret_cast<Vec>(_mm512_slli_epi32(words, 16)));
  store(transposed + kMaxPageTokens, reinterpret_cast<Vec>(_mm512_and_si512(words, upper)));
}

inline void store_dimensions(const StoredF16*, __m512i words, float* transposed) {
  const auto widen_lower = [](__m512i v) {
    return reinterpret_cast<Vec>(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)));
  };
  store(transposed, widen_lower(words));
  store(transposed + kMaxPageTokens, widen_lower(_mm512_srli_epi32(words, 16)));
}

inline void store_dimensions(const int8_t*, __m512i words, float* transposed) {
  const auto widen_upper = [](__m512i v) {
    return reinterpret_cast<Vec>(_mm512_cvtepi32_ps(_mm512_srai_epi32(v, 24)));
  };
  store(transposed, widen_upper(_mm512_slli_epi32(words, 24)));
  store(transposed + kMaxPageTokens, widen_upper(_mm512_slli_epi32(words, 16)));
  store(transposed + 2 * kMaxPageTokens, widen_upper(_mm512_slli_epi32(words, 8)));
  store(transposed + 3 * kMaxPageTokens, widen_upper(words));
}

inline void store_dimensions(const StoredE4m3*, __m512i words, float* transposed) {
  const auto bytes = reinterpret_cast<WordVec>(words);
  store(transposed, widen_e4m3(bytes));
  store(transposed + kMaxPageTokens, widen_e4m3(bytes >> 8));
  store(transposed + 2 * kMaxPageTokens, widen_e4m3(bytes >> 16));
  store(transposed + 3 * kMaxPageTokens, widen_e4m3(bytes >> 24));
}
#endif

/// keys [count, dim] to [dim, kMaxPageTokens]. Columns past `count` are anything: their scores are
/// overwritten.
template <class T>
inline void transpose_keys(const T* keys, int64_t count, int64_t dim, float* transposed) {
#if defined(__AVX512F__)
  constexpr int64_t kInWord = 4 / sizeof(T);
  for (int64_t i = 0; i < dim; i += 16 * kInWord) {
    const int64_t bytes = (dim - i) * static_cast<int64_t>(sizeof(T));
    const __mmask64 mask = ~__mmask64{0} >> (bytes < 64 ? 64 - bytes : 0);
    for (int64_t j = 0; j < count; j += 16) {
      __m512i rows[16];
      for (int64_t r = 0; r < 16; ++r) {
        const int64_t key = j + r < count ? j + r : count - 1;
        rows[r] = _mm512_maskz_loadu_epi8(mask, keys + key * dim + i);
      }
      transpose16(rows);
      for (int64_t r = 0; r < 16; ++r) {
        store_dimensions(keys, rows[r], transposed + (i + r * kInWord) * kMaxPageTokens + j);
      }
    }
  }
#else
  for (int64_t j = 0; j < count; ++j) {
    for_vectors(dim, [&](int64_t i, int64_t n) {
      const T* from = keys + j * dim + i;
      const Vec v = n == kLanes ? widen(from) : widen_some(from, n);
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        transposed[(i + lane) * kMaxPageTokens + j] = v[lane];
      }
    });
  }
#endif
}

/// weights [R, kMaxPageTokens] = queries [R, padded] · keys. Dimensions go to the sums of a score
/// in turn: additions to one wait for each other.
template <int R>
inline void score_block(const float* queries, const float* keys_transposed, int64_t padded,
                        int64_t dim, float* weights) {
  Vec sums[kScoreSums][R][kKeyVectors] = {};
  const auto add_dimension = [&](int64_t i, Vec(&sum)[R][kKeyVectors]) {
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
  };
  int64_t i = 0;
  for (; i + kScoreSums <= dim; i += kScoreSums) {
    for (int n = 0; n < kScoreSums; ++n) add_dimension(i + n, sums[n]);
  }
  if (i < dim) add_dimension(i, sums[0]);
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < kKeyVectors; ++v) {
      Vec score = sums[0][r][v];
      if constexpr (kScoreSums == 2) score += sums[1][r][v];
      store(weights + r * kMaxPageTokens + v * kLanes, score);
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
    const int64_t begin =
        task.window_in_blocks ? position - position % task.window : position + 1 - task.window;
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

/// Adds what RelativeScores say to the scores of token `token` of the task, head `head` of its
/// heads, and the keys of the page from position `first` on.
inline void add_relative_scores(const AttentionTask& task, int64_t token, int64_t head,
                                int64_t first, int64_t keys, float* scores) {
  const int64_t reach = task.relative_reach;
  const int64_t before = first - (task.position + token);  // distance of the first key
  const float* of_query = task.relative_of_queries;
  if (of_query != nullptr) {
    of_query += token * task.relative_of_queries_stride + head * task.relative_count;
  }
  const float* of_key = task.relative_of_keys;
  if (of_key != nullptr) {
    of_key += first * task.relative_of_keys_stride + head * task.relative_count;
  }
  for (int64_t j = 0; j < keys; ++j) {
    int64_t distance = before + j;
    if (distance < -reach) distance = -reach;
    if (distance > reach) distance = reach;
    const int32_t vector = task.relative_vectors[reach + distance];
    float sum = 0;
    if (of_query != nullptr) sum += of_query[vector];
    if (of_key != nullptr) sum += of_key[j * task.relative_of_keys_stride + vector];
    scores[j] += task.scale * sum;
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
  const bool is_larger = new_largest > largest;
  const float shrink = is_larger ? exponential(splat(largest - new_largest))[0] : 1.0F;
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

/// sums [R, V vectors] = sums * shrink + weights [R, keys] · values, whose rows are `stride` apart.
template <int R, int V, class T>
inline void add_values(const float* weights, const T* values, int64_t keys, int64_t stride,
                       const float* shrink, float* sums, int64_t padded) {
  Vec sum[R][V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) {
      sum[r][v] = load(sums + r * padded + v * kLanes) * shrink[r];
    }
  }
  for (int64_t j = 0; j < keys; ++j) {
    Vec value[V];
    for (int v = 0; v < V; ++v) {
      value[v] = widen(values + j * stride + v * kLanes);
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

/// Row i of a task is token i / group, head i % group; those from there to `rounded` are zeros.
inline void prepare_rows(const AttentionTask& task, int64_t rounded, const AttentionScratch& s) {
  const int64_t dim = task.head_dim;
  const int64_t rows = int64_t{task.tokens} * task.group;
  // A sink is a score that has been seen already.
  for (int64_t row = 0; row < rounded; ++row) {
    s.largest[row] = task.sinks != nullptr ? task.sinks[row % task.group] : -__builtin_inff();
    s.total[row] = task.sinks != nullptr ? 1 : 0;
  }
  for (int64_t i = 0; i < rounded * s.v_padded; ++i) s.sums[i] = 0;
  for (int64_t i = 0; i < rounded * s.k_padded; ++i) s.queries[i] = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const float* q = task.q + (row / task.group) * task.q_stride + (row % task.group) * dim;
    for (int64_t i = 0; i < dim; ++i) {
      s.queries[row * s.k_padded + i] = q[i] * task.scale;
    }
  }
}

/// Keys and values of a page that a task sees.
template <class T>
struct Page {
  const T* k;
  const T* v;
  int64_t keys;   ///< 0: there is no page
  int64_t first;  ///< position
};

/// The page of a position, and the keys before `end`.
template <class T>
inline Page<T> page_of(const AttentionTask& task, int64_t first, int64_t end) {
  const int64_t left = end - first;
  if (left <= 0) return {};
  const int64_t page = task.pages[first / task.page_tokens];
  return {static_cast<const T*>(task.k) + page * task.k_page_stride,
          static_cast<const T*>(task.v) + page * task.v_page_stride,
          left < task.page_tokens ? left : task.page_tokens, first};
}

/// Of a task.
template <class T>
inline Page<T> first_page(const AttentionTask& task) {
  const int64_t begin = visible_positions(task, 0).begin / task.page_tokens * task.page_tokens;
  return page_of<T>(task, begin, visible_positions(task, task.tokens - 1).end);
}

template <class T>
inline void prefetch_elements(const T* from, int64_t count) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
  for (int64_t i = 0; i < count; i += kLine) __builtin_prefetch(from + i, 0, 2);
}

/// The scales behind a page's codes, each of `dim` elements. Those past its keys are anything.
template <class T>
inline void widen_scales(const T* codes, const AttentionTask& task, int64_t dim, float* to) {
  const auto* scales = reinterpret_cast<const StoredBf16*>(codes + task.page_tokens * dim);
  for (int64_t j = 0; j < task.page_tokens; j += kLanes) store(to + j, widen(scales + j));
}

/// Each of a row's numbers of a page times its key's scale.
inline void multiply_by_scales(const float* scales, float* row) {
  for (int64_t j = 0; j < kMaxPageTokens; j += kLanes) {
    store(row + j, load(row + j) * load(scales + j));
  }
}

/// R rows of a task, from `row` on, and a page, whose values are at `values`, `stride` apart.
template <int R, class T, class Value>
inline void attend_rows(const AttentionTask& task, const AttentionScratch& s, int64_t row,
                        const Page<T>& page, const Value* values, int64_t stride) {
  const int64_t rows = int64_t{task.tokens} * task.group;
  const bool changes_scores = task.soft_cap != 0 || task.slopes != nullptr;
  float* weights = s.weights + row * kMaxPageTokens;
  score_block<R>(s.queries + row * s.k_padded, s.keys_transposed, s.k_padded, task.head_dim,
                 weights);
  float shrink[R];
  for (int r = 0; r < R; ++r) {
    const int64_t real = row + r < rows ? row + r : rows - 1;
    const int64_t token = real / task.group;
    const int64_t distance = task.position + token - page.first;
    float* scores = weights + r * kMaxPageTokens;
    if constexpr (kIsCoded<T>) multiply_by_scales(s.k_scales, scores);
    if (task.relative_vectors != nullptr) {
      add_relative_scores(task, token, real % task.group, page.first, page.keys, scores);
    }
    if (changes_scores) {
      const float slope = task.slopes != nullptr ? task.slopes[real % task.group] : 0;
      change_scores(task.soft_cap, slope, distance, scores);
    }
    if (task.bias != nullptr) {
      const float* bias = task.bias + real % task.group * (2 * task.bias_reach + 1);
      add_bias(bias, task.bias_reach, distance, scores);
    }
    shrink[r] =
        soften(scores, visible_keys(task, token, page.first), s.largest[row + r], s.total[row + r]);
    if constexpr (kIsCoded<T>) multiply_by_scales(s.v_scales, scores);
  }
  const int64_t padded = s.v_padded;
  float* sums = s.sums + row * padded;
  int64_t i = 0;
  for (; i + 4 * kLanes <= padded; i += 4 * kLanes) {
    add_values<R, 4>(weights, values + i, page.keys, stride, shrink, sums + i, padded);
  }
  for (; i < padded; i += kLanes) {
    add_values<R, 1>(weights, values + i, page.keys, stride, shrink, sums + i, padded);
  }
}

/// All rows of a task, R at a time, and pages of elements of type T.
template <int R, class T>
inline void attend_pages(const AttentionTask& task) {
  const int64_t v_dim = task.v_head_dim;
  const int64_t rows = int64_t{task.tokens} * task.group;
  const bool in_keys = task.v_stride != v_dim;
  // Passes over a page's values that take less than to widen these and read what that makes: those
  // of some tokens of a text.
  constexpr int64_t kMostDirect = kIsCoded<T> ? 1 : 8;
  const AttentionScratch s(task);
  prepare_rows(task, (rows + R - 1) / R * R, s);

  const int64_t end = visible_positions(task, task.tokens - 1).end;
  for (Page<T> page = first_page<T>(task); page.keys > 0;) {
    const Page<T> next = page_of<T>(task, page.first + task.page_tokens, end);
    const Page<T> ahead = next.keys == 0 && task.next != nullptr ? first_page<T>(*task.next) : next;
    prefetch_elements(ahead.k, ahead.keys * task.head_dim);
    transpose_keys(page.k, page.keys, task.head_dim, s.keys_transposed);
    if (!in_keys) prefetch_elements(ahead.v, ahead.keys * v_dim);
    if constexpr (kIsCoded<T>) {
      if (ahead.keys > 0) {
        prefetch_elements(ahead.k + task.page_tokens * task.head_dim, 1);
        prefetch_elements(ahead.v + task.page_tokens * v_dim, 1);
      }
      widen_scales(page.k, task, task.head_dim, s.k_scales);
      widen_scales(page.v, task, v_dim, s.v_scales);
    }
    if (rows <= kMostDirect * R && v_dim == s.v_padded) {
      for (int64_t row = 0; row < rows; row += R) {
        attend_rows<R>(task, s, row, page, page.v, task.v_stride);
      }
    } else {
      widen_values(page.v, page.keys, task.v_stride, v_dim, s.v_padded, s.values);
      for (int64_t row = 0; row < rows; row += R) {
        attend_rows<R>(task, s, row, page, s.values, s.v_padded);
      }
    }
    page = next;
  }
  for (int64_t row = 0; row < rows; ++row) {
    float* out = task.out + (row / task.group) * task.out_stride + (row % task.group) * v_dim;
    const float inverse = 1.0F / s.total[row];
    for (int64_t i = 0; i < v_dim; ++i) {
      out[i] = s.sums[row * s.v_padded + i] * inverse;
    }
  }
}

template <class T>
inline void attend_typed(const AttentionTask& task) {
  if (task.tokens * task.group == 1) {  // in decode, where no heads share keys
    attend_pages<1, T>(task);
  } else {
    attend_pages<kRowBlock, T>(task);
  }
}

void attend(const AttentionTask& task) {
  switch (task.format) {
    case KvFormat::int8:
      return attend_typed<int8_t>(task);
    case KvFormat::fp8:
      return attend_typed<StoredE4m3>(task);
    case KvFormat::plain:
      break;
  }
  switch (task.type) {
    case FloatType::f32:
      return attend_typed<float>(task);
    case FloatType::f16:
      return attend_typed<StoredF16>(task);
    case FloatType::bf16:
      return attend_typed<StoredBf16>(task);
  }
}

}  // namespace
}  // namespace faststream
