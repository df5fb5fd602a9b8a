// Rankings of tokens for beam searches, on every backend: the same tokens as exact arithmetic, the
// same numbers as the reference.
#include <limits>

#include "support/error.h"
#include "unit/backend/backend_fixture.h"
#include "unit/effort.h"
#include "unit/normal.h"

namespace faststream {
namespace {

constexpr float kEndless = std::numeric_limits<float>::infinity();

class BackendRank : public BackendTest {
 protected:
  std::vector<float> random_row(size_t vocab, float deviation = 3) {
    Normal normal(deviation);
    std::vector<float> row(vocab);
    for (float& logit : row) logit = normal(random_);
    return row;
  }

  static double log_total(const std::vector<LogProbability>& all) {
    double total = 0;
    for (const LogProbability& token : all) total += std::exp(double{token.value});
    return std::log(total);
  }

  /// Log-probabilities after the edits, in double, as tokens in order.
  static std::vector<LogProbability> exact(const std::vector<float>& row, const SamplingRow& rule) {
    const double largest = *std::max_element(row.begin(), row.end());
    double total = 0;
    for (const float logit : row) total += std::exp(logit - largest);
    std::vector<LogProbability> all;
    for (size_t i = 0; i < row.size(); ++i) {
      all.push_back(
          {static_cast<int32_t>(i), static_cast<float>(row[i] - largest - std::log(total))});
    }
    for (const LogitEdit& edit : rule.edits) {
      float& value = all[static_cast<size_t>(edit.token)].value;
      value = (value > 0 ? value / edit.repetition : value * edit.repetition) + edit.bias;
    }
    std::erase_if(all, [](const LogProbability& p) { return p.value == -kEndless; });
    const double shift = rule.renormalizes ? log_total(all) : 0;
    for (LogProbability& token : all) token.value = static_cast<float>(token.value - shift);
    std::stable_sort(all.begin(), all.end(), [](const LogProbability& a, const LogProbability& b) {
      return a.value > b.value;
    });
    all.resize(std::min(all.size(), static_cast<size_t>(rule.n_candidates)));
    return all;
  }

  static std::vector<SampledToken> rank(Backend& backend, const std::vector<float>& row,
                                        const std::vector<SamplingRow>& rules) {
    HostTensor logits(DType::f32, static_cast<int64_t>(rules.size()),
                      static_cast<int64_t>(row.size()), 3);
    for (int64_t r = 0; r < logits.rows; ++r) {
      for (size_t i = 0; i < row.size(); ++i) logits.set(r, static_cast<int64_t>(i), row[i]);
    }
    const DeviceTensor device(backend, logits);
    std::vector<SampledToken> ranked(rules.size());
    backend.sample(device.matrix(), rules, ranked);
    return ranked;
  }
  [[nodiscard]] SampledToken rank_one(const std::vector<float>& row,
                                      const SamplingRow& rule) const {
    return rank(*backend_, row, {rule})[0];
  }

  static std::vector<int32_t> ids(const std::vector<LogProbability>& list) {
    std::vector<int32_t> tokens;
    for (const LogProbability& entry : list) tokens.push_back(entry.token);
    return tokens;
  }

  static void expect_near(const std::vector<LogProbability>& actual,
                          const std::vector<LogProbability>& expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      EXPECT_NEAR(actual[i].value, expected[i].value, 3e-6 * (1 + std::abs(expected[i].value)))
          << "place " << i;
    }
  }
};

TEST_P(BackendRank, FindsTheLikeliestTokensOfEveryShape) {
  for (const size_t vocab : {1, 2, 17, 1000, 1023, 32000, 151937}) {
    if (kSanitized && vocab > 10'000) continue;
    const std::vector<float> row = random_row(vocab);
    std::vector<LogitEdit> edits;
    for (size_t i = 0; i < vocab; i += 3) {
      edits.push_back({.token = static_cast<int32_t>(i),
                       .repetition = i % 2 == 0 ? 1.3F : 1.0F,
                       .bias = i % 7 == 6 ? -kEndless : 0.25F * static_cast<float>(i % 5)});
    }
    std::vector<SamplingRow> rules;
    for (const int32_t n : {1, 8, 1024}) {
      rules.push_back({.n_candidates = n});
      rules.push_back({.n_logprobs = 3, .edits = edits, .n_candidates = n});
      rules.push_back({.edits = edits, .n_candidates = n, .renormalizes = true});
    }
    for (const auto& backend : backends_) {
      const std::vector<SampledToken> ranked = rank(*backend, row, rules);
      for (size_t i = 0; i < rules.size(); ++i) {
        SCOPED_TRACE("vocabulary " + std::to_string(vocab) + ", rule " + std::to_string(i));
        expect_near(ranked[i].candidates, exact(row, rules[i]));
        if (vocab < 100) {  // elsewhere tokens are too close for double and float to agree
          EXPECT_EQ(ids(ranked[i].candidates), ids(exact(row, rules[i])));
        }
        EXPECT_EQ(ranked[i].top.size(), i % 3 == 1 ? std::min<size_t>(vocab, 3) : 0);
        if (i % 3 != 2) {
          EXPECT_EQ(ranked[i].renormalization, 0);
        }
      }
    }
  }
}

TEST_P(BackendRank, GivesWhatTheReferenceGives) {
  for (const size_t vocab : {136, 32003}) {
    const std::vector<float> row = random_row(vocab, 8);
    const std::vector<LogitEdit> edits = {{3, 1.2F, 0}, {100, 1, 2.5F}, {7, 1, -kEndless}};
    const std::vector<SamplingRow> rules = {{.n_candidates = 8},
                                            {.edits = edits, .n_candidates = 8},
                                            {.edits = edits, .n_candidates = 300}};
    const std::vector<SampledToken> expected = rank(*reference_, row, rules);
    for (const auto& backend : backends_) {
      const std::vector<SampledToken> actual = rank(*backend, row, rules);
      for (size_t i = 0; i < rules.size(); ++i) {
        EXPECT_EQ(ids(actual[i].candidates), ids(expected[i].candidates));
        expect_near(actual[i].candidates, expected[i].candidates);
      }
    }
  }
}

TEST_P(BackendRank, OrdersEqualTokensByTheirIds) {
  std::vector<float> row(5000, -1.0F);
  row[4000] = row[77] = row[78] = 2;
  EXPECT_EQ(ids(rank_one(row, {.n_candidates = 5}).candidates),
            (std::vector<int32_t>{77, 78, 4000, 0, 1}));
  // Edited log-probabilities that are rounded to the same number are equal, whatever the logits.
  row[4000] = row[77] = 0;
  row[78] = 1e-9F;
  const std::vector<LogitEdit> edit = {{5, 1, -1}};
  EXPECT_EQ(ids(rank_one(row, {.n_candidates = 2}).candidates), (std::vector<int32_t>{78, 77}));
  EXPECT_EQ(ids(rank_one(row, {.edits = edit, .n_candidates = 2}).candidates),
            (std::vector<int32_t>{77, 78}));
}

// In parts of a row that are far below others, or impossible, and where hardly any token counts.
TEST_P(BackendRank, WeighsLogitsOfEverySize) {
  constexpr size_t kVocab = 1000;
  std::vector<std::vector<float>> rows(5, random_row(kVocab));
  std::fill(rows[0].begin() + 64, rows[0].begin() + 256, -kEndless);
  for (size_t i = 0; i < kVocab; ++i) rows[1][i] -= static_cast<float>(i / 64 * 50);
  for (float& logit : rows[2]) logit *= 1e30F;
  for (float& logit : rows[3]) logit += 1e4F;
  std::fill(rows[4].begin(), rows[4].end(), -kEndless);
  rows[4][777] = -3e38F;
  for (const std::vector<float>& row : rows) {
    const SamplingRow rule = {.n_candidates = 100};
    const std::vector<LogProbability> ranked = rank_one(row, rule).candidates;
    EXPECT_EQ(ids(ranked), ids(exact(row, rule)));
    expect_near(ranked, exact(row, rule));
  }
}

// Next to each other, in one part of those that a GPU's threads have, everywhere.
TEST_P(BackendRank, FindsTheLikeliestTokensWhereverTheyAre) {
  constexpr size_t kVocab = 9001;
  std::vector<float> ascending(kVocab);
  std::vector<float> in_one_part(kVocab);
  for (size_t i = 0; i < kVocab; ++i) {
    ascending[i] = 0.01F * static_cast<float>(i);
    in_one_part[i] = i / 4 % 256 == 77 ? 5 + 0.01F * static_cast<float>(i) : -1;
  }
  for (const auto& row : {std::vector<float>(kVocab, -2.5F), ascending, in_one_part}) {
    const std::vector<LogitEdit> edits = {{kVocab - 1, 1, -kEndless}, {3, 1, 100}, {9, 1.5F, 0}};
    for (const int32_t n : {1, 8, 61, 64, 65}) {
      for (const SamplingRow& rule :
           {SamplingRow{.n_candidates = n}, SamplingRow{.edits = edits, .n_candidates = n}}) {
        const std::vector<LogProbability> ranked = rank_one(row, rule).candidates;
        EXPECT_EQ(ids(ranked), ids(exact(row, rule)));
        expect_near(ranked, exact(row, rule));
      }
    }
  }
}

TEST_P(BackendRank, GivesARowTheSameBitsWhereverItLies) {
  const std::vector<float> row = random_row(4000);  // rows begin at any multiple of four bytes
  for (const int32_t n : {8, 100}) {
    const std::vector<SampledToken> ranked =
        rank(*backend_, row, std::vector<SamplingRow>(5, {.n_logprobs = 2, .n_candidates = n}));
    for (const SampledToken& other : ranked) {
      EXPECT_EQ(ids(other.candidates), ids(ranked[0].candidates));
      EXPECT_EQ(other.candidates[0].value, ranked[0].candidates[0].value);
      EXPECT_EQ(other.top[1].value, ranked[0].candidates[1].value);
    }
  }
}

TEST_P(BackendRank, LeavesOutWhatIsForbidden) {
  const std::vector<LogitEdit> bans = {{0, 1, -kEndless}, {2, 1, -kEndless}};
  EXPECT_EQ(ids(rank_one({5, 1, 4, -kEndless}, {.edits = bans, .n_candidates = 4}).candidates),
            (std::vector<int32_t>{1}));
  const std::vector<LogitEdit> all = {{0, 1, -kEndless}, {1, 1, -kEndless}};
  EXPECT_TRUE(rank_one({1, 2}, {.edits = all, .n_candidates = 2}).candidates.empty());
}

TEST_P(BackendRank, RanksSomeRowsAndDrawsFromOthers) {
  const std::vector<float> row = random_row(3000);
  std::vector<SamplingRow> rules;
  for (uint64_t i = 0; i < 9; ++i) {
    rules.push_back({.temperature = static_cast<float>(i % 2), .seed = i});
    if (i % 3 == 1) rules.back().n_candidates = 6;
    if (i % 3 == 2) rules.back().n_logprobs = 2;
  }
  const std::vector<SampledToken> together = rank(*backend_, row, rules);
  for (size_t i = 0; i < rules.size(); ++i) {
    const SampledToken alone = rank_one(row, rules[i]);
    EXPECT_EQ(together[i].token, alone.token);
    EXPECT_EQ(ids(together[i].candidates), ids(alone.candidates));
    EXPECT_EQ(together[i].candidates.size(), i % 3 == 1 ? 6U : 0U);
    EXPECT_EQ(together[i].logprob, alone.logprob);
  }
}

TEST_P(BackendRank, RefusesLogitsThatAreNotNumbers) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW((void)rank_one({1, nan, 2}, {.n_candidates = 2}), Error);
  EXPECT_THROW((void)rank_one({1, kEndless}, {.n_candidates = 2}), Error);
  EXPECT_THROW((void)rank_one({-kEndless, -kEndless}, {.n_candidates = 2}), Error);
}

FASTSTREAM_INSTANTIATE_BACKENDS(BackendRank);

}  // namespace
}  // namespace faststream
