// Sampling on every backend: the same tokens as the reference, the right distribution, the corners.
#include <limits>

#include "support/error.h"
#include "unit/backend_fixture.h"

namespace faststream {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class BackendSample : public BackendTest {
 protected:
  static std::vector<int32_t> sample(Backend& backend, const HostTensor& logits,
                                     const std::vector<SamplingRow>& rules) {
    const DeviceTensor device(backend, logits);
    std::vector<SampledToken> sampled(rules.size());
    backend.sample(device.matrix(), rules, sampled);
    std::vector<int32_t> tokens;
    for (const SampledToken& s : sampled) tokens.push_back(s.token);
    return tokens;
  }

  /// One row of logits, one rule.
  int32_t sample_one(const std::vector<float>& logits, const SamplingRow& rule) {
    HostTensor row(DType::f32, 1, static_cast<int64_t>(logits.size()));
    for (size_t i = 0; i < logits.size(); ++i) row.set(0, static_cast<int64_t>(i), logits[i]);
    return sample(*backend_, row, {rule})[0];
  }
};

SamplingRow rule_of(float temperature, int32_t top_k, float top_p, uint64_t position = 0) {
  return {temperature, top_k, top_p, 0x123456789abcdefULL, 7, position};
}

TEST_P(BackendSample, DrawsTheSameTokensAsTheReference) {
  for (const int64_t vocab : {1, 2, 50, 1000, 1024, 1025, 32000, 128256}) {
    std::vector<SamplingRow> rules;
    for (const float temperature : {0.0F, 0.3F, 0.8F, 1.0F, 2.0F}) {
      for (const int32_t top_k : {0, 1, 2, 40, 1000, 1024, 1500}) {
        for (const float top_p : {0.0F, 0.1F, 0.95F, 1.0F}) {
          // A row of a large vocabulary in full order takes long on the reference.
          if (vocab > 2000 && top_k % 3 == 1 && top_p != 0.95F) continue;
          rules.push_back({temperature, top_k, top_p, random_(), random_() % 5, rules.size()});
        }
      }
    }
    const HostTensor logits =
        random_tensor(random_, DType::f32, static_cast<int64_t>(rules.size()), vocab, 4, 3);
    const auto got = sample(*backend_, logits, rules);
    const auto want = sample(*reference_, logits, rules);
    for (size_t i = 0; i < rules.size(); ++i) {
      EXPECT_EQ(got[i], want[i]) << "vocabulary " << vocab << ", temperature "
                                 << rules[i].temperature << ", top_k " << rules[i].top_k
                                 << ", top_p " << rules[i].top_p;
    }
  }
}

TEST_P(BackendSample, DrawsTheSameTokensAmongManyTies) {
  HostTensor logits = random_tensor(random_, DType::f32, 60, 5000);
  logits = logits.map(DType::f32, [](float v) { return std::round(v); });  // -0 and 0 among them
  std::vector<SamplingRow> rules;
  rules.reserve(60);
  for (int i = 0; i < 60; ++i) {
    rules.push_back(
        rule_of(1, 1 + i * 37 % 1500, i % 2 == 0 ? 1.0F : 0.7F, static_cast<uint64_t>(i)));
  }
  EXPECT_EQ(sample(*backend_, logits, rules), sample(*reference_, logits, rules));
}

TEST_P(BackendSample, ADrawDoesNotDependOnTheBatch) {
  const HostTensor logits = random_tensor(random_, DType::f32, 8, 300);
  std::vector<SamplingRow> rules;
  for (uint64_t i = 0; i < 8; ++i) rules.push_back(rule_of(1, 0, 1, i));
  const auto together = sample(*backend_, logits, rules);
  for (int64_t r = 0; r < 8; ++r) {
    std::vector<float> row;
    for (int64_t c = 0; c < 300; ++c) row.push_back(logits.at(r, c));
    EXPECT_EQ(sample_one(row, rules[static_cast<size_t>(r)]), together[static_cast<size_t>(r)]);
  }
}

// Chi-square of 100,000 draws against the exact probabilities; six deviations of its distribution
// (mean k, variance 2k), for fixed seeds.
TEST_P(BackendSample, TheDistributionOfDrawsIsExact) {
  constexpr int64_t kVocab = 60;
  constexpr int64_t kRows = 2000;
  constexpr int kRounds = 50;
  struct Case {
    float temperature;
    int32_t top_k;
    float top_p;
  };
  for (const Case& test :
       {Case{1.0F, 0, 1.0F}, Case{0.8F, 40, 0.95F}, Case{1.7F, 10, 1.0F}, Case{1.0F, 0, 0.5F}}) {
    const HostTensor row = random_tensor(random_, DType::f32, 1, kVocab, 0, 1.5F);
    HostTensor logits(DType::f32, kRows, kVocab);
    std::vector<std::pair<double, int64_t>> order;
    for (int64_t c = 0; c < kVocab; ++c) {
      for (int64_t r = 0; r < kRows; ++r) logits.set(r, c, row.at(0, c));
      order.emplace_back(std::exp(double{row.at(0, c)} / test.temperature), c);
    }
    std::sort(order.rbegin(), order.rend());
    if (test.top_k > 0) order.resize(static_cast<size_t>(test.top_k));
    double total = 0;
    for (const auto& [p, id] : order) total += p;
    double sum = 0;
    size_t kept = 0;
    while (kept < order.size() && (kept == 0 || sum < test.top_p * total)) {
      sum += order[kept++].first;
    }
    order.resize(test.top_p < 1 ? kept : order.size());
    std::vector<double> expected(kVocab);
    for (const auto& [p, id] : order) {
      expected[static_cast<size_t>(id)] = p / (test.top_p < 1 ? sum : total) * kRows * kRounds;
    }

    std::vector<int64_t> counts(kVocab);
    for (uint64_t round = 0; round < kRounds; ++round) {
      std::vector<SamplingRow> rules;
      for (uint64_t r = 0; r < kRows; ++r) {
        rules.push_back({test.temperature, test.top_k, test.top_p, 42, round, r});
      }
      for (const int32_t token : sample(*backend_, logits, rules)) {
        ++counts[static_cast<size_t>(token)];
      }
    }
    double chi_square = 0;
    for (size_t i = 0; i < kVocab; ++i) {
      if (expected[i] == 0) {
        EXPECT_EQ(counts[i], 0) << "token " << i << " is not among the candidates";
        continue;
      }
      const double difference = static_cast<double>(counts[i]) - expected[i];
      chi_square += difference * difference / expected[i];
    }
    const double freedom = static_cast<double>(order.size()) - 1;
    EXPECT_LT(chi_square, freedom + 6 * std::sqrt(2 * freedom))
        << "temperature " << test.temperature << ", top_k " << test.top_k << ", top_p "
        << test.top_p;
  }
}

TEST_P(BackendSample, GreedyTakesTheSmallestIdAmongEquals) {
  EXPECT_EQ(sample_one({1, 3, -2, 3, 3}, rule_of(0, 0, 1)), 1);
  EXPECT_EQ(sample_one({-0.0F, 0.0F}, rule_of(0, 0, 1)), 0);
  std::vector<float> logits(128256, -1.0F);
  logits[77777] = logits[128255] = 2;
  EXPECT_EQ(sample_one(logits, rule_of(0, 0, 1)), 77777);
}

TEST_P(BackendSample, OneCandidateIsAlwaysTaken) {
  for (uint64_t position = 0; position < 20; ++position) {
    EXPECT_EQ(sample_one({1, 3, 2, 3}, rule_of(5, 1, 1, position)), 1) << "top_k 1";
    EXPECT_EQ(sample_one({1, 3, 2, 3}, rule_of(5, 0, 0, position)), 1) << "top_p 0";
    EXPECT_EQ(sample_one({-4}, rule_of(1, 0, 1, position)), 0) << "vocabulary of one";
    EXPECT_EQ(sample_one({-kInfinity, -kInfinity, 3, -kInfinity}, rule_of(1, 0, 1, position)), 2);
  }
}

TEST_P(BackendSample, MoreCandidatesThanTheVocabularyAreAll) {
  const HostTensor logits = random_tensor(random_, DType::f32, 30, 90);
  std::vector<SamplingRow> all;
  std::vector<SamplingRow> many;
  for (uint64_t i = 0; i < 30; ++i) {
    all.push_back(rule_of(1, 0, 1, i));
    many.push_back(rule_of(1, 1000000, 1, i));
  }
  EXPECT_EQ(sample(*backend_, logits, all), sample(*backend_, logits, many));
}

TEST_P(BackendSample, RefusesLogitsThatAreNotNumbers) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float temperature : {0.0F, 1.0F}) {
    EXPECT_THROW(sample_one({1, nan, 2}, rule_of(temperature, 0, 1)), Error);
    EXPECT_THROW(sample_one({1, -nan, 2}, rule_of(temperature, 2, 1)), Error);
    EXPECT_THROW(sample_one({1, kInfinity}, rule_of(temperature, 0, 1)), Error);
    EXPECT_THROW(sample_one({-kInfinity, -kInfinity}, rule_of(temperature, 0, 1)), Error);
  }
  EXPECT_EQ(sample_one({1, 2}, rule_of(0, 0, 1)), 1) << "the backend works on after an error";
}

FASTSTREAM_INSTANTIATE_BACKENDS(BackendSample);

}  // namespace
}  // namespace faststream
