// Which experts a token uses, against the formulas of the models that the rules come from.
#include "kernels/cpu/experts/router.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <stdexcept>
#include <vector>

namespace faststream {
namespace {

std::vector<ChosenExpert> choose(const std::vector<float>& logits, const Router& router) {
  std::vector<ChosenExpert> chosen(static_cast<size_t>(router.used));
  choose_experts(logits, router, chosen);
  return chosen;
}

std::vector<int32_t> numbers(const std::vector<ChosenExpert>& chosen) {
  std::vector<int32_t> result;
  for (const ChosenExpert& one : chosen) result.push_back(one.expert);
  return result;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

TEST(Router, WeighsByTheSoftmaxOfAllExperts) {
  const auto chosen = choose({1, 3, 2, 0}, {.used = 2});
  const double total = std::exp(1) + std::exp(3) + std::exp(2) + 1;
  EXPECT_EQ(numbers(chosen), (std::vector<int32_t>{1, 2}));
  EXPECT_FLOAT_EQ(chosen[0].weight, static_cast<float>(std::exp(3) / total));
  EXPECT_FLOAT_EQ(chosen[1].weight, static_cast<float>(std::exp(2) / total));
}

TEST(Router, NormalizesAndScalesWeights) {
  const auto chosen = choose({1, 3, 2, 0}, {.used = 2, .normalized = true, .scale = 2.5F});
  EXPECT_FLOAT_EQ(chosen[0].weight, static_cast<float>(2.5 / (1 + std::exp(-1))));
  EXPECT_FLOAT_EQ(chosen[1].weight, static_cast<float>(2.5 / (1 + std::exp(1))));
}

TEST(Router, ChoosesWithTheCorrectionAndWeighsWithoutIt) {
  const std::vector<float> correction = {0, -1, 0, 0.5F};
  const auto chosen = choose(
      {1, 3, 2, 0}, {.used = 2, .score = Router::Score::sigmoid, .correction = correction.data()});
  EXPECT_EQ(numbers(chosen), (std::vector<int32_t>{3, 2}));  // 1.0, 0.88
  EXPECT_FLOAT_EQ(chosen[0].weight, 0.5F);
  EXPECT_FLOAT_EQ(chosen[1].weight, static_cast<float>(sigmoid(2)));
}

// As Transformers' Kolibri 1. Sigmoids with the correction would choose the first, not the second.
TEST(Router, ChoosesByLogitsAndWeighsBySigmoids) {
  const std::vector<float> correction = {0, -2.1F, -1.4F, 1};
  const auto chosen = choose({0.5F, 3, 2, 0}, {.used = 2,
                                               .score = Router::Score::logit,
                                               .correction = correction.data(),
                                               .normalized = true});
  EXPECT_EQ(numbers(chosen), (std::vector<int32_t>{3, 1}));
  EXPECT_FLOAT_EQ(chosen[0].weight, static_cast<float>(0.5 / (0.5 + sigmoid(3))));
  EXPECT_FLOAT_EQ(chosen[1].weight, static_cast<float>(sigmoid(3) / (0.5 + sigmoid(3))));
}

// The best expert of all is in a group whose two best are worse than another's.
TEST(Router, TakesOnlyTheGroupsWhoseTwoBestSumToMost) {
  const std::vector<float> logits = {5, -9, -9, 2, 2, -9, 1, 1.5F, -9};
  Router router = {.used = 2, .score = Router::Score::sigmoid, .groups = 3, .groups_used = 1};
  EXPECT_EQ(numbers(choose(logits, router)), (std::vector<int32_t>{3, 4}));
  router.groups_used = 2;
  EXPECT_EQ(numbers(choose(logits, router)), (std::vector<int32_t>{3, 4}));
  router.used = 4;
  EXPECT_EQ(numbers(choose(logits, router)), (std::vector<int32_t>{3, 4, 7, 6}));
  router.groups_used = 3;
  EXPECT_EQ(numbers(choose(logits, router)), (std::vector<int32_t>{0, 3, 4, 7}));
}

TEST(Router, TakesTheSmallerNumberOfEqualExpertsAndGroups) {
  const std::vector<float> equal(6, 0.25F);
  EXPECT_EQ(numbers(choose(equal, {.used = 3})), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(numbers(choose(equal, {.used = 3, .groups = 3, .groups_used = 2})),
            (std::vector<int32_t>{0, 1, 2}));
}

// As Transformers' Phi-MoE: the second expert's softmax is without the first.
TEST(Router, MixesSparselyThoseNearTheBest) {
  const Router router{.used = 2, .score = Router::Score::sparse_mixer, .margin = 0.5F};
  const auto chosen = choose({1.4F, 3, 2, -5}, router);
  EXPECT_EQ(numbers(chosen), (std::vector<int32_t>{1, 2}));
  EXPECT_FLOAT_EQ(chosen[0].weight, static_cast<float>(1 / (1 + std::exp(-1))));
  EXPECT_FLOAT_EQ(chosen[1].weight, static_cast<float>(1 / (1 + std::exp(-0.6))));
  const auto below_zero = choose({-4, -1, -1.5F}, router);
  EXPECT_EQ(numbers(below_zero), (std::vector<int32_t>{1, 2}));
  EXPECT_FLOAT_EQ(below_zero[0].weight, static_cast<float>(1 / (1 + std::exp(-0.5))));
  EXPECT_FLOAT_EQ(below_zero[1].weight, 1);
}

TEST(Router, DoesNotDivideByZero) {
  const auto chosen =
      choose({-2000, -2000}, {.used = 2, .score = Router::Score::sigmoid, .normalized = true});
  EXPECT_EQ(chosen[0].weight, 0);
  EXPECT_EQ(chosen[1].weight, 0);
}

TEST(Router, GivesExpertsThatExistForLogitsThatAreNot) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const std::vector<float>& logits : {std::vector<float>{kNan, 1, 2, 3},
                                           {1, kNan, kNan, 0},
                                           std::vector<float>(4, kNan),
                                           std::vector<float>(4, -kInfinity),
                                           std::vector<float>(4, kInfinity)}) {
    for (const ChosenExpert& one :
         choose(logits, {.used = 2, .score = Router::Score::sparse_mixer, .margin = 0.1F})) {
      EXPECT_GE(one.expert, 0);
      EXPECT_LT(one.expert, 4);
    }
    for (const auto score :
         {Router::Score::softmax, Router::Score::sigmoid, Router::Score::logit}) {
      for (const int32_t groups : {1, 2}) {
        for (const ChosenExpert& one :
             choose(logits, {.used = 2, .score = score, .groups = groups, .groups_used = 1})) {
          EXPECT_GE(one.expert, 0);
          EXPECT_LT(one.expert, 4);
        }
      }
    }
  }
}

TEST(Router, RefusesRulesThatDoNotFit) {
  const std::vector<float> logits(6);
  EXPECT_THROW(choose(logits, {.used = 7}), std::logic_error);
  EXPECT_THROW(choose(logits, {.used = 1, .groups = 4}), std::logic_error);
  EXPECT_THROW(choose(logits, {.used = 1, .groups = 2, .groups_used = 3}), std::logic_error);
  EXPECT_THROW(choose(logits, {.used = 4, .groups = 2, .groups_used = 1}), std::logic_error);
  EXPECT_THROW(choose_experts(logits, {.used = 2}, {}), std::logic_error);
  EXPECT_THROW(choose(logits, {.used = 1, .score = Router::Score::sparse_mixer, .groups = 2}),
               std::logic_error);
}

}  // namespace
}  // namespace faststream
