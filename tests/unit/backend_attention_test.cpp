// Rotation, the append to pages, and attention, compared with the plain float reference.
#include <string>

#include "unit/backend_fixture.h"

namespace faststream {
namespace {

struct AttentionCase {
  int32_t n_heads = 1;
  int32_t n_kv_heads = 1;
  int32_t head_dim = 64;
  std::vector<TestSequence> sequences;
};

std::string describe(const AttentionCase& shape) {
  std::string text = std::to_string(shape.n_heads) + "/" + std::to_string(shape.n_kv_heads) +
                     " heads of " + std::to_string(shape.head_dim) + ", queries/cache";
  for (const TestSequence& s : shape.sequences) {
    text += " " + std::to_string(s.queries) + "/" + std::to_string(s.kv_len);
  }
  return text;
}

class BackendAttention : public BackendTest {
 protected:
  void check_attention(DType weights, const AttentionCase& shape) {
    const DType act = backend_->activation_dtype(weights);
    const DType kv_type = backend_->kv_dtype(weights);
    const int64_t q_dim = int64_t{shape.n_heads} * shape.head_dim;
    // One page more than needed, and whatever is not a sequence's own stays NaN: it must not be
    // read.
    const int32_t n_pages = pages_of(shape.sequences) + 1;
    const Batch batch = make_batch(random_, shape.sequences, n_pages);
    HostTensor k = make_cache(kv_type, shape, n_pages, batch);
    HostTensor v = make_cache(kv_type, shape, n_pages, batch);
    // q is columns of a wider matrix, as qkv is.
    const HostTensor q =
        random_tensor(random_, act, batch.n_tokens(), q_dim, 2 * shape.head_dim, 2);
    const float scale = 1.0F / std::sqrt(static_cast<float>(shape.head_dim));

    const auto attend = [&](Backend& backend, DType out_type) {
      const DeviceTensor device_k(backend, k);
      const DeviceTensor device_v(backend, v);
      const DeviceTensor device_q(backend, q);
      const DeviceTensor out(backend, HostTensor(out_type, batch.n_tokens(), q_dim, 8));
      backend.attention(
          backend.upload(batch), device_q.matrix(),
          {device_k.data(), device_v.data(), kv_type, n_pages, shape.n_kv_heads, shape.head_dim},
          {.scale = scale}, out.matrix());
      return out.fetch();
    };
    // Values are below kLargest: a probability rounded to act is off by a unit roundoff of itself,
    // all together by one of the largest value; then the result is rounded. Scores are float32
    // sums.
    constexpr double kLargest = 5;
    const HostTensor want = attend(*reference_, DType::f32);
    for (const auto& backend : backends_) {
      expect_near(
          attend(*backend, act), want,
          [&](int64_t, int64_t) { return kLargest * (2 * unit_roundoff(act) + 1e-5); },
          backend->description() + ": attention, " + std::string(dtype_name(act)) + ", " +
              describe(shape));
    }
  }

  /// [pages, heads · tokens · dim] with numbers in (-5, 5) where the batch's sequences have tokens.
  HostTensor make_cache(DType type, const AttentionCase& shape, int32_t n_pages,
                        const Batch& batch) {
    HostTensor cache(type, n_pages, int64_t{shape.n_kv_heads} * kPageTokens * shape.head_dim);
    std::normal_distribution<float> normal;
    for (int32_t s = 0; s < batch.n_sequences(); ++s) {
      for (int32_t position = 0; position < batch.kv_len[static_cast<size_t>(s)]; ++position) {
        const int32_t page =
            batch.page_table[static_cast<size_t>(s) * static_cast<size_t>(batch.max_pages) +
                             static_cast<size_t>(position / kPageTokens)];
        for (int32_t head = 0; head < shape.n_kv_heads; ++head) {
          for (int32_t d = 0; d < shape.head_dim; ++d) {
            cache.set(page,
                      (int64_t{head} * kPageTokens + position % kPageTokens) * shape.head_dim + d,
                      std::clamp(normal(random_), -4.9F, 4.9F));
          }
        }
      }
    }
    return cache;
  }
};

constexpr DType kWeightTypes[] = {DType::f32, DType::f16, DType::bf16};

TEST_P(BackendAttention, DecodeAgreesAtPageBorders) {
  for (const DType weights : kWeightTypes) {
    for (const int32_t kv_len : {1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 500}) {
      check_attention(weights, {4, 4, 64, {{1, kv_len}}});
    }
  }
}

TEST_P(BackendAttention, PrefillAgreesAtPageBordersAndInChunks) {
  for (const DType weights : kWeightTypes) {
    for (const int32_t queries : {2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 130}) {
      check_attention(weights, {2, 2, 64, {{queries, queries}}});
      check_attention(weights, {2, 2, 64, {{queries, queries + 37}}});
    }
  }
}

// A cache is split up to 32 times; the parts of all sequences need room for 32 each.
TEST_P(BackendAttention, AgreesForManySequencesBesideALongOne) {
  std::vector<TestSequence> sequences(300, {1, 5});
  sequences[270] = {1, 4200};
  for (const DType weights : {DType::f32, DType::f16}) {
    check_attention(weights, {64, 1, 128, sequences});
  }
}

TEST_P(BackendAttention, AgreesForEveryHeadDimension) {
  for (const DType weights : kWeightTypes) {
    for (const int32_t dim : {2, 6, 8, 16, 20, 48, 64, 80, 96, 112, 128, 192, 250, 256}) {
      check_attention(weights, {2, 1, dim, {{1, 70}, {1, 200}}});
      check_attention(weights, {2, 1, dim, {{40, 70}}});
    }
  }
}

TEST_P(BackendAttention, AgreesForEveryRatioOfQueryToKvHeads) {
  for (const DType weights : kWeightTypes) {
    for (const int32_t group : {1, 2, 3, 4, 5, 7, 8, 12, 16, 70}) {
      check_attention(weights, {2 * group, 2, 32, {{1, 100}, {1, 33}}});
      check_attention(weights, {2 * group, 2, 32, {{35, 100}}});
    }
  }
}

TEST_P(BackendAttention, AgreesForMixedPacksOfPrefillAndDecode) {
  for (const DType weights : kWeightTypes) {
    check_attention(weights, {4, 2, 64, {{1, 1}, {70, 70}, {1, 333}, {2, 2}, {33, 100}, {1, 64}}});
    check_attention(weights, {4, 4, 128, {{1, 700}, {65, 65}, {1, 5}}});
  }
}

TEST_P(BackendAttention, AgreesOverLongContexts) {
  for (const DType weights : kWeightTypes) {
    check_attention(weights, {8, 2, 128, {{1, 4097}, {1, 2500}, {1, 1}}});
    check_attention(weights, {2, 1, 64, {{20, 3000}}});
  }
}

TEST_P(BackendAttention, PrefillAgreesOverManyTiles) {
  for (const DType weights : kWeightTypes) {
    for (const int32_t dim : {64, 128}) {
      check_attention(weights, {4, 2, dim, {{300, 300}, {1, 5}, {129, 1000}, {256, 384}}});
    }
  }
}

TEST_P(BackendAttention, ALargeScoreTakesAllTheWeight) {
  for (const DType weights : kWeightTypes) {
    const DType act = backend_->activation_dtype(weights);
    const DType kv_type = backend_->kv_dtype(weights);
    const AttentionCase shape{1, 1, 64, {{1, 300}}};
    const Batch batch = make_batch(random_, shape.sequences, 10);
    HostTensor k = make_cache(kv_type, shape, 10, batch);
    const HostTensor v = make_cache(kv_type, shape, 10, batch);
    HostTensor q(act, 1, 64);
    constexpr int32_t kHot = 201;
    const int64_t page = batch.page_table[kHot / kPageTokens];
    for (int64_t d = 0; d < 64; ++d) {
      q.set(0, d, 100);
      k.set(page, kHot % kPageTokens * 64 + d, 100);
    }
    for (const auto& backend : backends_) {
      const DeviceTensor device_k(*backend, k);
      const DeviceTensor device_v(*backend, v);
      const DeviceTensor device_q(*backend, q);
      const DeviceTensor out(*backend, HostTensor(act, 1, 64));
      backend->attention(backend->upload(batch), device_q.matrix(),
                         {device_k.data(), device_v.data(), kv_type, 10, 1, 64}, {.scale = 0.125F},
                         out.matrix());
      const HostTensor got = out.fetch();
      for (int64_t d = 0; d < 64; ++d) {
        const float want = v.at(page, kHot % kPageTokens * 64 + d);
        EXPECT_NEAR(got.at(0, d), want, unit_roundoff(act) * std::abs(want) + 1e-6)
            << backend->description() << ": " << d;
      }
    }
  }
}

TEST_P(BackendAttention, RopeAppendRotatesQueriesAndFillsPages) {
  for (const DType weights : kWeightTypes) {
    const DType act = backend_->activation_dtype(weights);
    const DType kv_type = backend_->kv_dtype(weights);
    for (const int32_t dim : {2, 20, 64, 128, 256}) {
      constexpr int32_t kHeads = 6;
      constexpr int32_t kKvHeads = 2;
      const std::vector<TestSequence> sequences = {{1, 32}, {40, 40}, {1, 33}, {5, 66}};
      const int32_t n_pages = pages_of(sequences) + 1;
      const Batch batch = make_batch(random_, sequences, n_pages);
      const HostTensor qkv =
          random_tensor(random_, act, batch.n_tokens(), int64_t{kHeads + 2 * kKvHeads} * dim, 8);
      HostTensor cos_sin(DType::f32, batch.n_tokens(), dim);
      for (int64_t t = 0; t < cos_sin.rows; ++t) {
        for (int64_t i = 0; i < dim / 2; ++i) {
          const float angle = static_cast<float>(t) * 0.7F / static_cast<float>(i + 1);
          cos_sin.set(t, 2 * i, std::cos(angle));
          cos_sin.set(t, 2 * i + 1, std::sin(angle));
        }
      }
      const int64_t page_elements = int64_t{kKvHeads} * kPageTokens * dim;
      const auto rotate = [&](Backend& backend, DType q_type, DType cache_type) {
        // The reference works on the same values in f32.
        HostTensor input = qkv;
        if (q_type != act) input = qkv.map(q_type, [](float v) { return v; });
        // Zeros, not NaN, so that untouched slots compare equal.
        const HostTensor empty =
            HostTensor(cache_type, n_pages, page_elements).map(cache_type, [](float) {
              return 0.0F;
            });
        const DeviceTensor device_qkv(backend, input);
        const DeviceTensor device_cos_sin(backend, cos_sin);
        const DeviceTensor k(backend, empty);
        const DeviceTensor v(backend, empty);
        backend.rope_append(backend.upload(batch), device_cos_sin.matrix(), device_qkv.matrix(), {},
                            {k.data(), v.data(), cache_type, n_pages, kKvHeads, dim});
        return std::vector<HostTensor>{device_qkv.fetch(), k.fetch(), v.fetch()};
      };
      const auto want = rotate(*reference_, DType::f32, DType::f32);
      // A rotated element is a sum of two products of numbers below 6; keys and values in qkv may
      // or may not be rotated in place.
      const auto bound = [](DType type, float value) {
        return unit_roundoff(type) * std::abs(value) + 2e-6;
      };
      HostTensor want_q = want[0];
      want_q.cols = int64_t{kHeads} * dim;
      for (const auto& backend : backends_) {
        const auto got = rotate(*backend, act, kv_type);
        HostTensor got_q = got[0];
        got_q.cols = want_q.cols;
        const std::string what =
            backend->description() + ": rope_append of head_dim " + std::to_string(dim);
        expect_near(
            got_q, want_q, [&](int64_t r, int64_t c) { return bound(act, want_q.at(r, c)); },
            what + ", queries");
        for (size_t i = 1; i < 3; ++i) {
          expect_near(
              got[i], want[i],
              [&](int64_t r, int64_t c) { return bound(kv_type, want[i].at(r, c)); },
              what + (i == 1 ? ", keys" : ", values"));
        }
      }
    }
  }
}

FASTSTREAM_INSTANTIATE_BACKENDS(BackendAttention);

}  // namespace
}  // namespace faststream
