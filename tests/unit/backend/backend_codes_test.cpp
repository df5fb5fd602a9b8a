// Keys and values in eight bits, compared with the plain float reference.
#include <array>
#include <string>

#include "support/hadamard.h"
#include "unit/backend/backend_fixture.h"
#include "unit/normal.h"

namespace faststream {
namespace {

constexpr std::array kCoded = {KvFormat::int8, KvFormat::fp8};

struct CodedCase {
  int32_t n_heads = 1;
  int32_t n_kv_heads = 1;
  int32_t head_dim = 64;
  std::vector<TestSequence> sequences;
  int32_t value_dim = 0;  // 0: head_dim
  int32_t window = 0;
  float soft_cap = 0;
  bool slopes = false;

  [[nodiscard]] int32_t v_head_dim() const { return value_dim == 0 ? head_dim : value_dim; }
};

class BackendKvCodes : public BackendTest {
 protected:
  /// Bytes of [n_pages, heads] parts of pages, all 0xff: codes and scales that are NaN.
  static HostTensor empty_cache(KvFormat format, int32_t heads, int32_t dim, int32_t n_pages) {
    return {DType::u8, n_pages, heads * kPageTokens * kv_row_bytes({DType::f32, format}, dim)};
  }

  /// Codes of random numbers in a row of a head's part of a page.
  void fill_row(KvFormat format, HostTensor& cache, int32_t page, int32_t head, int32_t row,
                int32_t dim, bool rotates) {
    Normal normal;
    std::vector<float> elements;
    for (int32_t d = 0; d < dim; ++d) {
      elements.push_back(std::clamp(normal(random_), -4.9F, 4.9F));
    }
    if (rotates) hadamard(std::span(elements));
    auto* of_head = reinterpret_cast<uint8_t*>(cache.bytes.data()) + page * cache.cols +
                    head * kPageTokens * kv_row_bytes({DType::f32, format}, dim);
    const KvScale scale = encode_kv(format, elements, of_head + row * dim);
    std::memcpy(of_head + kPageTokens * dim + row * static_cast<int32_t>(sizeof scale), &scale,
                sizeof scale);
  }

  /// Queries of an earlier layer's codes: nothing is appended.
  void check_attention(WeightFormat weights, KvFormat format, const CodedCase& shape) {
    const DType act = backend_->activation_dtype(weights);
    const DType kv_type = backend_->kv_dtype(weights);
    const int32_t n_pages = pages_of(shape.sequences) + 2;
    const Batch batch = make_batch(random_, shape.sequences, n_pages - 1);
    HostTensor k = empty_cache(format, shape.n_kv_heads, shape.head_dim, n_pages);
    HostTensor v = empty_cache(format, shape.n_kv_heads, shape.v_head_dim(), n_pages);
    for (int32_t s = 0; s < batch.n_sequences(); ++s) {
      for (int32_t p = 0; p < batch.kv_len[static_cast<size_t>(s)]; ++p) {
        const int32_t page =
            batch.page_table[static_cast<size_t>(s * batch.max_pages + p / kPageTokens)];
        for (int32_t head = 0; head < shape.n_kv_heads; ++head) {
          fill_row(format, k, page, head, p % kPageTokens, shape.head_dim, true);
          fill_row(format, v, page, head, p % kPageTokens, shape.v_head_dim(), false);
        }
      }
    }
    const HostTensor q = random_tensor(random_, act, batch.n_tokens(),
                                       int64_t{shape.n_heads} * shape.head_dim, 8, 2);
    const HostTensor slopes =
        random_tensor(random_, DType::f32, 1, shape.n_heads).map(DType::f32, [](float slope) {
          return std::abs(slope) / 8;
        });
    const auto attend = [&](Backend& backend, const Batch& step, const HostTensor& queries,
                            DType out_type) {
      const DeviceTensor device_k(backend, k);
      const DeviceTensor device_v(backend, v);
      const DeviceTensor device_q(backend, queries);
      const DeviceTensor cos_sin(backend, HostTensor(DType::f32, step.n_tokens(), 0));
      const DeviceNumbers device_slopes(backend, shape.slopes ? &slopes : nullptr);
      const DeviceTensor out(backend, HostTensor(out_type, step.n_tokens(),
                                                 int64_t{shape.n_heads} * shape.v_head_dim(), 8));
      const KvLayer kv{.k = device_k.data(),
                       .v = device_v.data(),
                       .dtype = kv_type,
                       .n_pages = n_pages,
                       .n_kv_heads = shape.n_kv_heads,
                       .head_dim = shape.head_dim,
                       .v_head_dim = shape.v_head_dim(),
                       .format = format};
      backend.attention(backend.upload(step), device_q.matrix(), cos_sin.matrix(), {}, kv,
                        {.scale = 1.0F / std::sqrt(static_cast<float>(shape.head_dim)),
                         .window = shape.window,
                         .soft_cap = shape.soft_cap,
                         .slopes = device_slopes.data()},
                        out.matrix());
      return out.fetch();
    };
    // As of plain keys and values (backend_attention_test.cpp); queries that were rotated, and, on
    // tensor cores, keys and values made of codes are rounded once more.
    constexpr double kLargest = 5;
    const HostTensor want = attend(*reference_, batch, q, DType::f32);
    for (const auto& backend : backends_) {
      const std::string what =
          backend->description() + ": " + std::string(dtype_name(act)) + " over " +
          std::string(kv_format_name(format)) + ", " + std::to_string(shape.n_heads) + "/" +
          std::to_string(shape.n_kv_heads) + " heads of " + std::to_string(shape.head_dim) +
          ", first " + std::to_string(shape.sequences.front().queries) + "/" +
          std::to_string(shape.sequences.front().kv_len);
      const HostTensor got = attend(*backend, batch, q, act);
      expect_near(
          got, want, [&](int64_t, int64_t) { return kLargest * (4 * unit_roundoff(act) + 1e-5); },
          what);
      if (shape.sequences.back().queries > 1) continue;
      const int64_t last = batch.n_tokens() - 1;
      Batch alone;
      alone.add_sequence({&batch.tokens.back(), 1}, batch.positions.back());
      alone.max_pages = batch.max_pages;
      alone.page_table.assign(batch.page_table.end() - batch.max_pages, batch.page_table.end());
      expect_equal(attend(*backend, alone, q.row_range(last, 1), act), got.row_range(last, 1),
                   what + ", the last one alone");
    }
  }

  /// What is kept of new tokens, each number within a step of its codes of the reference's.
  void check_append(WeightFormat weights, KvFormat format, int32_t dim, int32_t v_dim,
                    NormKind norm, int32_t rotated) {
    constexpr int32_t kHeads = 4;
    constexpr int32_t kKvHeads = 2;
    const DType act = backend_->activation_dtype(weights);
    const std::vector<TestSequence> sequences = {{1, 32}, {40, 40}, {1, 33}, {5, 66}};
    const int32_t n_pages = pages_of(sequences) + 1;
    const Batch batch = make_batch(random_, sequences, n_pages);
    const HostTensor qkv =
        random_tensor(random_, act, batch.n_tokens(),
                      int64_t{kHeads + kKvHeads} * dim + int64_t{kKvHeads} * v_dim, 8);
    const HostTensor weight = random_tensor(random_, DType::f32, kHeads, std::max(dim, v_dim));
    const HostTensor cos_sin = random_tensor(random_, DType::f32, batch.n_tokens(), rotated);
    struct Kept {
      HostTensor k;
      HostTensor v;
    };
    const auto append = [&](Backend& backend, DType type) {
      const DeviceTensor k(backend, empty_cache(format, kKvHeads, dim, n_pages));
      const DeviceTensor v(backend, empty_cache(format, kKvHeads, v_dim, n_pages));
      const DeviceTensor rows(backend,
                              type == act ? qkv : qkv.map(type, [](float x) { return x; }));
      const DeviceTensor device_cos_sin(backend, cos_sin);
      const DeviceNumbers weights_of_norm(backend, norm == NormKind::none ? nullptr : &weight);
      const DeviceTensor out(backend, HostTensor(type, batch.n_tokens(), int64_t{kHeads} * v_dim));
      backend.attention(backend.upload(batch), rows.matrix(), device_cos_sin.matrix(),
                        {.norm = norm,
                         .q_weight = weights_of_norm.data(),
                         .k_weight = weights_of_norm.data(),
                         .eps = 1e-6F},
                        {.k = k.data(),
                         .v = v.data(),
                         .dtype = backend.kv_dtype(weights),
                         .n_pages = n_pages,
                         .n_kv_heads = kKvHeads,
                         .head_dim = dim,
                         .v_head_dim = v_dim,
                         .format = format},
                        {}, out.matrix());
      static_cast<void>(rows.fetch());  // nothing was written around it
      return Kept{k.fetch(), v.fetch()};
    };
    const Kept want = append(*reference_, DType::f32);
    for (const auto& backend : backends_) {
      const Kept got = append(*backend, act);
      const std::string what = backend->description() + ": " + std::string(dtype_name(act)) +
                               " kept as " + std::string(kv_format_name(format)) + ", heads of " +
                               std::to_string(dim) + "/" + std::to_string(v_dim);
      expect_same_numbers(got.k, want.k, format, dim, what + ", keys");
      expect_same_numbers(got.v, want.v, format, v_dim, what + ", values");
    }
  }

  static void expect_same_numbers(const HostTensor& got, const HostTensor& want, KvFormat format,
                                  int32_t dim, const std::string& what) {
    const int64_t head_bytes = kPageTokens * kv_row_bytes({DType::f32, format}, dim);
    int64_t wrong = 0;
    int64_t other = 0;
    const auto n_heads = static_cast<int64_t>(want.bytes.size()) / head_bytes;
    for (int64_t row = 0; row < n_heads * kPageTokens; ++row) {
      const auto number = [&](const HostTensor& cache, int64_t d) {
        const auto* head =
            reinterpret_cast<const uint8_t*>(cache.bytes.data()) + row / kPageTokens * head_bytes;
        KvScale scale;
        std::memcpy(
            &scale,
            head + kPageTokens * dim + row % kPageTokens * static_cast<int64_t>(sizeof scale),
            sizeof scale);
        const auto factor = static_cast<float>(scale);
        return std::pair(factor, factor * decode_kv(format, head[row % kPageTokens * dim + d]));
      };
      for (int64_t d = 0; d < dim; ++d) {
        const auto [scale, value] = number(got, d);
        const auto [want_scale, want_value] = number(want, d);
        if (std::isnan(want_scale)) {  // of no token
          wrong += std::isnan(scale) ? 0 : 1;
          continue;
        }
        const float step = format == KvFormat::int8
                               ? want_scale
                               : std::max(std::abs(want_value) / 8, want_scale * 0x1p-9F);
        other += value == want_value ? 0 : 1;
        wrong += std::abs(value - want_value) <= 1.02F * step ? 0 : 1;
      }
    }
    EXPECT_EQ(wrong, 0) << what;
    EXPECT_LE(other, n_heads * kPageTokens * dim / 50) << what;
  }
};

TEST_P(BackendKvCodes, AttentionAgrees) {
  for (const KvFormat format : kCoded) {
    for (const WeightFormat weights : kFloatFormats) {
      for (const int32_t kv_len : {1, 31, 32, 33, 65, 500}) {
        check_attention(weights, format, {4, 4, 64, {{1, kv_len}}});
      }
      check_attention(weights, format, {4, 2, 64, {{1, 1}, {70, 70}, {1, 333}, {2, 2}, {33, 100}}});
      check_attention(weights, format, {8, 2, 128, {{1, 900}, {65, 65}, {1, 600}, {1, 5}}});
      check_attention(weights, format, {4, 2, 128, {{130, 300}, {129, 500}}});
      check_attention(weights, format, {6, 2, 64, {{1, 90}, {40, 70}, {1, 200}}, 0, 50, 3, true});
    }
  }
}

TEST_P(BackendKvCodes, AttentionAgreesForEveryWidthOfHeads) {
  for (const KvFormat format : kCoded) {
    for (const WeightFormat weights : kFloatFormats) {
      for (const int32_t dim : {2, 6, 8, 20, 48, 80, 96, 128, 192, 250, 256, 320, 512}) {
        check_attention(weights, format, {2, 1, dim, {{1, 70}, {40, 70}, {1, 200}}});
      }
      check_attention(weights, format, {4, 2, 96, {{1, 70}, {40, 70}, {1, 200}}, 64});
      check_attention(weights, format, {14, 2, 32, {{1, 100}, {35, 100}, {1, 33}}});
    }
  }
}

// On a GPU blocks stay.
TEST_P(BackendKvCodes, AttentionAgreesForManySequences) {
  std::vector<TestSequence> sequences;
  for (int32_t i = 0; i < (kSanitized ? 20 : 100); ++i) sequences.push_back({1, 1 + i * 37 % 300});
  sequences[3] = {1, 1200};
  sequences[7] = {20, 90};
  for (const KvFormat format : kCoded) {
    check_attention(WeightFormat::bf16, format, {8, 4, 128, sequences});
    check_attention(WeightFormat::f16, format, {8, 4, 64, sequences});
  }
}

TEST_P(BackendKvCodes, AppendAgrees) {
  for (const KvFormat format : kCoded) {
    for (const WeightFormat weights : kFloatFormats) {
      check_append(weights, format, 64, 64, NormKind::none, 64);
      check_append(weights, format, 128, 128, NormKind::rms, 128);
      check_append(weights, format, 80, 24, NormKind::none, 32);
      check_append(weights, format, 250, 512, NormKind::none, 0);
      check_append(weights, format, 6, 2, NormKind::rms, 4);
    }
  }
}

TEST_P(BackendKvCodes, CopyPagesCopiesCodesAndScales) {
  constexpr int32_t kPages = 9;
  constexpr int32_t kHeads = 3;
  for (const KvFormat format : kCoded) {
    HostTensor k = empty_cache(format, kHeads, 10, kPages);
    HostTensor v = empty_cache(format, kHeads, 6, kPages);
    for (HostTensor* cache : {&k, &v}) {
      for (std::byte& byte : cache->bytes) byte = static_cast<std::byte>(random_() % 256);
    }
    const DeviceTensor device_k(*backend_, k);
    const DeviceTensor device_v(*backend_, v);
    const KvLayer layer{.k = device_k.data(),
                        .v = device_v.data(),
                        .dtype = backend_->kv_dtype(WeightFormat::bf16),
                        .n_pages = kPages,
                        .n_kv_heads = kHeads,
                        .head_dim = 10,
                        .v_head_dim = 6,
                        .format = format};
    const std::vector<PageCopy> copies = {{0, 8}, {2, 5}};
    backend_->copy_pages({{layer}}, copies);
    for (auto* cache : {&k, &v}) {
      for (const PageCopy& copy : copies) {
        std::copy_n(cache->bytes.begin() + copy.from * cache->cols, cache->cols,
                    cache->bytes.begin() + copy.to * cache->cols);
      }
    }
    EXPECT_EQ(device_k.fetch().bytes, k.bytes);
    EXPECT_EQ(device_v.fetch().bytes, v.bytes);
  }
}

FASTSTREAM_INSTANTIATE_BACKENDS(BackendKvCodes);

}  // namespace
}  // namespace faststream
