#include "convert/balance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace faststream {
namespace {

double geometric_mean(const std::vector<float>& factors) {
  double sum = 0;
  for (const float factor : factors) sum += std::log(factor);
  return std::exp(sum / static_cast<double>(factors.size()));
}

TEST(Balance, MakesColumnsAndWhatTheyAreMultipliedWithAlike) {
  const std::vector<double> gate_up = {4, 1, 9, 1, 16, 1};  // G's rows, then U's
  const std::vector<double> columns = {1, 4, 25};
  const std::vector<float> factors = middle_factors(3, gate_up, columns);
  ASSERT_EQ(factors.size(), 3U);
  EXPECT_NEAR(geometric_mean(factors), 1, 1e-6);
  // |D_i| / f_i over |G_i| |U_i| f_i
  const auto ratio = [&](size_t i) {
    return std::sqrt(columns[i] / (gate_up[i] * gate_up[3 + i])) / std::pow(double{factors[i]}, 2);
  };
  EXPECT_NEAR(ratio(1) / ratio(0), 1, 1e-5);
  EXPECT_NEAR(ratio(2) / ratio(0), 1, 1e-5);
}

TEST(Balance, TakesEachExpertByItself) {
  const std::vector<double> one = {4, 1, 1, 1};
  const std::vector<double> other = {1, 1, 1, 100};
  std::vector<double> both = one;
  both.insert(both.end(), other.begin(), other.end());
  std::vector<float> want = middle_factors(2, one, std::vector<double>{1, 1});
  const std::vector<float> second = middle_factors(2, other, std::vector<double>{7, 1});
  want.insert(want.end(), second.begin(), second.end());
  EXPECT_EQ(middle_factors(2, both, std::vector<double>{1, 1, 7, 1}), want);
}

TEST(Balance, GivesLargerInputsToLargerColumns) {
  const std::vector<float> factors = norm_factors(std::vector<double>{1, 256});
  EXPECT_NEAR(factors[1] / factors[0], std::pow(16, 0.75), 1e-5);
}

TEST(Balance, LeavesAloneWhatIsZeroOrNotFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<float> factors =
      norm_factors(std::vector<double>{0, infinity, std::nan(""), 1, 1, 1e300});
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(factors[i], 1) << i;
  for (const float factor : factors) {
    EXPECT_GT(factor, 0.04F);
    EXPECT_LT(factor, 21);
  }
  EXPECT_EQ(norm_factors(std::vector<double>{0, 0}), (std::vector<float>{1, 1}));
}

}  // namespace
}  // namespace faststream
