// Rotation, what happens to heads beside it, and the append to pages, all parts of attention(),
// compared with the plain float reference.
#include <algorithm>
#include <string>

#include "unit/backend/backend_fixture.h"

namespace faststream {
namespace {

struct RopeCase {
  int32_t head_dim = 64;
  int32_t rotated = 64;
  NormKind norm = NormKind::none;
  bool norm_after_rotation = false;
  float query_scaling = 0;
  bool v_norm = false;
  bool biases = false;
};

std::string describe(const RopeCase& shape) {
  return "head_dim " + std::to_string(shape.head_dim) + ", " + std::to_string(shape.rotated) +
         " rotated, norm " + std::to_string(static_cast<int>(shape.norm)) +
         (shape.norm_after_rotation ? " after" : "") + ", query scaling " +
         std::to_string(shape.query_scaling) + (shape.v_norm ? ", values too" : "") +
         (shape.biases ? ", biases" : "");
}

class BackendRope : public BackendTest {
 protected:
  static constexpr int32_t kHeads = 6;
  static constexpr int32_t kKvHeads = 2;

  void check_append(WeightFormat weights, const RopeCase& shape) {
    const DType act = backend_->activation_dtype(weights);
    const DType kv_type = backend_->kv_dtype(weights);
    const int32_t dim = shape.head_dim;
    const std::vector<TestSequence> sequences = {{1, 32}, {40, 40}, {1, 33}, {5, 66}};
    const int32_t n_pages = pages_of(sequences) + 1;
    const Batch batch = make_batch(random_, sequences, n_pages);
    HostTensor qkv =
        random_tensor(random_, act, batch.n_tokens(), int64_t{kHeads + 2 * kKvHeads} * dim, 8);
    // The value of a position is 1 in one dimension, so that outputs are sums of few weights.
    for (int64_t t = 0; t < qkv.rows; ++t) {
      for (int64_t c = 0; c < int64_t{kKvHeads} * dim; ++c) {
        const bool is_one = c % dim == batch.positions[static_cast<size_t>(t)] % dim;
        qkv.set(t, int64_t{kHeads + kKvHeads} * dim + c, is_one ? 1.0F : 0.0F);
      }
    }
    const HostTensor q_weight = random_tensor(random_, DType::f32, kHeads, dim);
    const HostTensor k_weight = random_tensor(random_, DType::f32, kKvHeads, dim);
    const HostTensor v_weight = random_tensor(random_, DType::f32, kKvHeads, dim);
    const HostTensor q_bias = random_tensor(random_, DType::f32, kHeads, dim);
    const HostTensor k_bias = random_tensor(random_, DType::f32, kKvHeads, dim);
    HostTensor cos_sin(DType::f32, batch.n_tokens(), shape.rotated);
    for (int64_t t = 0; t < cos_sin.rows; ++t) {
      for (int64_t i = 0; i < shape.rotated / 2; ++i) {
        const float angle = static_cast<float>(t) * 0.7F / static_cast<float>(i + 1);
        cos_sin.set(t, 2 * i, std::cos(angle));
        cos_sin.set(t, 2 * i + 1, std::sin(angle));
      }
    }
    const int64_t page_elements = int64_t{kKvHeads} * kPageTokens * dim;
    const auto append = [&](Backend& backend, DType q_type, DType cache_type) {
      // The reference works on the same values in f32.
      HostTensor input = qkv;
      if (q_type != act) input = qkv.map(q_type, [](float v) { return v; });
      // Zeros, not NaN, so that untouched slots compare equal.
      HostTensor empty(cache_type, n_pages, page_elements);
      std::fill(empty.bytes.begin(), empty.bytes.end(), std::byte{0});
      const bool has_norm = shape.norm != NormKind::none;
      const DeviceTensor device_qkv(backend, input);
      const DeviceTensor device_cos_sin(backend, cos_sin);
      const DeviceNumbers device_q_weight(backend, has_norm ? &q_weight : nullptr);
      const DeviceNumbers device_k_weight(backend, has_norm ? &k_weight : nullptr);
      const DeviceNumbers device_v_weight(backend, shape.v_norm ? &v_weight : nullptr);
      const DeviceNumbers device_q_bias(backend, shape.biases ? &q_bias : nullptr);
      const DeviceNumbers device_k_bias(backend, shape.biases ? &k_bias : nullptr);
      const DeviceTensor k(backend, empty);
      const DeviceTensor v(backend, empty);
      const DeviceTensor out(backend, HostTensor(q_type, batch.n_tokens(), int64_t{kHeads} * dim));
      backend.attention(backend.upload(batch), device_qkv.matrix(), device_cos_sin.matrix(),
                        {.norm = shape.norm,
                         .norm_after_rotation = shape.norm_after_rotation,
                         .q_weight = device_q_weight.data(),
                         .k_weight = device_k_weight.data(),
                         .v_weight = device_v_weight.data(),
                         .q_bias = device_q_bias.data(),
                         .k_bias = device_k_bias.data(),
                         .eps = 1e-6F,
                         .query_scaling = shape.query_scaling,
                         .query_scaling_from = 16},
                        {k.data(), v.data(), cache_type, n_pages, kKvHeads, dim, dim},
                        {.scale = 1 / std::sqrt(static_cast<float>(dim))}, out.matrix());
      static_cast<void>(device_qkv.fetch());  // nothing was written around it
      return std::vector<HostTensor>{out.fetch(), k.fetch(), v.fetch()};
    };
    const auto want = append(*reference_, DType::f32, DType::f32);
    // A rotated element is a sum of two products of numbers below 6, in float32.
    const auto bound = [](DType type, float value) {
      return (unit_roundoff(type) + 2e-6) * std::abs(value) + 4e-6;
    };
    // Roundings of queries and keys change scores by some unit roundoffs, and weights by as many
    // of themselves.
    const auto weight_bound = [&](float value) {
      const double rounding = std::max(unit_roundoff(act), unit_roundoff(kv_type));
      return (32 * rounding + 5e-5) * std::abs(value) + 1e-6;
    };
    for (const auto& backend : backends_) {
      const auto got = append(*backend, act, kv_type);
      const std::string what = backend->description() + ": attention, " + describe(shape);
      expect_near(
          got[0], want[0], [&](int64_t r, int64_t c) { return weight_bound(want[0].at(r, c)); },
          what + ", weights");
      for (size_t i = 1; i < 3; ++i) {
        expect_near(
            got[i], want[i], [&](int64_t r, int64_t c) { return bound(kv_type, want[i].at(r, c)); },
            what + (i == 1 ? ", keys" : ", values"));
      }
    }
  }
};

TEST_P(BackendRope, TableAgreesFarIntoTheContext) {
  const Batch batch = make_batch(random_, {{5, 5}, {1, 131072}, {40, 4096}}, 4225);
  for (const int64_t dim : {2, 20, 128, 256}) {
    HostTensor inv_freq(DType::f32, 1, dim / 2);
    for (int64_t i = 0; i < dim / 2; ++i) {
      inv_freq.set(0, i,
                   std::pow(10000.0F, -2.0F * static_cast<float>(i) / static_cast<float>(dim)));
    }
    const auto table = [&](Backend& backend, float factor) {
      const DeviceTensor device_freq(backend, inv_freq);
      const DeviceTensor out(backend, HostTensor(DType::f32, batch.n_tokens(), dim));
      backend.rope_table(
          backend.upload(batch),
          {.frequencies = static_cast<const float*>(device_freq.data()), .factor = factor},
          out.matrix());
      return out.fetch();
    };
    const HostTensor plain = table(*reference_, 1);
    expect_near(
        table(*backend_, 1), plain, [](int64_t, int64_t) { return 3e-7; },
        "rope_table of head_dim " + std::to_string(dim));
    expect_near(
        table(*backend_, 1.5F), plain.map(DType::f32, [](float v) { return 1.5F * v; }),
        [](int64_t, int64_t) { return 5e-7; }, "rope_table with a factor");
  }
}

// Against plain tables of the frequencies that the rule says, in double.
TEST_P(BackendRope, TableFollowsEachTextsLength) {
  constexpr int32_t kOriginal = 64;
  constexpr int64_t kPairs = 6;
  constexpr double kFactor = 2.5;
  Batch batch = make_batch(random_, {{1, 64}, {3, 65}, {20, 20}, {2, 40}, {30, 90}}, 20);
  batch.rope_lengths = {0, 0, 0, 100, 90};
  HostTensor frequencies(DType::f32, 2, kPairs);
  for (int64_t i = 0; i < kPairs; ++i) {
    frequencies.set(0, i, std::pow(10.0F, -static_cast<float>(i)));
    frequencies.set(1, i, std::pow(7.0F, -static_cast<float>(i + 1)));
  }
  const auto frequency = [&](bool has_long, int32_t length, int64_t i) {
    if (length <= kOriginal) return double{frequencies.at(0, i)};
    if (has_long) return double{frequencies.at(1, i)};
    const double base = kFactor * length / kOriginal - (kFactor - 1);
    return frequencies.at(0, i) * std::pow(base, -static_cast<double>(i) / (kPairs - 1));
  };
  const auto check = [&](Backend& backend, bool has_long) {
    const DeviceTensor device(backend, frequencies);
    const auto* first = static_cast<const float*>(device.data());
    const DeviceTensor out(backend, HostTensor(DType::f32, batch.n_tokens(), 2 * kPairs));
    backend.rope_table(backend.upload(batch),
                       {.frequencies = first,
                        .original = kOriginal,
                        .long_frequencies = has_long ? first + kPairs : nullptr,
                        .dynamic_factor = has_long ? 0 : kFactor},
                       out.matrix());
    const HostTensor got = out.fetch();
    for (int64_t t = 0; t < got.rows; ++t) {
      const auto row = static_cast<size_t>(t);
      const int32_t position = batch.positions[row];
      const int32_t length =
          std::max(position + 1, batch.rope_lengths[static_cast<size_t>(batch.sequence_of[row])]);
      for (int64_t i = 0; i < kPairs; ++i) {
        const double angle = position * frequency(has_long, length, i);
        EXPECT_NEAR(got.at(t, 2 * i), std::cos(angle), 1e-5)
            << backend.description() << ", row " << t << ", pair " << i;
        EXPECT_NEAR(got.at(t, 2 * i + 1), std::sin(angle), 1e-5)
            << backend.description() << ", row " << t << ", pair " << i;
      }
    }
  };
  for (const bool has_long : {true, false}) {
    check(*reference_, has_long);
    for (const auto& backend : backends_) check(*backend, has_long);
  }
}

TEST_P(BackendRope, AppendRotatesQueriesAndFillsPages) {
  for (const WeightFormat weights : kFloatFormats) {
    for (const int32_t dim : {2, 20, 64, 128, 256}) check_append(weights, {dim, dim});
  }
}

TEST_P(BackendRope, AppendRotatesPartsOfHeadsOrNothing) {
  for (const WeightFormat weights : kFloatFormats) {
    for (const int32_t rotated : {0, 2, 62}) check_append(weights, {64, rotated});
    check_append(weights, {80, 20});
  }
}

TEST_P(BackendRope, AppendNormalizesEachHead) {
  for (const WeightFormat weights : kFloatFormats) {
    for (const NormKind norm : {NormKind::rms, NormKind::layer}) {
      for (const bool after : {false, true}) {
        for (const int32_t dim : {20, 64, 128, 256}) {
          check_append(weights, {dim, dim, norm, after});
        }
        check_append(weights, {128, 32, norm, after, 0.5F});
        check_append(weights, {128, 0, norm, after});
        if (norm != NormKind::layer) continue;
        check_append(weights, {20, 10, norm, after, 0, false, true});
        check_append(weights, {128, 64, norm, after, 0, false, true});
        check_append(weights, {128, 128, norm, after, 0.5F, false, true});
      }
      if (norm != NormKind::rms) continue;  // sums of values would cancel
      for (const int32_t dim : {20, 64, 128, 512}) {
        check_append(weights, {dim, dim, norm, false, 0, true});
      }
    }
  }
}

// A layer that reads what an earlier one has written gives what it would give of the same itself.
TEST_P(BackendRope, QueriesAloneAreTransformedAndSeeWhatIsThere) {
  constexpr int32_t kDim = 32;
  constexpr int32_t kWindow = 20;
  const std::vector<TestSequence> sequences = {{1, 32}, {40, 40}, {1, 90}, {5, 66}};
  const int32_t n_pages = pages_of(sequences);
  const Batch batch = make_batch(random_, sequences, n_pages);
  for (const WeightFormat weights : kFloatFormats) {
    const DType act = backend_->activation_dtype(weights);
    const DType kv_type = backend_->kv_dtype(weights);
    const HostTensor qkv =
        random_tensor(random_, act, batch.n_tokens(), int64_t{kHeads + 2 * kKvHeads} * kDim, 8);
    const HostTensor norm = random_tensor(random_, DType::f32, kHeads, kDim);
    const HostTensor angles = random_tensor(random_, DType::f32, batch.n_tokens(), 12);
    const HostTensor empty = HostTensor(kv_type, n_pages, int64_t{kKvHeads} * kPageTokens * kDim)
                                 .map(kv_type, [](float) { return 0.0F; });
    for (const auto& backend : backends_) {
      const DeviceTensor k(*backend, empty);
      const DeviceTensor v(*backend, empty);
      const DeviceTensor cos_sin(*backend, angles);
      const DeviceTensor weight(*backend, norm);
      const auto* norm_weight = static_cast<const float*>(weight.data());
      const auto attend = [&](bool alone) {
        const DeviceTensor rows(*backend, qkv);
        const DeviceTensor out(*backend, HostTensor(act, batch.n_tokens(), int64_t{kHeads} * kDim));
        const Matrix heads = rows.matrix();
        backend->attention(backend->upload(batch),
                           alone ? heads.columns(0, int64_t{kHeads} * kDim) : heads,
                           cos_sin.matrix(),
                           {.norm = NormKind::rms,
                            .q_weight = norm_weight,
                            .k_weight = alone ? nullptr : norm_weight,
                            .eps = 1e-6F,
                            .query_scaling = 0.1F,
                            .query_scaling_from = 16},
                           {k.data(), v.data(), kv_type, n_pages, kKvHeads, kDim, kDim},
                           {.scale = 0.2F, .window = kWindow}, out.matrix());
        return out.fetch();
      };
      const HostTensor with_keys = attend(false);
      expect_equal(attend(true), with_keys, backend->description() + ": queries alone");
    }
  }
}

// Against the formula, which the reference must fulfil too: queries and new keys of ones, whose
// values are ones, after keys and values of zeros.
TEST_P(BackendRope, AppendScalesQueriesByTheirPositions) {
  constexpr int32_t kDim = 4;
  constexpr int32_t kFrom = 16;
  constexpr int32_t kCached = 30;
  const Batch batch = make_batch(random_, {{1, 1}, {40, kCached + 40}}, 4);
  const auto check = [&](Backend& backend, DType act, DType kv_type, int32_t ahead, bool power) {
    const HostTensor ones =
        HostTensor(act, batch.n_tokens(), int64_t{3} * kDim).map(act, [](float) { return 1.0F; });
    const HostTensor empty =
        HostTensor(kv_type, 4, int64_t{kPageTokens} * kDim).map(kv_type, [](float) {
          return 0.0F;
        });
    const DeviceTensor qkv(backend, ones);
    const DeviceTensor cos_sin(backend, HostTensor(DType::f32, batch.n_tokens(), 0));
    const DeviceTensor k(backend, empty);
    const DeviceTensor v(backend, empty);
    const DeviceTensor out(backend, HostTensor(act, batch.n_tokens(), kDim));
    backend.attention(backend.upload(batch), qkv.matrix(), cos_sin.matrix(),
                      {.query_power = power,
                       .query_scaling = 0.1F,
                       .query_scaling_from = kFrom,
                       .query_scaling_ahead = ahead},
                      {k.data(), v.data(), kv_type, 4, 1, kDim, kDim}, {.scale = 1.0F / kDim},
                      out.matrix());
    const HostTensor got = out.fetch();
    const HostTensor keys = k.fetch();
    for (int32_t t = 0; t < batch.n_tokens(); ++t) {
      const int32_t position = batch.positions[static_cast<size_t>(t)];
      const int32_t zeros = t == 0 ? 0 : kCached;
      const double lengths = static_cast<double>(position + ahead) / kFrom;
      const double score =
          power ? std::pow(1 + lengths, 0.1) : 1 + 0.1 * std::log(1 + std::floor(lengths));
      const double weight = (position + 1 - zeros) * std::exp(score);
      EXPECT_NEAR(got.at(t, 0), weight / (weight + zeros), 4 * unit_roundoff(act) + 1e-5)
          << backend.description() << ", position " << position;
    }
    const int32_t page = batch.page_table[0];
    EXPECT_EQ(keys.at(page, 0), 1) << backend.description();
  };
  for (const bool power : {false, true}) {
    for (const int32_t ahead : {0, 1}) {
      check(*reference_, DType::f32, DType::f32, ahead, power);
      for (const WeightFormat weights : kFloatFormats) {
        for (const auto& backend : backends_) {
          check(*backend, backend->activation_dtype(weights), backend->kv_dtype(weights), ahead,
                power);
        }
      }
    }
  }
}

FASTSTREAM_INSTANTIATE_BACKENDS(BackendRope);

}  // namespace
}  // namespace faststream
