#include "kernels/cpu/experts/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/cpu/host_backend.h"

namespace faststream {
namespace {

constexpr double kTaken = -std::numeric_limits<double>::infinity();

std::vector<double> scores_of(std::span<const float> logits, Router::Score kind) {
  std::vector<double> scores(logits.begin(), logits.end());
  switch (kind) {
    case Router::Score::softmax: {
      const double largest = *std::max_element(scores.begin(), scores.end());
      double total = 0;
      for (double& score : scores) total += score = std::exp(score - largest);
      for (double& score : scores) score /= total;
      break;
    }
    case Router::Score::sigmoid:
    case Router::Score::logit:  // which only weighs
      for (double& score : scores) score = 1 / (1 + std::exp(-score));
      break;
    case Router::Score::sparse_mixer:  // as they are chosen
      break;
  }
  return scores;
}

/// The index of the largest value, the first of equal ones, which becomes kTaken.
size_t take_largest(std::span<double> values) {
  const auto largest = std::max_element(values.begin(), values.end());
  *largest = kTaken;
  return static_cast<size_t>(largest - values.begin());
}

/// Of an expert whose logit is the largest of `logits`, a softmax among those near it.
double share_of_largest(std::span<const double> logits, float margin) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const double logit : logits) {
    const bool is_far = (largest - logit) / std::max(std::abs(logit), largest) > margin;
    if (logit != kTaken && !is_far) total += std::exp(logit - largest);
  }
  return 1 / total;
}

double group_score(std::span<const double> scores, Router::GroupScore kind) {
  double best = kTaken;
  double second = kTaken;
  for (const double score : scores) {
    second = std::max(second, std::min(best, score));
    best = std::max(best, score);
  }
  const bool is_best = kind == Router::GroupScore::largest || scores.size() == 1;
  return is_best ? best : best + second;
}

/// Makes the scores of all groups but the best ones kTaken.
void keep_best_groups(const Router& router, std::span<double> scores) {
  const size_t size = scores.size() / static_cast<size_t>(router.groups);
  std::vector<double> groups;
  for (size_t first = 0; first < scores.size(); first += size) {
    groups.push_back(group_score(scores.subspan(first, size), router.group_score));
  }
  std::vector<bool> kept(groups.size());
  for (int32_t i = 0; i < router.groups_used; ++i) kept[take_largest(groups)] = true;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (!kept[i / size]) scores[i] = kTaken;
  }
}

}  // namespace

void choose_experts(std::span<const float> logits, const Router& router,
                    std::span<ChosenExpert> chosen) {
  const auto n_experts = static_cast<int64_t>(logits.size());
  require(router.used >= 1 && std::cmp_equal(chosen.size(), router.used) && router.groups >= 1 &&
              n_experts % router.groups == 0 && router.groups_used >= 1 &&
              router.groups_used <= router.groups &&
              router.used <= n_experts / router.groups * router.groups_used,
          "experts: the router does not fit the number of experts");
  const bool is_mixer = router.score == Router::Score::sparse_mixer;
  require(!is_mixer || (router.correction == nullptr && router.groups == 1),
          "experts: a sparse mixer has neither a correction nor groups");
  std::vector<double> scores = scores_of(logits, router.score);
  std::vector<double> choice = scores;
  if (router.score == Router::Score::logit) choice.assign(logits.begin(), logits.end());
  for (size_t e = 0; router.correction != nullptr && e < choice.size(); ++e) {
    choice[e] += router.correction[e];
  }
  if (router.groups_used < router.groups) keep_best_groups(router, choice);

  double total = 0;
  for (ChosenExpert& one : chosen) {
    const double share = is_mixer ? share_of_largest(choice, router.margin) : 0;
    const size_t expert = take_largest(choice);
    one.expert = static_cast<int32_t>(expert);
    if (is_mixer) scores[expert] = share;
    total += scores[expert];
  }
  // Sigmoids may all be zero.
  const double factor = router.normalized ? router.scale / (total + 1e-20) : router.scale;
  for (ChosenExpert& one : chosen) {
    one.weight = static_cast<float>(scores[static_cast<size_t>(one.expert)] * factor);
    if (router.expert_scales != nullptr) one.weight *= router.expert_scales[one.expert];
  }
}

}  // namespace faststream
