#include "convert/weights/balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace faststream::convert {
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

TEST(Balance, BalancesValuesWithAllQueriesTheyServe) {
  const std::vector<double> values = {1, 4, 1, 1};                  // two heads of two elements
  const std::vector<double> columns = {1, 2, 3, 14, 5, 5, 80, 80};  // four heads
  const std::vector<float> factors = value_factors(2, values, columns);
  ASSERT_EQ(factors.size(), 4U);
  EXPECT_NEAR(geometric_mean(factors), 1, 1e-6);
  EXPECT_NEAR(factors[1] / factors[0], 1, 1e-6) << "(2 + 14) / 4 is (1 + 3) / 1";
  EXPECT_NEAR(factors[2] / factors[0], std::pow(85.0 / 4, 0.25), 1e-5);
  EXPECT_EQ(factors[3], factors[2]);
  const std::vector<float> of_queries = factors_of_queries(2, factors, 8);
  const std::vector<size_t> from = {0, 1, 0, 1, 2, 3, 2, 3};
  for (size_t c = 0; c < from.size(); ++c) EXPECT_EQ(of_queries[c], factors[from[c]]) << c;
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

TEST(Balance, LeavesAloneANormThatMoreThanOneProductReads) {
  const auto balances_norm = [](const ModelConfig& config) {
    const std::vector<TensorPlan> plans = tensor_plan(config);
    const auto norm = std::ranges::find(plans, "layers.0.attention_norm", &TensorPlan::name);
    return balanced_matrix(config, plans, static_cast<size_t>(norm - plans.begin())).has_value();
  };
  ModelConfig config = plain_decoder({.n_layers = 1,
                                      .hidden = 64,
                                      .n_heads = 4,
                                      .n_kv_heads = 2,
                                      .head_dim = 16,
                                      .ffn_hidden = 128,
                                      .vocab = 100,
                                      .max_context = 512});
  config.weight_format = WeightFormat::int8;
  config.rotated = true;
  EXPECT_TRUE(balances_norm(config));
  config.layer_kinds[0].laurel = {.rank = 8, .norm = config.output.norm};
  EXPECT_FALSE(balances_norm(config));
}

// What a norm, or another layer, does with values depends on their size.
TEST(Balance, LeavesAloneValuesThatOthersSeeToo) {
  const auto balances_values = [](const ModelConfig& config) {
    const std::vector<TensorPlan> plans = tensor_plan(config);
    const auto qkv = std::ranges::find(plans, "layers.0.attention_qkv", &TensorPlan::name);
    return balanced_matrix(config, plans, static_cast<size_t>(qkv - plans.begin())).has_value();
  };
  ModelConfig config = plain_decoder({.n_layers = 2,
                                      .hidden = 64,
                                      .n_heads = 4,
                                      .n_kv_heads = 2,
                                      .head_dim = 16,
                                      .ffn_hidden = 128,
                                      .vocab = 100,
                                      .max_context = 512});
  config.weight_format = WeightFormat::int8;
  config.rotated = config.values_rotated = true;
  EXPECT_TRUE(balances_values(config));
  ModelConfig normed = config;
  normed.layer_kinds[0].attention().v_norm = true;
  EXPECT_FALSE(balances_values(normed));
  config.layer_kinds.push_back(config.layer_kinds[0]);
  config.layer_kinds[1].attention().kv_of = 0;
  config.layers[1] = 1;
  EXPECT_FALSE(balances_values(config));
}

}  // namespace
}  // namespace faststream::convert
