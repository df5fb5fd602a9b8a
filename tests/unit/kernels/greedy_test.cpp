// The CPU's likeliest tokens without all logits: the tokens of all logits, whatever the numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cpu/sampling/output_screen.h"
#include "support/bit_mask.h"
#include "support/error.h"
#include "unit/backend/backend_fixture.h"
#include "unit/normal.h"

namespace faststream {
namespace {

constexpr float kInfiniteLogit = std::numeric_limits<float>::infinity();
constexpr int64_t kOutputs = 5000;

/// Rows and an output matrix in a backend's memory.
class Logits {
 public:
  Logits(Backend& backend, const HostTensor& x, const HostTensor& weight,
         const std::vector<float>& bias = {})
      : backend_(backend), x_(backend, x), weight_(backend, weight), bias_(bias) {
    memory_ = HostTensor(DType::f32, x.rows, weight.rows, 3);
  }

  /// The tokens that choose_greedily() gives of `rows` rows from `first` on, if it does.
  std::optional<std::vector<int32_t>> greedy_tokens(const std::vector<SamplingRow>& rules,
                                                    int64_t first = 0) {
    const DeviceTensor logits(backend_, memory_.row_range(0, n_rows(rules)));
    LogitProduct product = rows(first, n_rows(rules));
    const auto choices = backend_.choose_greedily(product, logits.matrix(), rules);
    if (!choices) return {};
    return tokens_of(*choices, rules.size());
  }

  /// Asks until they are given, at most for so many rows as any number of misses allows.
  std::vector<int32_t> expect_tokens(const std::vector<SamplingRow>& rules) {
    for (size_t rows = 0; rows < 200; rows += rules.size()) {
      if (auto tokens = greedy_tokens(rules)) return *tokens;
    }
    ADD_FAILURE() << "no greedy tokens were given";
    return std::vector<int32_t>(rules.size(), -1);
  }

  /// Those of each row's logits, each multiplied by itself.
  std::vector<int32_t> tokens(const std::vector<SamplingRow>& rules) {
    std::vector<int32_t> all;
    for (size_t r = 0; r < rules.size(); ++r) {
      LogitProduct product = rows(static_cast<int64_t>(r), 1);
      const DeviceTensor logits(backend_, memory_.row_range(0, 1));
      backend_.linear(product.input, product.weight, {.bias = product.bias}, logits.matrix());
      const auto choices = backend_.choose(logits.matrix(), {&rules[r], 1});
      all.push_back(tokens_of(*choices, 1)[0]);
    }
    return all;
  }

 private:
  static int64_t n_rows(const std::vector<SamplingRow>& rules) {
    return static_cast<int64_t>(rules.size());
  }
  [[nodiscard]] LogitProduct rows(int64_t first, int64_t count) const {
    return {.input = {.x = x_.matrix().row_range(first, count)},
            .weight = weight_.weight(),
            .bias = bias_.empty() ? nullptr : bias_.data()};
  }
  static std::vector<int32_t> tokens_of(Choices& choices, size_t count) {
    choices.wait();
    std::vector<int32_t> tokens;
    for (size_t r = 0; r < count; ++r) {
      SampledToken sampled;
      choices.read(r, sampled);
      tokens.push_back(sampled.token);
    }
    return tokens;
  }

  Backend& backend_;
  DeviceTensor x_;
  DeviceTensor weight_;
  std::vector<float> bias_;
  HostTensor memory_;
};

/// Instruction sets that multiply eight-bit numbers.
class Greedy : public testing::TestWithParam<CpuIsa> {
 protected:
  void SetUp() override {
    if (!cpu_supports(GetParam())) GTEST_SKIP() << "this processor lacks the instructions";
  }
  // A screen is kept as long as its backend, so that each test's matrix has one of its own.
  std::unique_ptr<Backend> backend_ = make_backend();
  static std::unique_ptr<Backend> make_backend() {
    return cpu_supports(GetParam()) ? make_cpu_backend(2, GetParam()) : nullptr;
  }
  Random random_{7};
};

INSTANTIATE_TEST_SUITE_P(Isas, Greedy,
                         testing::Values(CpuIsa::avx2, CpuIsa::avx_vnni, CpuIsa::avx512_vnni,
                                         CpuIsa::avx512_bf16, CpuIsa::amx),
                         [](const auto& isa) { return std::string(cpu_isa_id(isa.param)); });

std::vector<SamplingRow> greedy(int64_t rows) {
  return std::vector<SamplingRow>(static_cast<size_t>(rows));
}

TEST_P(Greedy, AreThoseOfAllLogitsWhateverTheTypeAndTheNumberOfRows) {
  for (const WeightFormat format : kFloatFormats) {
    for (const int64_t in : {64, 100, 576}) {
      for (const int64_t rows : {1, 2, 16, 17, 40}) {
        if (kSanitized && in == 576 && rows != 17) continue;
        backend_ = make_backend();
        std::vector<float> bias;
        Normal normal(3);
        while (rows % 2 == 0 && bias.size() < kOutputs + 7) bias.push_back(normal(random_));
        Logits logits(*backend_, random_tensor(random_, DType::f32, rows, in, 5),
                      random_tensor(random_, stored_type(format), kOutputs + 7, in), bias);
        EXPECT_EQ(logits.expect_tokens(greedy(rows)), logits.tokens(greedy(rows)))
            << format_name(format) << ", " << rows << " rows of " << in;
      }
    }
  }
}

TEST_P(Greedy, TheScreenIsInThePlanOfMemory) {
  constexpr int64_t kIn = 128;
  const auto bytes = [&](WeightFormat format, int64_t inputs) {
    return backend_->scratch_bytes(
        {.tokens = 4,
         .logits = 4,
         .vocab = kOutputs,
         .products = {{.rows = 4, .in = inputs, .out = kOutputs, .format = format}}});
  };
  for (const WeightFormat format : kFloatFormats) {
    EXPECT_EQ(bytes(format, kIn) - bytes(WeightFormat::int8, kIn),
              OutputScreen::bytes(kOutputs, kIn));
    constexpr int64_t kTooMany = OutputScreen::kMostInputs + 1;
    EXPECT_EQ(bytes(format, kTooMany), bytes(WeightFormat::int8, kTooMany));
  }
}

TEST_P(Greedy, DoNotDependOnTheRowsBeside) {
  for (const WeightFormat format : kFloatFormats) {
    backend_ = make_backend();
    Logits logits(*backend_, random_tensor(random_, DType::f32, 33, 128),
                  random_tensor(random_, stored_type(format), kOutputs, 128));
    const std::vector<int32_t> together = logits.expect_tokens(greedy(33));
    for (int64_t r = 0; r < 33; ++r) {
      EXPECT_EQ(*logits.greedy_tokens(greedy(1), r), std::vector{together[static_cast<size_t>(r)]});
    }
  }
}

TEST_P(Greedy, AreTheFirstOfEqualOnes) {
  for (const WeightFormat format : kFloatFormats) {
    backend_ = make_backend();
    const HostTensor x = random_tensor(random_, DType::f32, 8, 96);
    HostTensor weight = random_tensor(random_, stored_type(format), kOutputs, 96);
    // Row r's likeliest channels: the row itself, several times.
    for (int64_t r = 0; r < x.rows; ++r) {
      for (const int64_t copy : {4000, 900, 333}) {
        for (int64_t i = 0; i < x.cols; ++i) weight.set(copy + r, i, x.at(r, i));
      }
    }
    Logits logits(*backend_, x, weight);
    EXPECT_EQ(logits.expect_tokens(greedy(8)),
              (std::vector<int32_t>{333, 334, 335, 336, 337, 338, 339, 340}));
  }
}

TEST_P(Greedy, OfChannelsOfAnySizeAreThoseOfAllLogits) {
  for (const WeightFormat format : {WeightFormat::f32, WeightFormat::bf16}) {
    for (const float size : {1e-44F, 1e-38F, 1e-30F, 1e-20F, 1e-3F, 1e3F, 1e16F}) {
      backend_ = make_backend();
      HostTensor x = random_tensor(random_, DType::f32, 6, 80);
      for (int64_t i = 0; i < x.cols; ++i) {
        x.set(1, i, 0);
        x.set(2, i, x.at(2, i) * size);
        x.set(3, i, i == 17 ? 100 : x.at(3, i));  // one that is far from the others
      }
      HostTensor weight = random_tensor(random_, stored_type(format), kOutputs, 80);
      for (int64_t c = 0; c < kOutputs; c += 3) {
        for (int64_t i = 0; i < weight.cols; ++i) {
          weight.set(c, i, c % 2 == 0 ? 0 : weight.at(c, i) * size);
        }
      }
      Logits logits(*backend_, x, weight);
      EXPECT_EQ(logits.expect_tokens(greedy(6)), logits.tokens(greedy(6))) << size;
      // All channels are of that size.
      backend_ = make_backend();
      for (int64_t c = 0; c < kOutputs; ++c) {
        for (int64_t i = 0; i < weight.cols; ++i) {
          weight.set(c, i, size * static_cast<float>((c * 7919 + i * 104729) % 1009 - 504));
        }
      }
      Logits all(*backend_, x, weight);
      EXPECT_EQ(all.expect_tokens(greedy(6)), all.tokens(greedy(6))) << size;
    }
  }
}

TEST_P(Greedy, FollowEdits) {
  Logits logits(*backend_, random_tensor(random_, DType::f32, 12, 128),
                random_tensor(random_, DType::f32, kOutputs, 128));
  std::vector<SamplingRow> rules = greedy(12);
  std::vector<std::vector<LogitEdit>> edits(12);
  // In each turn the likeliest token so far is forbidden, made less likely, or another one
  // likelier.
  for (int turn = 0; turn < 10; ++turn) {
    const std::vector<int32_t> tokens = logits.tokens(rules);
    for (size_t r = 0; r < rules.size(); ++r) {
      edits[r].push_back({.token = tokens[r],
                          .repetition = r % 3 == 1 ? 1.5F : 1,
                          .bias = r % 3 == 0 ? -kInfiniteLogit : 0});
      if (turn == 9 && r % 4 == 0) edits[r].push_back({.token = 4321, .bias = 1000});
      rules[r].edits = edits[r];
    }
    const std::vector<int32_t> want = logits.tokens(rules);
    EXPECT_EQ(logits.expect_tokens(rules), want);
    if (turn == 9) {
      EXPECT_EQ(want[4], 4321);
    }
    // An edited token can come again.
    for (size_t r = 0; r < rules.size(); ++r) {
      const auto again = std::ranges::find(edits[r], want[r], &LogitEdit::token);
      if (again != edits[r].end()) edits[r].erase(again);
    }
  }
}

TEST_P(Greedy, AreAmongThoseOfTheMask) {
  Logits logits(*backend_, random_tensor(random_, DType::f32, 4, 128),
                random_tensor(random_, DType::f32, kOutputs, 128));
  std::vector<SamplingRow> rules = greedy(4);
  std::vector<uint32_t> every_third(mask_words(kOutputs));
  for (size_t token = 0; token < kOutputs; token += 3) set_bit(every_third, token);
  std::vector<uint32_t> one(every_third.size());
  one[100] = 4;
  rules[0].mask = every_third;
  rules[1].mask = one;
  const std::vector<LogitEdit> edits = {{.token = 1, .bias = 1000}, {.token = 3, .bias = 1000}};
  rules[2].mask = every_third;
  rules[2].edits = edits;
  const std::vector<int32_t> tokens = logits.expect_tokens(rules);
  EXPECT_EQ(tokens, logits.tokens(rules));
  EXPECT_EQ(tokens[0] % 3, 0);
  EXPECT_EQ(tokens[1], 3202);
  EXPECT_EQ(tokens[2], 3);
}

TEST_P(Greedy, OfAVocabularyWithForbiddenPartsAreTheOthers) {
  std::vector<float> bias(kOutputs, -kInfiniteLogit);
  for (size_t token = 700; token < 800; ++token) bias[token] = 0;
  Logits logits(*backend_, random_tensor(random_, DType::f32, 4, 128),
                random_tensor(random_, DType::f32, kOutputs, 128), bias);
  EXPECT_EQ(logits.expect_tokens(greedy(4)), logits.tokens(greedy(4)));
}

TEST_P(Greedy, AreRefusedWhereLogitsAreNotNumbers) {
  for (const float value : {kInfiniteLogit, -kInfiniteLogit, std::nanf("")}) {
    const HostTensor x = random_tensor(random_, DType::f32, 3, 128);
    const HostTensor weight = random_tensor(random_, DType::f32, kOutputs, 128);
    for (int which = 0; which < 3; ++which) {
      backend_ = make_backend();
      HostTensor bad_x = x;
      HostTensor bad_weight = weight;
      std::vector<float> bias(kOutputs, 0.0F);
      if (which == 0) bad_x.set(1, 77, value);
      if (which == 1) bad_weight.set(2345, 5, value);
      if (which == 2) bias[3456] = std::isnan(value) ? value : kInfiniteLogit;
      Logits logits(*backend_, bad_x, bad_weight, bias);
      EXPECT_THROW((void)logits.expect_tokens(greedy(3)), Error) << value << ", " << which;
    }
  }
}

TEST_P(Greedy, AreNotGivenWhereMoreIsAsked) {
  Logits logits(*backend_, random_tensor(random_, DType::f32, 2, 128),
                random_tensor(random_, DType::f32, kOutputs, 128));
  (void)logits.expect_tokens(greedy(2));
  for (const SamplingRow& rule :
       std::vector<SamplingRow>{{.temperature = 0.5F}, {.n_logprobs = 0}, {.n_candidates = 3}}) {
    EXPECT_FALSE(logits.greedy_tokens({{}, rule}));
  }
  EXPECT_TRUE(logits.greedy_tokens(greedy(2)));
}

TEST_P(Greedy, AreGivenUpWhereTheyCannotBeTold) {
  // All channels are near each other.
  HostTensor weight = random_tensor(random_, DType::f32, kOutputs, 64, 0, 0.001F);
  for (int64_t c = 0; c < kOutputs; ++c) {
    for (int64_t i = 0; i < 64; ++i) weight.set(c, i, weight.at(c, i) + static_cast<float>(i % 5));
  }
  Logits logits(*backend_, random_tensor(random_, DType::f32, 20, 64), weight);
  EXPECT_EQ(logits.expect_tokens(greedy(20)), logits.tokens(greedy(20)));
  for (int turn = 0; turn < 10; ++turn) (void)logits.greedy_tokens(greedy(20));
  EXPECT_FALSE(logits.greedy_tokens(greedy(20)));
}

TEST(OutputScreen, BoundsTheDistanceOfLogits) {
  Random random(11);
  ThreadPool pool(2);
  const Kernels kernels = portable_kernels();
  for (const float outlier : {1.0F, 50.0F}) {
    constexpr int64_t kIn = 192;
    HostTensor x = random_tensor(random, DType::f32, 20, kIn);
    for (int64_t r = 0; r < x.rows; ++r) x.set(r, r, outlier);
    const HostTensor weight = random_tensor(random, DType::bf16, 300, kIn);
    const Weight view{
        .data = weight.bytes.data(), .format = WeightFormat::bf16, .rows = 300, .cols = kIn};
    const auto memory = make_cpu_backend(1);
    const OutputScreen screen(view, memory->allocate(OutputScreen::bytes(300, kIn)), kernels, pool);
    double closest = 1e9;
    for (int64_t r = 0; r < x.rows; ++r) {
      const auto* row = reinterpret_cast<const float*>(x.bytes.data()) + r * x.stride;
      std::vector<int8_t> rounded(kIn);
      const float scale = kernels.quantize_i8(row, kIn, rounded.data());
      const RowBounds bounds = screen.row_bounds(row, std::vector<int8_t>(kIn).data());
      const auto* matrix = static_cast<const int8_t*>(screen.rounded().data);
      for (int64_t c = 0; c < weight.rows; ++c) {
        double exact = 0;
        double near = 0;
        for (int64_t i = 0; i < kIn; ++i) {
          exact += double{x.at(r, i)} * weight.at(c, i);
          near += double{static_cast<float>(rounded[static_cast<size_t>(i)])} * matrix[c * kIn + i];
        }
        near *= double{scale} * screen.rounded().row_scales()[c];
        const double reach = bounds.reach(screen.of_channels(), c);
        EXPECT_LE(reach, bounds.reach(screen.of_blocks(), c / kLogitBlock));
        EXPECT_LE(std::abs(exact - near), reach);
        closest = std::min(closest, reach / std::abs(exact - near));
      }
    }
    EXPECT_LT(closest, 8) << "a bound is too wide to be of use";
  }
}

}  // namespace
}  // namespace faststream
