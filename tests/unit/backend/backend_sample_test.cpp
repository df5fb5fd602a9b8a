// Sampling on every backend: every rule against exact arithmetic, the same tokens as the reference,
// the right distribution, the corners.
#include <limits>

#include "support/bit_mask.h"
#include "support/error.h"
#include "unit/backend/backend_fixture.h"
#include "unit/backend/exact_sampling.h"
#include "unit/normal.h"

namespace faststream {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class BackendSample : public BackendTest {
 protected:
  static std::vector<SampledToken> sample(Backend& backend, const HostTensor& logits,
                                          const std::vector<SamplingRow>& rules) {
    const DeviceTensor device(backend, logits);
    std::vector<SampledToken> sampled(rules.size());
    backend.sample(device.matrix(), rules, sampled);
    return sampled;
  }

  static std::vector<int32_t> tokens(Backend& backend, const HostTensor& logits,
                                     const std::vector<SamplingRow>& rules) {
    std::vector<int32_t> result;
    for (const SampledToken& s : sample(backend, logits, rules)) result.push_back(s.token);
    return result;
  }

  /// The same row of logits for each rule.
  static HostTensor repeated(const std::vector<float>& row, size_t rows) {
    HostTensor logits(DType::f32, static_cast<int64_t>(rows), static_cast<int64_t>(row.size()), 3);
    for (int64_t r = 0; r < logits.rows; ++r) {
      std::memcpy(logits.bytes.data() + static_cast<size_t>(r * logits.stride) * sizeof(float),
                  row.data(), row.size() * sizeof(float));
    }
    return logits;
  }

  std::vector<float> random_row(size_t vocab, float deviation = 3) {
    Normal normal(deviation);
    std::vector<float> row(vocab);
    for (float& logit : row) logit = normal(random_);
    return row;
  }

  /// Edits of `count` tokens: penalties, biases, and now and then a ban.
  std::vector<LogitEdit> random_edits(size_t vocab, size_t count) {
    std::vector<int32_t> ids(vocab);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), random_);
    Normal normal(2);
    std::vector<LogitEdit> edits;
    for (size_t i = 0; i < count; ++i) {
      edits.push_back(
          {ids[i], i % 2 == 0 ? 1.3F : 1.0F, i % 7 == 6 ? -kInfinity : normal(random_)});
    }
    return edits;
  }

  /// One row of logits, one rule.
  SampledToken sample_row(const std::vector<float>& logits, const SamplingRow& rule) {
    return sample(*backend_, repeated(logits, 1), {rule})[0];
  }
  int32_t sample_one(const std::vector<float>& logits, const SamplingRow& rule) {
    return sample_row(logits, rule).token;
  }
};

SamplingRow rule_of(float temperature, int32_t top_k, float top_p, uint64_t position = 0) {
  return {.temperature = temperature,
          .top_k = top_k,
          .top_p = top_p,
          .seed = 0x123456789abcdefULL,
          .sequence = 7,
          .position = position};
}

TEST_P(BackendSample, EveryRuleDrawsWhatExactArithmeticDraws) {
  for (const size_t vocab : {1, 2, 17, 1000, 32000, 256000}) {
    const std::vector<float> row = random_row(vocab);
    const std::vector<int32_t> order = exact_order(row);
    std::vector<SamplingRow> rules = {
        {.temperature = 0.7F}, {.temperature = 1}, {.temperature = 3}, {.temperature = 100}};
    for (const int32_t top_k : {1, 2, 40, 700, 1024, 1025, 20000, 1000000}) {
      rules.push_back({.temperature = 1.5F, .top_k = top_k});
      rules.push_back({.temperature = 1, .top_k = top_k, .top_p = 0.9F, .min_p = 0.001F});
    }
    for (const float p : {0.0F, 0.1F, 0.5F, 0.95F, 0.999F, 1.0F}) {
      rules.push_back({.temperature = 1.2F, .top_p = p});
      rules.push_back({.temperature = 1.2F, .min_p = p});
      rules.push_back({.temperature = 2, .top_p = p, .min_p = 1e-4F});
    }
    for (SamplingRow& rule : rules) {
      rule.seed = random_();
      rule.sequence = random_() % 3;
      rule.position = random_();
    }
    const std::vector<int32_t> drawn = tokens(*backend_, repeated(row, rules.size()), rules);
    for (size_t i = 0; i < rules.size(); ++i) {
      SCOPED_TRACE("vocabulary " + std::to_string(vocab));
      ExactCandidates(row, order, rules[i]).expect_drawn(drawn[i], rules[i]);
    }
  }
}

TEST_P(BackendSample, EditsChangeLogitsBeforeAllElse) {
  for (const size_t vocab : {2, 17, 1000, 32000}) {
    const std::vector<float> row = random_row(vocab);
    std::vector<std::vector<LogitEdit>> edits;
    for (const size_t count : {size_t{1}, vocab / 2, vocab - 1}) {
      edits.push_back(random_edits(vocab, count));
    }
    std::vector<SamplingRow> rules;
    for (const std::vector<LogitEdit>& e : edits) {
      for (uint64_t i = 0; i < 4; ++i) {
        rules.push_back({.temperature = 1, .seed = i, .edits = e});
        rules.push_back({.temperature = 1, .top_k = 50, .top_p = 0.9F, .seed = i, .edits = e});
        rules.push_back({.temperature = 0, .edits = e});
      }
    }
    const std::vector<int32_t> drawn = tokens(*backend_, repeated(row, rules.size()), rules);
    for (size_t i = 0; i < rules.size(); ++i) {
      SCOPED_TRACE("vocabulary " + std::to_string(vocab));
      const std::vector<float> edited = exact_edits(row, rules[i].edits);
      const std::vector<int32_t> order = exact_order(edited);
      if (rules[i].temperature == 0) {
        EXPECT_EQ(drawn[i], order[0]) << "greedy";
        continue;
      }
      ExactCandidates(edited, order, rules[i]).expect_drawn(drawn[i], rules[i]);
    }
  }
}

TEST_P(BackendSample, AMaskForbidsAllOthersAsEditsWould) {
  constexpr size_t kVocab = 3001;
  const std::vector<float> logits = random_row(kVocab);
  std::vector<uint32_t> mask(mask_words(kVocab));
  std::vector<LogitEdit> edits;
  for (size_t t = 0; t < kVocab; ++t) {
    if (t % 7 == 3 || t == kVocab - 1) {
      set_bit(mask, t);
    } else {
      edits.push_back({static_cast<int32_t>(t), 1, -kInfinity});
    }
  }
  for (const float temperature : {0.0F, 0.8F, 5.0F}) {
    for (const int32_t n_logprobs : {-1, 0, 5}) {
      for (uint64_t position = 0; position < 4; ++position) {
        SamplingRow masked = rule_of(temperature, 40, 0.95F, position);
        masked.n_logprobs = n_logprobs;
        SamplingRow edited = masked;
        masked.mask = mask;
        edited.edits = edits;
        EXPECT_EQ(sample_row(logits, masked), sample_row(logits, edited));
      }
    }
  }
}

TEST_P(BackendSample, PenaltiesDividePositiveLogitsAndMultiplyNegativeOnes) {
  const std::vector<LogitEdit> all = {{0, 2, 0}, {1, 2, 0}, {2, 2, 0}};
  EXPECT_EQ(sample_one({3, 2, 1}, {.edits = std::span(all).first(1)}), 1) << "1.5 < 2";
  EXPECT_EQ(sample_one({-3, -2, -4.1F}, {.edits = std::span(all).subspan(1, 1)}), 0) << "-4 < -3";
  EXPECT_EQ(sample_one({-3, -2, -4.1F}, {.edits = all}), 1);
  const std::vector<LogitEdit> bans = {{1, 1, -kInfinity}, {3, 5, -kInfinity}};
  EXPECT_EQ(sample_one({1, 9, 2, 8}, {.edits = bans}), 2);
  for (uint64_t position = 0; position < 50; ++position) {
    SamplingRow rule = rule_of(100, 0, 1, position);
    rule.edits = bans;
    EXPECT_EQ(sample_one({1, 9, 2, 8}, rule) % 2, 0) << "banned tokens are never drawn";
  }
  const std::vector<LogitEdit> forced = {{2, 1, 100}};
  EXPECT_EQ(sample_one({1, 9, 2, 8}, {.temperature = 1, .seed = 3, .edits = forced}), 2);
}

TEST_P(BackendSample, LogProbabilitiesAreTheModelsOwn) {
  for (const size_t vocab : {1, 2, 17, 1000, 32000, 256000}) {
    std::vector<float> row = random_row(vocab);
    if (vocab == 1000) std::fill(row.begin() + 5, row.end(), -kInfinity);
    if (vocab == 32000) std::fill(row.begin(), row.end(), 1.0F);  // nothing but ties
    const std::vector<double> exact = exact_logprobs(row);
    const std::vector<int32_t> order = exact_order(row);
    const std::vector<LogitEdit> edits = random_edits(vocab, vocab / 2);
    const std::vector<SamplingRow> rules = {
        {.temperature = 0, .n_logprobs = 0},
        {.temperature = 0, .n_logprobs = kMaxLogprobs, .edits = edits},
        {.temperature = 5, .top_k = 30, .seed = 1, .n_logprobs = 5},
        {.temperature = 2, .top_p = 0.9F, .seed = 2, .n_logprobs = kMaxLogprobs, .edits = edits},
        {.temperature = 1, .seed = 3, .n_logprobs = -1, .edits = edits}};
    const std::vector<SampledToken> sampled = sample(*backend_, repeated(row, rules.size()), rules);
    const auto expect_close = [&](float value, int32_t token) {
      const double want = exact[static_cast<size_t>(token)];
      if (std::isinf(want)) {
        EXPECT_EQ(value, -kInfinity) << "token " << token << " of " << vocab;
      } else {
        EXPECT_NEAR(value, want, 1e-6 * (1 + std::abs(want)))
            << "token " << token << " of " << vocab;
      }
    };
    for (size_t i = 0; i < rules.size(); ++i) {
      const auto wanted = static_cast<size_t>(std::max(rules[i].n_logprobs, 0));
      ASSERT_EQ(sampled[i].top.size(), std::min(wanted, vocab));
      if (rules[i].n_logprobs < 0) continue;
      expect_close(sampled[i].logprob, sampled[i].token);
      for (size_t rank = 0; rank < sampled[i].top.size(); ++rank) {
        EXPECT_EQ(sampled[i].top[rank].token, order[rank]) << "rank " << rank << " of " << vocab;
        expect_close(sampled[i].top[rank].value, order[rank]);
      }
    }
  }
}

TEST_P(BackendSample, MixedRulesDrawTogetherAsAlone) {
  constexpr size_t kVocab = 3000;
  std::vector<std::vector<LogitEdit>> edits;
  for (int i = 0; i < 24; ++i) edits.push_back(random_edits(kVocab, i % 3 == 0 ? 0 : 50U * i));
  std::vector<SamplingRow> rules;
  for (uint64_t i = 0; i < 24; ++i) {
    SamplingRow rule =
        rule_of(i % 4 == 0 ? 0 : 0.5F * static_cast<float>(i % 4),
                i % 5 == 0 ? 0 : static_cast<int32_t>(400 * (i % 5)), i % 2 == 0 ? 1 : 0.9F, i);
    rule.min_p = i % 7 == 0 ? 0.02F : 0;
    rule.n_logprobs = static_cast<int32_t>(i % 6) - 1;
    rule.edits = edits[i];
    rules.push_back(rule);
  }
  const HostTensor logits = random_tensor(random_, DType::f32, 24, kVocab, 1, 2);
  const std::vector<SampledToken> together = sample(*backend_, logits, rules);
  for (int64_t r = 0; r < logits.rows; ++r) {
    std::vector<float> row;
    for (int64_t c = 0; c < logits.cols; ++c) row.push_back(logits.at(r, c));
    const auto i = static_cast<size_t>(r);
    EXPECT_EQ(sample_row(row, rules[i]), together[i]) << "row " << r;
  }
}

TEST_P(BackendSample, DrawsTheSameTokensAsTheReference) {
  for (const int64_t vocab : {1, 2, 50, 1000, 1024, 1025, 32000, 128256}) {
    const std::vector<LogitEdit> edits = random_edits(
        static_cast<size_t>(vocab), static_cast<size_t>(std::min(vocab, int64_t{300})) / 2);
    std::vector<SamplingRow> rules;
    for (const float temperature : {0.0F, 0.3F, 1.0F, 100.0F}) {
      for (const int32_t top_k : {0, 1, 40, 1000, 1024, 1500}) {
        for (const float top_p : {0.1F, 0.95F, 1.0F}) {
          // Rows of a large vocabulary take long on the reference.
          if (vocab > 2000 && random_() % 3 != 0) continue;
          rules.push_back({.temperature = temperature,
                           .top_k = top_k,
                           .top_p = top_p,
                           .seed = random_(),
                           .sequence = random_() % 5,
                           .position = rules.size(),
                           .min_p = random_() % 4 == 0 ? 0.01F : 0,
                           .n_logprobs = static_cast<int32_t>(random_() % 4) * 5 - 1});
          if (random_() % 4 == 0) rules.back().edits = edits;
        }
      }
    }
    const HostTensor logits =
        random_tensor(random_, DType::f32, static_cast<int64_t>(rules.size()), vocab, 4, 3);
    const auto want = sample(*reference_, logits, rules);
    for (const auto& backend : backends_) {
      const auto got = sample(*backend, logits, rules);
      for (size_t i = 0; i < rules.size(); ++i) {
        EXPECT_EQ(got[i], want[i])
            << backend->description() << ": vocabulary " << vocab << ", temperature "
            << rules[i].temperature << ", top_k " << rules[i].top_k << ", top_p " << rules[i].top_p
            << ", min_p " << rules[i].min_p;
      }
    }
  }
}

// Logits on which selection has to go deep: crowds of nearly equal logits, outliers, few tokens
// that are possible at all, large logits where one thread of a GPU's block finds them all, numbers
// of every size, denormals and zeros of both signs, two values, and logits in order.
TEST_P(BackendSample, DrawsTheSameTokensOfUnevenLogits) {
  constexpr size_t kVocab = 9000;
  std::vector<std::vector<float>> rows(11, random_row(kVocab));
  for (float& logit : rows[0]) logit *= 1e-6F;
  rows[1][1234] = 1000;
  for (float& logit : rows[2]) {
    if (random_() % 1000 != 0) logit = -kInfinity;
  }
  for (size_t i = 0; i < kVocab; ++i) rows[3][i] += i % 4096 < 4 ? 20 : 0;
  for (size_t i = 0; i < kVocab; ++i) rows[4][i] = i % 2 == 0 ? 7 : rows[4][i];
  std::fill(rows[5].begin(), rows[5].end(), -2.5F);
  for (float& logit : rows[6]) logit = std::ldexp(logit, static_cast<int>(random_() % 150) - 145);
  for (float& logit : rows[7]) {
    logit = std::copysign(static_cast<float>(random_() % 20) * 0x1p-149F, logit);
  }
  for (float& logit : rows[8]) logit = random_() % 2 == 0 ? 3.0F : 3.0000002F;
  std::sort(rows[9].begin(), rows[9].end());
  rows[10] = rows[9];
  std::reverse(rows[10].begin(), rows[10].end());
  rows[10].resize(4097);
  for (const std::vector<float>& row : rows) {
    std::vector<SamplingRow> rules;
    for (const float temperature : {0.7F, 100.0F}) {
      for (const int32_t top_k : {0, 3, 600, 1024, 5000}) {
        for (const float top_p : {0.6F, 1.0F}) {
          rules.push_back(rule_of(temperature, top_k, top_p, rules.size()));
          rules.back().n_logprobs = 20;
          rules.back().min_p = rules.size() % 3 == 0 ? 0.01F : 0;
        }
      }
    }
    const HostTensor logits = repeated(row, rules.size());
    const auto want = sample(*reference_, logits, rules);
    for (const auto& backend : backends_) {
      EXPECT_EQ(sample(*backend, logits, rules), want)
          << backend->description() << ": row " << &row - rows.data();
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
  const std::vector<int32_t> want = tokens(*reference_, logits, rules);
  for (const auto& backend : backends_) {
    EXPECT_EQ(tokens(*backend, logits, rules), want) << backend->description();
  }
}

TEST_P(BackendSample, ADrawDoesNotDependOnTheBatch) {
  const HostTensor logits = random_tensor(random_, DType::f32, 8, 300);
  std::vector<SamplingRow> rules;
  for (uint64_t i = 0; i < 8; ++i) rules.push_back(rule_of(1, 0, 1, i));
  const auto together = tokens(*backend_, logits, rules);
  for (int64_t r = 0; r < 8; ++r) {
    std::vector<float> row;
    for (int64_t c = 0; c < 300; ++c) row.push_back(logits.at(r, c));
    EXPECT_EQ(sample_one(row, rules[static_cast<size_t>(r)]), together[static_cast<size_t>(r)]);
  }
}

// Chi-square of 100,000 draws against the exact probabilities; six deviations of its distribution
// (mean k, variance 2k), for fixed seeds.
TEST_P(BackendSample, TheDistributionOfDrawsIsExact) {
  constexpr size_t kVocab = 60;
  constexpr size_t kRows = 2000;
  constexpr uint64_t kRounds = 50;
  const std::vector<float> row = random_row(kVocab, 1.5F);
  const std::vector<LogitEdit> edits = random_edits(kVocab, 20);
  const SamplingRow everything{
      .temperature = 0.9F, .top_k = 35, .top_p = 0.97F, .min_p = 0.02F, .edits = edits};
  for (const SamplingRow& rule : {rule_of(1, 0, 1), rule_of(0.8F, 40, 0.95F), rule_of(1.7F, 10, 1),
                                  rule_of(1, 0, 0.5F), everything}) {
    const std::vector<float> edited = exact_edits(row, rule.edits);
    const ExactCandidates exact(edited, exact_order(edited), rule);
    ASSERT_EQ(exact.slack, 0);
    const HostTensor logits = repeated(row, kRows);
    std::vector<int64_t> counts(kVocab);
    for (uint64_t round = 0; round < kRounds; ++round) {
      std::vector<SamplingRow> rules(kRows, rule);
      for (uint64_t r = 0; r < kRows; ++r) {
        rules[r].seed = 42;
        rules[r].sequence = round;
        rules[r].position = r;
      }
      for (const int32_t token : tokens(*backend_, logits, rules)) {
        ++counts[static_cast<size_t>(token)];
      }
    }
    double chi_square = 0;
    int64_t drawn = 0;
    for (size_t rank = 0; rank < exact.ids.size(); ++rank) {
      const double expected = exact.weights[rank] / exact.total * kRows * kRounds;
      const int64_t count = counts[static_cast<size_t>(exact.ids[rank])];
      const double difference = static_cast<double>(count) - expected;
      chi_square += difference * difference / expected;
      drawn += count;
    }
    EXPECT_EQ(drawn, kRows * kRounds) << "others than candidates were drawn";
    const double freedom = static_cast<double>(exact.ids.size()) - 1;
    EXPECT_LT(chi_square, freedom + 6 * std::sqrt(2 * freedom))
        << "temperature " << rule.temperature << ", top_k " << rule.top_k << ", top_p "
        << rule.top_p << ", min_p " << rule.min_p;
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
    EXPECT_EQ(sample_one({1, 3, 2, 2.9F}, rule_of(1e-30F, 0, 1, position)), 1) << "nearly greedy";
    SamplingRow likeliest = rule_of(5, 0, 1, position);
    likeliest.min_p = 1;
    EXPECT_EQ(sample_one({1, 2, 3, 2.99F}, likeliest), 2) << "min_p 1";
  }
}

TEST_P(BackendSample, LogitsOfMinusInfinityAreNeverDrawn) {
  const std::vector<float> logits = {-kInfinity, 1, -kInfinity, 1, -kInfinity};
  for (uint64_t position = 0; position < 50; ++position) {
    for (const int32_t top_k : {0, 4}) {
      EXPECT_EQ(sample_one(logits, rule_of(100, top_k, 1, position)) % 2, 1) << "top_k " << top_k;
    }
  }
  EXPECT_EQ(sample_one({-kInfinity, -5, -kInfinity}, rule_of(0, 0, 1)), 1);
}

TEST_P(BackendSample, MoreCandidatesThanTheVocabularyAreAll) {
  const HostTensor logits = random_tensor(random_, DType::f32, 30, 90);
  std::vector<SamplingRow> all;
  std::vector<SamplingRow> many;
  for (uint64_t i = 0; i < 30; ++i) {
    all.push_back(rule_of(1, 0, 1, i));
    many.push_back(rule_of(1, 1000000, 1, i));
  }
  EXPECT_EQ(tokens(*backend_, logits, all), tokens(*backend_, logits, many));
}

TEST_P(BackendSample, RefusesLogitsThatAreNotNumbers) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float temperature : {0.0F, 1.0F}) {
    EXPECT_THROW(sample_one({1, nan, 2}, rule_of(temperature, 0, 1)), Error);
    EXPECT_THROW(sample_one({1, -nan, 2}, rule_of(temperature, 2, 1)), Error);
    EXPECT_THROW(sample_one({1, kInfinity}, rule_of(temperature, 0, 1)), Error);
    EXPECT_THROW(sample_one({-kInfinity, -kInfinity}, rule_of(temperature, 0, 1)), Error);
  }
  const std::vector<LogitEdit> bans = {{0, 1, -kInfinity}, {1, 1, -kInfinity}};
  EXPECT_THROW(sample_one({1, 2}, {.edits = bans}), Error);
  EXPECT_THROW(sample_one({1, 2}, {.temperature = 1, .n_logprobs = 2, .edits = bans}), Error);
  EXPECT_EQ(sample_one({1, 2}, rule_of(0, 0, 1)), 1) << "the backend works on after an error";
}

FASTSTREAM_INSTANTIATE_BACKENDS(BackendSample);

}  // namespace
}  // namespace faststream
