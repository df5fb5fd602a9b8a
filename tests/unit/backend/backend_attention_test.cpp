// Attention, compared with the plain float reference.
#include <array>
#include <string>
#include <utility>

#include "support/error.h"
#include "unit/backend/backend_weights.h"
#include "unit/effort.h"
#include "unit/normal.h"

namespace faststream {
namespace {

struct AttentionCase {
  int32_t n_heads = 1;
  int32_t n_kv_heads = 1;
  int32_t head_dim = 64;
  std::vector<TestSequence> sequences;
  int32_t window = 0;
  float soft_cap = 0;
  bool sinks = false;
  bool slopes = false;
  bool bidirectional = false;
  int32_t bias_reach = 0;  // 0: no bias
  int32_t value_dim = 0;   // 0: head_dim
  bool in_blocks = false;  // the window
  bool values_in_keys = false;
  int32_t relative_vectors = 0;  // of each head; 0: no relative scores
  bool relative_of_queries = true;
  bool relative_of_keys = true;
  bool one_by_one = false;  // the last sequence

  [[nodiscard]] int32_t v_head_dim() const { return value_dim == 0 ? head_dim : value_dim; }
  // Queries at the end of the batch that find what each would alone.
  [[nodiscard]] int32_t queries_alone() const {
    const int32_t queries = sequences.back().queries;
    return relative_vectors == 0 && (queries == 1 || one_by_one) ? queries : 0;
  }
};

std::string describe(const AttentionCase& shape) {
  std::string text = std::to_string(shape.n_heads) + "/" + std::to_string(shape.n_kv_heads) +
                     " heads of " + std::to_string(shape.head_dim) + "/" +
                     std::to_string(shape.v_head_dim()) + (shape.values_in_keys ? " in keys" : "") +
                     ", queries/cache";
  for (const TestSequence& s : shape.sequences) {
    text += " " + std::to_string(s.queries) + "/" + std::to_string(s.kv_len);
  }
  if (shape.window > 0) {
    text += (shape.in_blocks ? ", blocks of " : ", window ") + std::to_string(shape.window);
  }
  if (shape.soft_cap > 0) text += ", soft cap";
  if (shape.sinks) text += ", sinks";
  if (shape.slopes) text += ", slopes";
  if (shape.bidirectional) text += ", bidirectional";
  if (shape.bias_reach > 0) text += ", bias up to " + std::to_string(shape.bias_reach);
  if (shape.relative_vectors > 0) {
    text += ", " + std::to_string(shape.relative_vectors) + " relative scores";
    if (!shape.relative_of_queries) text += " of keys";
    if (!shape.relative_of_keys) text += " of queries";
  }
  return text;
}

class BackendAttention : public BackendTest {
 protected:
  void check_attention(WeightFormat weights, const AttentionCase& shape) {
    const DType act = backend_->activation_dtype(weights);
    const DType kv_type = backend_->kv_dtype(weights);
    const int64_t q_dim = int64_t{shape.n_heads} * shape.head_dim;
    const int64_t sums_dim = int64_t{shape.n_heads} * shape.v_head_dim();
    // Two pages more than needed, and whatever is not a sequence's own stays NaN: it must not be
    // read.
    const int32_t n_pages = pages_of(shape.sequences) + 2;
    Batch batch = make_batch(random_, shape.sequences, n_pages - 1);
    HostTensor k = make_cache(kv_type, shape.n_kv_heads, shape.head_dim, n_pages, batch);
    HostTensor v = make_cache(kv_type, shape.n_kv_heads,
                              shape.values_in_keys ? 0 : shape.v_head_dim(), n_pages, batch);
    if (shape.window > 0) pass_pages(batch, shape.window, n_pages - 1);
    batch.one_by_one.assign(shape.sequences.size(), 0);
    batch.one_by_one.back() = shape.one_by_one ? 1 : 0;
    const HostTensor whole_k = k;
    const HostTensor whole_v = v;
    const HostTensor qkv = take_new_tokens(
        batch, random_tensor(random_, act, batch.n_tokens(), q_dim, 0, 2), shape.n_kv_heads, k, v,
        shape.values_in_keys ? 0 : 8);  // rows of latents have no gaps, which one kernel needs
    const HostTensor sinks = random_tensor(random_, DType::f32, 1, shape.n_heads, 0, 3);
    const HostTensor slopes =
        random_tensor(random_, DType::f32, 1, shape.n_heads).map(DType::f32, [](float slope) {
          return std::abs(slope) / 8;
        });
    const HostTensor bias =
        random_tensor(random_, DType::f32, shape.n_heads, 2 * int64_t{shape.bias_reach} + 1, 0, 2);

    const int64_t relative_dim = int64_t{shape.n_heads} * shape.relative_vectors;
    const HostTensor of_queries = random_tensor(random_, act, batch.n_tokens(), relative_dim, 8, 2);
    const HostTensor of_keys = random_tensor(random_, act, batch.n_tokens(), relative_dim, 0, 2);
    const std::vector<int32_t> vectors = vectors_by_distance(shape.relative_vectors);

    const auto attend_in = [&](Backend& backend, const Batch& step, const HostTensor& rows,
                               const HostTensor& keys, const HostTensor& values, DType out_type) {
      const DeviceTensor device_k(backend, keys);
      const DeviceTensor device_v(backend, values);
      const DeviceTensor device_qkv(backend, rows);
      const DeviceTensor cos_sin(backend, HostTensor(DType::f32, step.n_tokens(), 0));
      const DeviceNumbers device_sinks(backend, shape.sinks ? &sinks : nullptr);
      const DeviceNumbers device_slopes(backend, shape.slopes ? &slopes : nullptr);
      const DeviceNumbers device_bias(backend, shape.bias_reach > 0 ? &bias : nullptr);
      const DeviceTensor out(backend, HostTensor(out_type, step.n_tokens(), sums_dim, 8));
      KvLayer kv{device_k.data(),  device_v.data(), kv_type,           n_pages,
                 shape.n_kv_heads, shape.head_dim,  shape.v_head_dim()};
      if (shape.values_in_keys) {
        kv.values_in_keys = true;
        kv.v = static_cast<std::byte*>(device_k.data()) +
               static_cast<size_t>(shape.head_dim - shape.v_head_dim()) * dtype_size(kv_type);
      }
      const DeviceTensor device_of_queries(backend, of_queries);
      const DeviceTensor device_of_keys(backend, of_keys);
      const Buffer device_vectors = backend.allocate(vectors.size() * sizeof(int32_t) + 1);
      backend.copy_to_device(device_vectors.get(), vectors.data(),
                             vectors.size() * sizeof(int32_t));
      RelativeScores relative;
      if (shape.relative_vectors > 0) {
        if (shape.relative_of_queries) relative.of_queries = device_of_queries.matrix();
        if (shape.relative_of_keys) relative.of_keys = device_of_keys.matrix();
        relative.vectors = reinterpret_cast<const int32_t*>(device_vectors.get());
        relative.reach = static_cast<int32_t>(vectors.size() / 2);
      }
      backend.attention(backend.upload(step), device_qkv.matrix(), cos_sin.matrix(), {}, kv,
                        {.scale = 1.0F / std::sqrt(static_cast<float>(shape.head_dim)),
                         .window = shape.window,
                         .window_in_blocks = shape.in_blocks,
                         .bidirectional = shape.bidirectional,
                         .soft_cap = shape.soft_cap,
                         .sinks = device_sinks.data(),
                         .slopes = device_slopes.data(),
                         .bias = device_bias.data(),
                         .bias_reach = shape.bias_reach,
                         .relative = shape.relative_vectors > 0 ? &relative : nullptr},
                        out.matrix());
      return out.fetch();
    };
    const auto attend = [&](Backend& backend, DType out_type) {
      return attend_in(backend, batch, qkv, k, v, out_type);
    };
    // Values are below kLargest: a probability rounded to act is off by a unit roundoff of itself,
    // all together by one of the largest value; then the result is rounded. Scores are float32
    // sums.
    constexpr double kLargest = 5;
    const HostTensor want = attend(*reference_, DType::f32);
    for (const auto& backend : backends_) {
      const std::string what = backend->description() + ": attention, " +
                               std::string(dtype_name(act)) + ", " + describe(shape);
      const HostTensor got = attend(*backend, act);
      expect_near(
          got, want, [&](int64_t, int64_t) { return kLargest * (2 * unit_roundoff(act) + 1e-5); },
          what);
      for (int32_t row = batch.n_tokens() - shape.queries_alone(); row < batch.n_tokens(); ++row) {
        expect_equal(attend_in(*backend, row_alone(batch, row), qkv.row_range(row, 1), whole_k,
                               whole_v, act),
                     got.row_range(row, 1), what + ", row " + std::to_string(row) + " alone");
      }
    }
  }

  /// Which of n vectors each distance has, up to 20: any.
  static std::vector<int32_t> vectors_by_distance(int32_t n) {
    std::vector<int32_t> vectors;
    for (int32_t i = 0; i < 41 && n > 0; ++i) vectors.push_back(i * i % n);
    return vectors;
  }

  struct LatentCase {
    int32_t n_heads = 1;
    int32_t rope_dim = 0;
    int32_t nope_dim = 1;
    int32_t value_dim = 1;
    int32_t rank = 1;
    std::vector<TestSequence> sequences;

    [[nodiscard]] int32_t kept_dim() const { return rope_dim + rank; }
  };

  void check_latent_attention(WeightFormat weights, const LatentCase& shape) {
    const DType act = backend_->activation_dtype(weights);
    const DType kv_type = backend_->kv_dtype(weights);
    const int32_t n_pages = pages_of(shape.sequences) + 2;
    const Batch batch = make_batch(random_, shape.sequences, n_pages - 1);
    HostTensor k = make_cache(kv_type, 1, shape.kept_dim(), n_pages, batch);
    HostTensor v(kv_type, n_pages, 0);
    const int64_t latent_q_dim = int64_t{shape.n_heads} * shape.kept_dim();
    const HostTensor latent_qkv =
        take_new_tokens(batch, HostTensor(act, batch.n_tokens(), latent_q_dim), 1, k, v, 0);
    const HostTensor queries =
        random_tensor(random_, act, batch.n_tokens(),
                      int64_t{shape.n_heads} * (shape.rope_dim + shape.nope_dim), 8);
    const HostTensor cos_sin = random_tensor(random_, DType::f32, batch.n_tokens(), shape.rope_dim);
    HostWeight keys =
        random_weight(random_, weights, int64_t{shape.n_heads} * shape.rank, shape.nope_dim);
    HostWeight values =
        random_weight(random_, weights, int64_t{shape.n_heads} * shape.value_dim, shape.rank);
    keys.rotated = values.rotated = false;
    const int64_t sums_dim = int64_t{shape.n_heads} * shape.value_dim;
    const auto attend = [&](Backend& backend, DType type) {
      const DeviceTensor device_k(backend, k);
      const DeviceTensor device_qkv(backend, latent_qkv);
      const DeviceTensor device_queries(backend, queries);
      const DeviceTensor device_cos_sin(backend, cos_sin);
      const DeviceWeight device_keys(backend, keys);
      const DeviceWeight device_values(backend, values);
      const DeviceTensor sums(
          backend, HostTensor(type, batch.n_tokens(), int64_t{shape.n_heads} * shape.rank));
      const DeviceTensor out(backend, HostTensor(type, batch.n_tokens(), sums_dim, 8));
      auto* latents = static_cast<std::byte*>(device_k.data()) +
                      static_cast<size_t>(shape.rope_dim) * dtype_size(kv_type);
      backend.latent_attention(backend.upload(batch), device_queries.matrix(),
                               device_cos_sin.matrix(),
                               {.n_heads = shape.n_heads,
                                .rope_dim = shape.rope_dim,
                                .keys = device_keys.weight(),
                                .values = device_values.weight()},
                               {.k = device_k.data(),
                                .v = latents,
                                .dtype = kv_type,
                                .n_pages = n_pages,
                                .n_kv_heads = 1,
                                .head_dim = shape.kept_dim(),
                                .v_head_dim = shape.rank,
                                .values_in_keys = true},
                               {.scale = 1.0F / static_cast<float>(shape.rank + shape.rope_dim)},
                               device_qkv.matrix(), sums.matrix(), out.matrix());
      return out.fetch();
    };
    const HostTensor want = attend(*reference_, DType::f32);
    double largest = 0;
    for (int64_t r = 0; r < want.rows; ++r) {
      for (int64_t c = 0; c < want.cols; ++c) {
        largest = std::max<double>(largest, std::abs(want.at(r, c)));
      }
    }
    for (const auto& backend : backends_) {
      expect_near(
          attend(*backend, act), want,
          [&](int64_t, int64_t) { return largest * (6 * unit_roundoff(act) + 1e-5); },
          backend->description() + ": latent attention, " + std::string(dtype_name(act)) + ", " +
              std::to_string(shape.n_heads) + " heads of latents of " + std::to_string(shape.rank));
    }
  }

  /// A batch of one row of the last sequence of another.
  static Batch row_alone(const Batch& batch, int32_t row) {
    const auto at = static_cast<size_t>(row);
    Batch alone;
    alone.add_sequence({&batch.tokens[at], 1}, batch.positions[at]);
    alone.max_pages = batch.max_pages;
    alone.page_table.assign(batch.page_table.end() - batch.max_pages, batch.page_table.end());
    return alone;
  }

  /// Sequences of some tokens look at sources of some tokens, whose keys and values are appended;
  /// each source has `beams` of them in a row.
  void check_cross_attention(WeightFormat weights, int32_t n_heads, int32_t n_kv_heads, int32_t dim,
                             const std::vector<std::pair<int32_t, int32_t>>& queries_and_sources,
                             int32_t beams = 1, float soft_cap = 0) {
    const DType act = backend_->activation_dtype(weights);
    const DType kv_type = backend_->kv_dtype(weights);
    const int64_t q_dim = int64_t{n_heads} * dim;
    std::vector<TestSequence> sequences;
    std::vector<TestSequence> sources;
    for (const auto& [queries, source] : queries_and_sources) {
      for (int32_t i = 0; i < beams; ++i) sequences.push_back({queries, queries});
      sources.push_back({source, source});
    }
    const int32_t n_pages = pages_of(sources) + 1;
    Batch batch = make_batch(random_, sequences, pages_of(sequences));
    const Batch read = make_batch(random_, sources, n_pages);
    batch.max_source_pages = read.max_pages;
    for (size_t s = 0; s < sequences.size(); ++s) {
      const auto source = static_cast<ptrdiff_t>(s) / beams;
      const auto row = read.page_table.begin() + source * read.max_pages;
      batch.source_len.push_back(read.kv_len[static_cast<size_t>(source)]);
      batch.source_pages.insert(batch.source_pages.end(), row, row + read.max_pages);
    }
    const HostTensor q = random_tensor(random_, act, batch.n_tokens(), q_dim, 8, 2);
    const HostTensor rows =
        random_tensor(random_, act, read.n_tokens(), 2 * int64_t{n_kv_heads} * dim, 8);
    HostTensor empty(kv_type, n_pages, int64_t{n_kv_heads} * kPageTokens * dim);
    for (int64_t r = 0; r < empty.rows; ++r) {
      for (int64_t c = 0; c < empty.cols; ++c) empty.set(r, c, std::nanf(""));
    }
    const auto attend = [&](Backend& backend, DType out_type) {
      const DeviceTensor k(backend, empty);
      const DeviceTensor v(backend, empty);
      const DeviceTensor device_rows(backend, rows);
      const DeviceTensor device_q(backend, q);
      const DeviceTensor out(backend, HostTensor(out_type, batch.n_tokens(), q_dim, 8));
      const KvLayer kv{k.data(), v.data(), kv_type, n_pages, n_kv_heads, dim, dim};
      backend.append(backend.upload(read), device_rows.matrix(), kv);
      backend.attention(view_of_sources(backend.upload(batch)), device_q.matrix(),
                        {nullptr, DType::f32, batch.n_tokens(), 0}, {}, kv,
                        {.scale = 1.0F / std::sqrt(static_cast<float>(dim)),
                         .bidirectional = true,
                         .soft_cap = soft_cap},
                        out.matrix());
      return out.fetch();
    };
    const HostTensor want = attend(*reference_, DType::f32);
    for (const auto& backend : backends_) {
      expect_near(
          attend(*backend, act), want,
          [&](int64_t, int64_t) { return 5 * (2 * unit_roundoff(act) + 1e-5); },
          backend->description() + ": cross attention, " + std::string(dtype_name(act)) +
              ", heads of " + std::to_string(dim));
    }
  }

  /// Queries, and the keys and values of the same tokens, which the caches have no more: NaN.
  static HostTensor take_new_tokens(const Batch& batch, const HostTensor& q, int64_t n_kv_heads,
                                    HostTensor& k, HostTensor& v, int64_t padding = 8) {
    HostTensor qkv(q.dtype, q.rows, q.cols + (k.cols + v.cols) / kPageTokens, padding);
    for (int64_t t = 0; t < q.rows; ++t) {
      for (int64_t c = 0; c < q.cols; ++c) qkv.set(t, c, q.at(t, c));
      const auto token = static_cast<size_t>(t);
      const int32_t position = batch.positions[token];
      const int32_t page = batch.page_table[static_cast<size_t>(
          batch.sequence_of[token] * batch.max_pages + position / kPageTokens)];
      int64_t column = q.cols;
      for (HostTensor* cache : {&k, &v}) {
        const int64_t dim = cache->cols / n_kv_heads / kPageTokens;
        for (int64_t c = 0; c < n_kv_heads * dim; ++c) {
          const int64_t at = (c / dim * kPageTokens + position % kPageTokens) * dim + c % dim;
          qkv.set(t, column++, cache->at(page, at));
          cache->set(page, at, std::nanf(""));
        }
      }
    }
    return qkv;
  }

  /// Lets `page` stand for pages that windows have passed: they may be another sequence's now.
  static void pass_pages(Batch& batch, int32_t window, int32_t page) {
    for (int32_t s = 0; s < batch.n_sequences(); ++s) {
      const auto sequence = static_cast<size_t>(s);
      const int32_t queries = batch.query_start[sequence + 1] - batch.query_start[sequence];
      const int32_t passed = std::max(0, batch.kv_len[sequence] - queries + 1 - window);
      std::fill_n(batch.page_table.begin() + s * batch.max_pages, passed / kPageTokens, page);
    }
  }

  /// [pages, heads · tokens · dim] with numbers in (-5, 5) where the batch's sequences have tokens.
  HostTensor make_cache(DType type, int32_t n_kv_heads, int32_t dim, int32_t n_pages,
                        const Batch& batch) {
    HostTensor cache(type, n_pages, int64_t{n_kv_heads} * kPageTokens * dim);
    Normal normal;
    for (int32_t s = 0; s < batch.n_sequences(); ++s) {
      for (int32_t position = 0; position < batch.kv_len[static_cast<size_t>(s)]; ++position) {
        const int32_t page =
            batch.page_table[static_cast<size_t>(s) * static_cast<size_t>(batch.max_pages) +
                             static_cast<size_t>(position / kPageTokens)];
        for (int32_t head = 0; head < n_kv_heads; ++head) {
          for (int32_t d = 0; d < dim; ++d) {
            cache.set(page, (int64_t{head} * kPageTokens + position % kPageTokens) * dim + d,
                      std::clamp(normal(random_), -4.9F, 4.9F));
          }
        }
      }
    }
    return cache;
  }
};

TEST_P(BackendAttention, DecodeAgreesAtPageBorders) {
  for (const WeightFormat weights : kFloatFormats) {
    for (const int32_t kv_len : {1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 500}) {
      check_attention(weights, {4, 4, 64, {{1, kv_len}}});
    }
  }
}

TEST_P(BackendAttention, PrefillAgreesAtPageBordersAndInChunks) {
  for (const WeightFormat weights : kFloatFormats) {
    for (const int32_t queries : {2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 130}) {
      check_attention(weights, {2, 2, 64, {{queries, queries}}});
      check_attention(weights, {2, 2, 64, {{queries, queries + 37}}});
    }
  }
}

// Whatever kernels take them.
TEST_P(BackendAttention, TokensOneByOneFindWhatEachWouldAlone) {
  for (const WeightFormat weights : kFloatFormats) {
    AttentionCase shape{4, 2, 64, {}};
    shape.one_by_one = true;
    for (const std::vector<TestSequence>& sequences : {std::vector<TestSequence>{{3, 34}},
                                                       {{1, 90}, {16, 300}},
                                                       {{70, 70}, {2, 9}, {17, 40}, {5, 1100}}}) {
      shape.sequences = sequences;
      for (const int32_t dim : {20, 64, 128, 256, 512}) {
        if (kSanitized && dim > 64) continue;
        AttentionCase of_dim = shape;
        of_dim.head_dim = dim;
        check_attention(weights, of_dim);
      }
      AttentionCase varied = shape;
      varied.window = 40;
      varied.soft_cap = 2.5F;
      varied.sinks = varied.slopes = true;
      check_attention(weights, varied);
      AttentionCase in_blocks = shape;
      in_blocks.window = 33;
      in_blocks.in_blocks = true;
      check_attention(weights, in_blocks);
      AttentionCase biased = shape;
      biased.bias_reach = 20;
      check_attention(weights, biased);
      AttentionCase latent = shape;
      latent.n_heads = 20;
      latent.n_kv_heads = 1;
      latent.head_dim = 192;
      latent.value_dim = 128;
      latent.values_in_keys = true;
      check_attention(weights, latent);
    }
  }
}

// A cache is split up to 32 times; the parts of all sequences need room for 32 each.
TEST_P(BackendAttention, AgreesForManySequencesBesideALongOne) {
  std::vector<TestSequence> sequences(300, {1, 5});
  sequences[270] = {1, 4200};
  for (const WeightFormat weights : {WeightFormat::f32, WeightFormat::f16}) {
    check_attention(weights, {on_gpu() ? 64 : 4, 1, 128, sequences});
  }
}

// So many that warps of a GPU take several heads of a sequence.
TEST_P(BackendAttention, AgreesForVeryManyShortSequences) {
  std::vector<TestSequence> sequences;
  for (int32_t i = 0; i < (on_gpu() ? 1030 : 100); ++i) sequences.push_back({1, 1 + i % 49});
  sequences[500 % sequences.size()] = {3, 40};
  check_attention(WeightFormat::f16, {4, 4, 16, sequences});
  check_attention(WeightFormat::f16, {8, 4, 24, sequences});
  check_attention(WeightFormat::f16, {8, 4, 24, sequences, 20});
  std::vector<std::pair<int32_t, int32_t>> sources;
  for (int32_t i = 0; i < (on_gpu() ? 200 : 20); ++i) sources.push_back({1, 64 - i % 64});
  check_cross_attention(WeightFormat::f16, 8, 8, 64, sources, 4);
}

TEST_P(BackendAttention, AgreesForEveryHeadDimension) {
  for (const WeightFormat weights : kFloatFormats) {
    for (const int32_t dim : {2, 6, 8, 16, 20, 48, 64, 80, 96, 112, 128, 192, 250, 256, 390, 512}) {
      check_attention(weights, {2, 1, dim, {{1, 70}, {1, 200}}});
      check_attention(weights, {2, 1, dim, {{40, 70}}});
    }
  }
}

TEST_P(BackendAttention, AgreesForEveryRatioOfQueryToKvHeads) {
  for (const WeightFormat weights : kFloatFormats) {
    for (const int32_t group : {1, 2, 3, 4, 5, 7, 8, 12, 16, 70}) {
      check_attention(weights, {2 * group, 2, 32, {{1, 100}, {1, 33}}});
      check_attention(weights, {2 * group, 2, 32, {{35, 100}}});
    }
  }
}

TEST_P(BackendAttention, AgreesForMixedPacksOfPrefillAndDecode) {
  for (const WeightFormat weights : kFloatFormats) {
    check_attention(weights, {4, 2, 64, {{1, 1}, {70, 70}, {1, 333}, {2, 2}, {33, 100}, {1, 64}}});
    check_attention(weights, {4, 4, 128, {{1, 700}, {65, 65}, {1, 5}}});
  }
}

TEST_P(BackendAttention, AgreesOverLongContexts) {
  for (const WeightFormat weights : kFloatFormats) {
    check_attention(weights, {8, 2, 128, {{1, 4097}, {1, 2500}, {1, 1}}});
    check_attention(weights, {2, 1, 64, {{20, 3000}}});
  }
}

TEST_P(BackendAttention, PrefillAgreesOverManyTiles) {
  for (const WeightFormat weights : kFloatFormats) {
    for (const int32_t dim : {64, 128, 256, 512}) {
      if (kSanitized && dim > 128) break;
      check_attention(weights, {4, 2, dim, {{300, 300}, {1, 5}, {129, 1000}, {256, 384}}});
    }
  }
}

TEST_P(BackendAttention, AgreesForBlocksAtAndBesidePageBorders) {
  for (const WeightFormat weights : kFloatFormats) {
    for (const int32_t block : {1, 3, 31, 32, 33, 64, 100, 1000}) {
      AttentionCase shape{4, 2, 64, {{1, 1}, {1, 32}, {1, 33}, {1, 300}, {1, 64}}, block};
      shape.in_blocks = true;
      check_attention(weights, shape);
      shape.sequences = {{40, 40}, {130, 300}, {2, 97}};
      check_attention(weights, shape);
    }
    AttentionCase long_text{8, 1, 128, {{1, 1500}, {1, 1}, {300, 1400}}, 500};
    long_text.in_blocks = true;
    check_attention(weights, long_text);
  }
}

TEST_P(BackendAttention, AgreesForWindowsAtPageBorders) {
  for (const WeightFormat weights : kFloatFormats) {
    for (const int32_t window : {1, 2, 31, 32, 33, 64, 100, 1000}) {
      if (kSanitized && (window == 2 || window == 31 || window == 100)) continue;
      check_attention(weights, {4, 2, 64, {{1, 1}, {1, 32}, {1, 33}, {1, 300}, {1, 64}}, window});
      check_attention(weights, {4, 2, 64, {{40, 40}, {130, 300}, {2, 97}}, window});
    }
    check_attention(weights, {8, 1, 128, {{1, 1500}, {1, 1}}, 128});
    for (const int32_t dim : {64, 128, 256, 512}) {
      check_attention(weights, {2, 2, dim, {{150, 900}}, 257});
    }
  }
}

TEST_P(BackendAttention, AgreesForEveryRule) {
  for (const WeightFormat weights : kFloatFormats) {
    for (int rule = 1; rule < 16; ++rule) {
      for (const std::vector<TestSequence>& sequences :
           {std::vector<TestSequence>{{1, 1}, {1, 200}, {1, 33}}, {{70, 70}, {9, 150}}}) {
        check_attention(weights, {6, 2, 64, sequences, (rule & 1) != 0 ? 50 : 0,
                                  (rule & 2) != 0 ? 2.5F : 0.0F, (rule & 4) != 0, (rule & 8) != 0});
      }
    }
  }
}

TEST_P(BackendAttention, RulesHoldForEveryHeadDimensionAndOverLongContexts) {
  for (const WeightFormat weights : kFloatFormats) {
    for (const int32_t dim : {6, 80, 96, 128, 250, 256, 512}) {
      check_attention(weights, {3, 1, dim, {{1, 70}, {1, 200}, {40, 70}}, 64, 5, true, true});
    }
    check_attention(weights, {8, 1, 512, {{1, 1300}, {1, 5}, {33, 700}}});
    check_attention(weights, {8, 2, 128, {{1, 1300}, {1, 700}}, 0, 30, true, true});
    check_attention(weights, {70, 1, 32, {{1, 100}, {33, 100}}, 40, 0, true, true});
  }
}

TEST_P(BackendAttention, AgreesWhereTokensSeeLaterOnes) {
  for (const WeightFormat weights : kFloatFormats) {
    for (const int32_t dim : {20, 32, 64, 128, 256}) {
      if (kSanitized && dim != 20 && dim != 64) continue;
      for (const int32_t window : {0, 1, 33, 65, 200}) {
        AttentionCase shape{3, 1, dim, {{1, 1}, {33, 33}, {2, 2}, {300, 300}, {128, 128}}, window};
        shape.bidirectional = true;
        check_attention(weights, shape);
      }
    }
    AttentionCase all_rules{4, 4, 64, {{1, 1}, {200, 200}, {65, 65}}, 40, 2.5F, true, true, true};
    check_attention(weights, all_rules);
    all_rules.sequences = {{40, 300}, {1, 70}};
    check_attention(weights, all_rules);
  }
}

TEST_P(BackendAttention, AgreesWithSlopesInBothDirections) {
  for (const WeightFormat weights : kFloatFormats) {
    for (const int32_t dim : {20, 64, 128}) {
      if (kSanitized && dim == 128) continue;
      AttentionCase shape{3, 3, dim, {{1, 1}, {33, 33}, {2, 2}, {300, 300}, {128, 128}}};
      shape.slopes = shape.bidirectional = true;
      check_attention(weights, shape);
    }
  }
}

TEST_P(BackendAttention, AgreesWithABiasOfDistances) {
  for (const WeightFormat weights : kFloatFormats) {
    for (const int32_t dim : {20, 64, 128}) {
      if (kSanitized && dim == 128) continue;
      for (const bool bidirectional : {false, true}) {
        AttentionCase shape{4, 2, dim, {{1, 1}, {33, 33}, {1, 300}, {150, 200}, {65, 65}}};
        shape.bidirectional = bidirectional;
        for (const int32_t reach : {1, 20, 128}) {
          shape.bias_reach = reach;
          check_attention(weights, shape);
        }
      }
    }
  }
}

TEST_P(BackendAttention, AgreesWithScoresOfRelativePositions) {
  for (const WeightFormat weights : kFloatFormats) {
    for (const int32_t dim : {20, 64}) {
      AttentionCase shape{3, 3, dim, {{1, 1}, {33, 33}, {2, 2}, {150, 150}, {64, 64}}};
      shape.bidirectional = true;
      for (const int32_t vectors : {1, 2, 9}) {
        shape.relative_vectors = vectors;
        check_attention(weights, shape);
      }
      shape.relative_of_keys = false;
      shape.soft_cap = 2.5F;
      check_attention(weights, shape);
      shape.relative_of_keys = shape.slopes = true;
      shape.relative_of_queries = false;
      shape.window = 40;
      check_attention(weights, shape);
    }
  }
}

TEST_P(BackendAttention, AgreesWhereQueriesLookAtASource) {
  for (const WeightFormat weights : kFloatFormats) {
    for (const int32_t dim : {12, 64, 128}) {
      check_cross_attention(weights, 4, 4, dim, {{1, 1}, {1, 40}, {1, 65}, {1, 300}});
      check_cross_attention(weights, 6, 2, dim, {{1, 33}, {70, 5}, {3, 300}, {33, 64}, {1, 2}});
      check_cross_attention(weights, 4, 4, dim, {{1, 40}, {2, 40}, {1, 300}, {1, 300}}, 5);
      check_cross_attention(weights, 4, 2, dim, {{1, 33}, {70, 5}, {3, 2}, {1, 300}}, 1, 2.5F);
    }
  }
}

TEST_P(BackendAttention, AgreesForValuesThatAreNotAsWideAsKeys) {
  for (const WeightFormat weights : kFloatFormats) {
    for (const auto& [dim, value_dim] :
         {std::pair(64, 32), {20, 128}, {18, 10}, {192, 128}, {128, 192}, {16, 7}}) {
      if (on_gpu() && value_dim % 2 != 0) continue;  // it refuses them
      AttentionCase shape{4, 2, dim, {{1, 70}, {40, 70}, {1, 200}}};
      shape.value_dim = value_dim;
      check_attention(weights, shape);
      shape.sequences = {{1, 33}};
      shape.n_heads = shape.n_kv_heads;
      check_attention(weights, shape);
    }
    // Of several splits, and of more sequences than a GPU has blocks at once.
    AttentionCase wide{8, 2, 192, {{1, 1300}, {1, 5}, {33, 700}, {140, 300}}, 600, 0, true};
    wide.value_dim = 128;
    check_attention(weights, wide);
    wide.n_kv_heads = 8;
    wide.sequences = std::vector<TestSequence>(36, {1, 70});
    check_attention(weights, wide);
  }
}

// As latent attention has them: of one KV head, with more query heads than a block takes.
TEST_P(BackendAttention, AgreesForValuesInKeys) {
  for (const WeightFormat weights : kFloatFormats) {
    for (const auto& [heads, dim, value_dim] :
         {std::array{16, 576, 512}, {3, 20, 14}, {1, 48, 48}, {130, 72, 64}, {20, 192, 128}}) {
      if (kSanitized && dim == 576) continue;
      AttentionCase shape{heads, 1, dim, {{1, 1}, {1, 33}, {1, 300}}};
      shape.value_dim = value_dim;
      shape.values_in_keys = true;
      check_attention(weights, shape);
      shape.sequences = {{40, 70}, {1, 200}, {2, 64}, {1, 700}};
      check_attention(weights, shape);
      shape.sequences = {{1, 1100}};
      check_attention(weights, shape);
    }
  }
}

TEST_P(BackendAttention, AgreesForLatentsOfManySequencesOfFewSplits) {
  AttentionCase shape{16, 1, 576, std::vector<TestSequence>(on_gpu() ? 64 : 8, {1, 250})};
  shape.value_dim = 512;
  shape.values_in_keys = true;
  check_attention(WeightFormat::bf16, shape);
}

// Few queries and many of a sequence, beside others with few, of widths that kernels are made for
// and of others.
TEST_P(BackendAttention, AgreesForHeadsOfLatents) {
  for (const WeightFormat weights : kFloatFormats) {
    LatentCase shape{2, 64, 128, 128, 64, {{1, 70}, {33, 70}, {1, 1}}};
    check_latent_attention(weights, shape);
    shape.sequences = {{128, 128}};
    check_latent_attention(weights, shape);
    shape.sequences = {{1, 40}, {150, 333}, {3, 64}, {300, 300}, {1, 9}};
    check_latent_attention(weights, shape);
    check_latent_attention(weights, {3, 0, 12, 10, 24, {{1, 33}, {140, 150}}});
    check_latent_attention(weights, {5, 8, 16, 7, 34, {{130, 130}, {2, 50}}});
  }
  // Of the latents that most models have.
  check_latent_attention(WeightFormat::int8, {2, 64, 128, 128, 512, {{1, 70}, {200, 270}, {9, 9}}});
  if (!on_gpu()) return;
  for (const WeightFormat weights : {WeightFormat::f16, WeightFormat::bf16}) {
    check_latent_attention(weights, {3, 64, 32, 16, 512, {{1, 1}, {1, 64}, {1, 1500}, {1, 129}}});
    check_latent_attention(weights, {16, 64, 8, 8, 512, {{1, 2100}, {5, 90}, {1, 95}, {1, 448}}});
    check_latent_attention(weights, {20, 64, 8, 8, 512, {{1, 31}, {1, 1000}, {1, 32}, {1, 129}}});
    check_latent_attention(weights, {32, 64, 8, 8, 512, {{1, 700}}});
    check_latent_attention(weights, {66, 64, 8, 8, 512, {{1, 300}, {1, 33}}});
  }
}

// By hand: two keys of scores 0 and log 2, so that their weights are 1/3 and 2/3.
TEST_P(BackendAttention, ValuesMayBeWiderThanKeys) {
  const Batch batch = make_batch(random_, {{1, 2}}, 1);
  const auto attend = [&](Backend& backend, DType act, DType kv_type) {
    HostTensor k(kv_type, 1, kPageTokens * 2);
    HostTensor v(kv_type, 1, kPageTokens * 3);
    for (int64_t i = 0; i < 4; ++i) k.set(0, i, i == 2 ? 1.0F : 0.0F);
    const std::array values = {3.0F, 0.0F, 9.0F, 0.0F, 6.0F, 3.0F};
    for (int64_t i = 0; i < 6; ++i) v.set(0, i, values[static_cast<size_t>(i)]);
    HostTensor q(act, 1, 2);
    q.set(0, 0, 1);
    q.set(0, 1, 0);
    const DeviceTensor qkv(backend, take_new_tokens(batch, q, 1, k, v));
    const DeviceTensor device_k(backend, k);
    const DeviceTensor device_v(backend, v);
    const DeviceTensor cos_sin(backend, HostTensor(DType::f32, 1, 0));
    const DeviceTensor out(backend, HostTensor(act, 1, 3));
    backend.attention(backend.upload(batch), qkv.matrix(), cos_sin.matrix(), {},
                      {device_k.data(), device_v.data(), kv_type, 1, 1, 2, 3},
                      {.scale = std::log(2.0F)}, out.matrix());
    return out.fetch();
  };
  const auto check = [&](Backend& backend, DType act, DType kv_type) {
    if (backend.description().starts_with("CUDA")) {
      EXPECT_THROW(attend(backend, act, kv_type), Error);
      return;
    }
    const HostTensor sums = attend(backend, act, kv_type);
    const double bound = 16 * unit_roundoff(act) + 1e-5;
    EXPECT_NEAR(sums.at(0, 0), 1, bound) << backend.description();
    EXPECT_NEAR(sums.at(0, 1), 4, bound) << backend.description();
    EXPECT_NEAR(sums.at(0, 2), 5, bound) << backend.description();
  };
  check(*reference_, DType::f32, DType::f32);
  for (const WeightFormat weights : kFloatFormats) {
    for (const auto& backend : backends_) {
      check(*backend, backend->activation_dtype(weights), backend->kv_dtype(weights));
    }
  }
}

// By hand: two keys, the weights 1/4, 1/2 and, of the sink, 1/4; then without the first key.
TEST_P(BackendAttention, ASinkTakesItsShareOfTheWeight) {
  const Batch batch = make_batch(random_, {{1, 2}}, 1);
  const auto attend = [&](Backend& backend, DType act, DType kv_type, int32_t window) {
    HostTensor k(kv_type, 1, kPageTokens * 2);
    HostTensor v(kv_type, 1, kPageTokens * 2);
    for (int64_t i = 0; i < 2; ++i) {
      k.set(0, 2 * i, static_cast<float>(i));  // scores 0 and log 2
      k.set(0, 2 * i + 1, 0);
      v.set(0, 2 * i, i == 0 ? 8.0F : 0.0F);
      v.set(0, 2 * i + 1, i == 0 ? 0.0F : 8.0F);
    }
    HostTensor q(act, 1, 2);
    q.set(0, 0, 1);
    q.set(0, 1, 0);
    HostTensor sink(DType::f32, 1, 1);
    sink.set(0, 0, 0);
    const DeviceTensor qkv(backend, take_new_tokens(batch, q, 1, k, v));
    const DeviceTensor device_k(backend, k);
    const DeviceTensor device_v(backend, v);
    const DeviceTensor cos_sin(backend, HostTensor(DType::f32, 1, 0));
    const DeviceTensor device_sink(backend, sink);
    const DeviceTensor out(backend, HostTensor(act, 1, 2));
    backend.attention(backend.upload(batch), qkv.matrix(), cos_sin.matrix(), {},
                      {device_k.data(), device_v.data(), kv_type, 1, 1, 2, 2},
                      {.scale = std::log(2.0F),
                       .window = window,
                       .sinks = static_cast<const float*>(device_sink.data())},
                      out.matrix());
    return out.fetch();
  };
  const auto check = [&](Backend& backend, DType act, DType kv_type) {
    const double bound = 16 * unit_roundoff(act) + 1e-5;
    const HostTensor all = attend(backend, act, kv_type, 0);
    EXPECT_NEAR(all.at(0, 0), 2, bound) << backend.description();
    EXPECT_NEAR(all.at(0, 1), 4, bound) << backend.description();
    const HostTensor last = attend(backend, act, kv_type, 1);
    EXPECT_NEAR(last.at(0, 0), 0, bound) << backend.description();
    EXPECT_NEAR(last.at(0, 1), 16.0 / 3, bound) << backend.description();
  };
  check(*reference_, DType::f32, DType::f32);
  for (const WeightFormat weights : kFloatFormats) {
    for (const auto& backend : backends_) {
      check(*backend, backend->activation_dtype(weights), backend->kv_dtype(weights));
    }
  }
}

TEST_P(BackendAttention, ALargeScoreTakesAllTheWeight) {
  for (const WeightFormat weights : kFloatFormats) {
    const DType act = backend_->activation_dtype(weights);
    const DType kv_type = backend_->kv_dtype(weights);
    const AttentionCase shape{1, 1, 64, {{1, 300}}};
    const Batch batch = make_batch(random_, shape.sequences, 10);
    HostTensor k = make_cache(kv_type, 1, 64, 10, batch);
    HostTensor v = make_cache(kv_type, 1, 64, 10, batch);
    HostTensor q(act, 1, 64);
    constexpr int32_t kHot = 201;
    const int64_t page = batch.page_table[kHot / kPageTokens];
    for (int64_t d = 0; d < 64; ++d) {
      q.set(0, d, 100);
      k.set(page, kHot % kPageTokens * 64 + d, 100);
    }
    const HostTensor qkv = take_new_tokens(batch, q, 1, k, v);
    for (const auto& backend : backends_) {
      const DeviceTensor device_k(*backend, k);
      const DeviceTensor device_v(*backend, v);
      const DeviceTensor device_qkv(*backend, qkv);
      const DeviceTensor cos_sin(*backend, HostTensor(DType::f32, 1, 0));
      const DeviceTensor out(*backend, HostTensor(act, 1, 64));
      backend->attention(backend->upload(batch), device_qkv.matrix(), cos_sin.matrix(), {},
                         {device_k.data(), device_v.data(), kv_type, 10, 1, 64, 64},
                         {.scale = 0.125F}, out.matrix());
      const HostTensor got = out.fetch();
      for (int64_t d = 0; d < 64; ++d) {
        const float want = v.at(page, kHot % kPageTokens * 64 + d);
        EXPECT_NEAR(got.at(0, d), want, unit_roundoff(act) * std::abs(want) + 1e-6)
            << backend->description() << ": " << d;
      }
    }
  }
}

FASTSTREAM_INSTANTIATE_BACKENDS(BackendAttention);

}  // namespace
}  // namespace faststream
