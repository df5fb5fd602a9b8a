#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cpu/philox.h"
#include "kernels/cpu/sample.h"
#include "support/error.h"

namespace faststream {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> random_logits(size_t vocab, unsigned seed, float spread) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(vocab);
  for (float& logit : logits) {
    logit = normal(random);
  }
  return logits;
}

std::vector<size_t> descending(const std::vector<float>& logits) {
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  return order;
}

/// Exact probabilities after temperature, top-k and top-p, by sorting everything, in double.
std::vector<double> exact_probabilities(const std::vector<float>& logits, const SamplingRow& rule) {
  const std::vector<size_t> order = descending(logits);
  std::vector<double> probabilities(logits.size());
  const size_t k =
      rule.top_k > 0 ? std::min(order.size(), static_cast<size_t>(rule.top_k)) : order.size();
  double total = 0;
  for (size_t i = 0; i < k; ++i) {
    total += probabilities[order[i]] =
        std::exp((double{logits[order[i]]} - logits[order[0]]) / rule.temperature);
  }
  double kept = 0;
  size_t n = 0;
  while (n < k && (n == 0 || kept < rule.top_p * total)) {
    kept += probabilities[order[n++]];
  }
  for (size_t i = n; i < k; ++i) {
    probabilities[order[i]] = 0;
  }
  for (double& p : probabilities) {
    p /= kept;
  }
  return probabilities;
}

int32_t draw(const std::vector<float>& logits, const SamplingRow& rule) {
  std::vector<Candidate> scratch;
  return sample_row(logits, rule, scratch);
}

struct Statistic {
  double chi_square = 0;
  int degrees = 0;
};

/// Pearson's chi-square of `draws` draws; tokens with fewer than 10 expected draws form one class.
Statistic chi_square(const std::vector<float>& logits, SamplingRow rule, int draws) {
  const std::vector<double> expected = exact_probabilities(logits, rule);
  std::vector<int> counts(logits.size());
  std::vector<Candidate> scratch;
  for (int i = 0; i < draws; ++i) {
    rule.position = static_cast<uint64_t>(i);
    const int32_t token = sample_row(logits, rule, scratch);
    EXPECT_GT(expected[static_cast<size_t>(token)], 0) << "token " << token << " is not allowed";
    ++counts[static_cast<size_t>(token)];
  }
  Statistic statistic;
  double rest_expected = 0;
  double rest_count = 0;
  const auto add = [&](double mean, double count) {
    statistic.chi_square += (count - mean) * (count - mean) / mean;
    ++statistic.degrees;
  };
  for (size_t i = 0; i < counts.size(); ++i) {
    const double mean = expected[i] * draws;
    if (mean >= 10) {
      add(mean, counts[i]);
    } else {
      rest_expected += mean;
      rest_count += counts[i];
    }
  }
  if (rest_expected >= 10) add(rest_expected, rest_count);
  --statistic.degrees;
  return statistic;
}

TEST(SampleCpu, DrawsFollowTheExactProbabilities) {
  const std::vector<SamplingRow> rules = {
      {.temperature = 1.0F, .seed = 1},
      {.temperature = 0.7F, .top_k = 10, .seed = 2},
      {.temperature = 1.3F, .top_p = 0.8F, .seed = 3},
      {.temperature = 0.8F, .top_k = 40, .top_p = 0.95F, .seed = 4, .sequence = 7},
  };
  for (const size_t vocab : {5, 300}) {
    const std::vector<float> logits = random_logits(vocab, 11, 2);
    for (const SamplingRow& rule : rules) {
      const Statistic s = chi_square(logits, rule, 100000);
      // The statistic has mean d and variance 2 d: five deviations are less likely than 1e-5, with
      // room for the skewness of few degrees of freedom. The seeds are fixed.
      EXPECT_LT(s.chi_square, s.degrees + 5 * std::sqrt(2.0 * s.degrees) + 10)
          << "vocabulary " << vocab << ", seed " << rule.seed << ", " << s.degrees
          << " degrees of freedom";
    }
  }
}

TEST(SampleCpu, DrawsTheFirstTokenWhoseCumulativeProbabilityExceedsTheUniform) {
  const std::vector<float> logits = random_logits(2000, 3, 3);
  const std::vector<size_t> order = descending(logits);
  for (uint64_t position = 0; position < 500; ++position) {
    const SamplingRow rule{.temperature = 1, .seed = 99, .sequence = 5, .position = position};
    const std::vector<double> probabilities = exact_probabilities(logits, rule);
    const double u = sampling_uniform(99, 5, position);
    size_t rank = 0;
    for (double cumulative = probabilities[order[0]]; cumulative <= u;) {
      cumulative += probabilities[order[++rank]];
    }
    ASSERT_EQ(draw(logits, rule), static_cast<int32_t>(order[rank])) << "position " << position;
  }
}

TEST(SampleCpu, TemperatureZeroTakesTheSmallestIdOfTheLargestLogits) {
  EXPECT_EQ(draw({1, 3, 3, 2}, {.temperature = 0}), 1);
  EXPECT_EQ(draw({-kInfinity, -5, -kInfinity}, {.temperature = 0}), 1);
}

TEST(SampleCpu, TopKOfOneAndTinyTopPAreGreedy) {
  const std::vector<float> logits = {0, 2, 5, 5, 1};
  for (uint64_t position = 0; position < 50; ++position) {
    EXPECT_EQ(draw(logits, {.temperature = 2, .top_k = 1, .position = position}), 2);
    EXPECT_EQ(draw(logits, {.temperature = 2, .top_p = 1e-6F, .position = position}), 2);
    EXPECT_EQ(draw(logits, {.temperature = 1e-30F, .top_p = 0.4F, .position = position}), 2);
  }
}

TEST(SampleCpu, NeverDrawsALogitOfMinusInfinity) {
  const std::vector<float> logits = {-kInfinity, 1, -kInfinity, 1, -kInfinity};
  for (uint64_t position = 0; position < 200; ++position) {
    EXPECT_EQ(draw(logits, {.temperature = 1, .position = position}) % 2, 1);
    EXPECT_EQ(draw(logits, {.temperature = 1, .top_k = 4, .position = position}) % 2, 1);
  }
}

TEST(SampleCpu, RefusesLogitsThatAreNotNumbers) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float temperature : {0.0F, 1.0F}) {
    const SamplingRow rule{.temperature = temperature};
    EXPECT_THROW(draw({1, nan, 2}, rule), Error);
    EXPECT_THROW(draw({-kInfinity, -kInfinity}, rule), Error);
    EXPECT_THROW(draw({1, kInfinity}, rule), Error);
  }
}

}  // namespace
}  // namespace faststream
