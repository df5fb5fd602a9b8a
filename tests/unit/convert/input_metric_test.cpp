#include "convert/weights/input_metric.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <span>
#include <vector>

#include "convert/weights/quantize.h"
#include "support/hadamard.h"
#include "unit/convert/checkpoint_files.h"

namespace faststream::convert {
namespace {

void one_by_one(int64_t count, const std::function<void(int64_t)>& body) {
  for (int64_t n = 0; n < count; ++n) body(n);
}

// Rows of inputs that go together: few causes behind many columns.
struct Inputs {
  size_t rows = 0;
  size_t columns = 0;
  std::vector<float> values;

  [[nodiscard]] InputMoments moments(int64_t gram_columns) const {
    InputMoments moments{.count = static_cast<double>(rows), .mean_squares = {}};
    moments.gram_columns = gram_columns;
    const auto mean = [&](size_t i, size_t j) {
      double sum = 0;
      for (size_t r = 0; r < rows; ++r) {
        sum += double{values[r * columns + i]} * values[r * columns + j];
      }
      return static_cast<float>(sum / static_cast<double>(rows));
    };
    for (size_t i = 0; i < columns; ++i) moments.mean_squares.push_back(mean(i, i));
    for (size_t first = 0; first < columns; first += static_cast<size_t>(gram_columns)) {
      const size_t end = std::min(columns, first + static_cast<size_t>(gram_columns));
      for (size_t i = first; i < end; ++i) {
        for (size_t j = first; j < end; ++j) moments.gram.push_back(mean(i, j));
      }
    }
    return moments;
  }
};

Inputs correlated(size_t rows, size_t columns) {
  constexpr size_t kCauses = 8;
  const std::vector<float> causes = random_values(rows * kCauses, 1);
  const std::vector<float> parts = random_values(kCauses * columns, 2);
  Inputs inputs{rows, columns, random_values(rows * columns, 3)};
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c) {
      float& value = inputs.values[r * columns + c];
      value *= 0.3F;
      for (size_t k = 0; k < kCauses; ++k)
        value += causes[r * kCauses + k] * parts[k * columns + c];
      if (c % 50 == 7) value *= 10;  // outliers
    }
  }
  return inputs;
}

// Uᵀ U (H + what was added) = 1, H by definition: of rotated inputs over factors.
TEST(InputMetric, FactorsTheInverseOfWhatRotatedInputsMeasure) {
  for (const size_t columns : {1U, 5U, 80U, 276U}) {
    for (const bool has_factors : {false, true}) {
      Inputs inputs = correlated(500, columns);
      std::vector<float> factors;
      if (has_factors) {
        factors = random_values(columns, 9);
        for (float& factor : factors) factor = std::abs(factor) + 0.5F;
      }
      const InputMoments moments = inputs.moments(256);
      const InputMetric metric(moments, factors, 0, true, one_by_one);
      Inputs rotated = inputs;
      for (size_t r = 0; r < inputs.rows; ++r) {
        const auto row = std::span(rotated.values).subspan(r * columns, columns);
        for (size_t c = 0; c < columns && has_factors; ++c) row[c] /= factors[c];
        hadamard(row);
      }
      const InputMoments expected = rotated.moments(256);
      int64_t end = 0;
      for (const InputMetric::Block& block : metric.blocks()) {
        EXPECT_EQ(block.first, end);
        end = block.first + block.size;
        const auto n = static_cast<size_t>(block.size);
        const std::span<const float> h = expected.gram_block(block.first);
        double mean = 0;
        for (size_t i = 0; i < n; ++i) mean += double{h[i * n + i]} / static_cast<double>(n);
        // Of 500 rows: 0.1 n / 500, and at least 0.01, of the mean.
        const double added = mean * std::max(0.01, 0.1 * static_cast<double>(n) / 500);
        for (size_t i = 0; i < n; ++i) {
          std::vector<double> of_u(n);  // row i of U (H + added)
          for (size_t j = 0; j < n; ++j) {
            for (size_t k = 0; k < n; ++k) {
              of_u[j] += double{block.factor[i * n + k]} * (h[k * n + j] + (k == j ? added : 0));
            }
          }
          for (size_t j = 0; j <= i; ++j) {  // U⁻ᵀ is lower triangular: U H = U⁻ᵀ
            double sum = 0;                  // (U H Uᵀ)_ij
            for (size_t k = 0; k < n; ++k) sum += of_u[k] * double{block.factor[j * n + k]};
            EXPECT_NEAR(sum, i == j ? 1 : 0, 1e-3) << columns << ": " << i << ", " << j;
          }
          const double own = block.factor[i * n + i];
          EXPECT_NEAR(block.importance[i] * own * own, 1, 1e-5);
        }
      }
      EXPECT_EQ(end, static_cast<int64_t>(columns));
    }
  }
}

// What a product loses, of inputs that the metric has not seen.
double lost(std::span<const float> row, const InputMetric* metric, const Inputs& unseen) {
  const auto cols = static_cast<int64_t>(row.size());
  std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(WeightFormat::int4, cols)));
  std::vector<std::byte> scale(sizeof(float));
  quantize_row_int4(row, metric, bytes.data(), scale.data());
  std::vector<float> decoded(row.size());
  decode_row(WeightFormat::int4, bytes.data(), scale.data(), 0, decoded);
  double squares = 0;
  for (size_t r = 0; r < unseen.rows; ++r) {
    double sum = 0;
    for (size_t c = 0; c < row.size(); ++c) {
      sum += double{unseen.values[r * row.size() + c]} * (double{decoded[c]} - double{row[c]});
    }
    squares += sum * sum;
  }
  return squares;
}

TEST(InputMetric, LetsInt4LoseLessOfProducts) {
  for (const size_t columns : {33U, 276U}) {
    const Inputs inputs = correlated(600, columns);
    const InputMetric metric(inputs.moments(256), {}, 0, false, one_by_one);
    InputMoments squares = inputs.moments(256);
    squares.gram.clear();
    const InputMetric of_squares(squares, {}, 0, false, one_by_one);
    double plain = 0;
    double with_squares = 0;
    double with_metric = 0;
    for (unsigned seed = 20; seed < 30; ++seed) {
      const std::vector<float> row = random_values(columns, seed);
      plain += lost(row, nullptr, inputs);
      with_squares += lost(row, &of_squares, inputs);
      with_metric += lost(row, &metric, inputs);
    }
    EXPECT_LT(with_squares, 1.01 * plain) << columns;
    EXPECT_LT(with_metric, 0.5 * plain) << columns;
  }
}

// e H eᵀ of a row in int4, with the moments of the metric's one block.
double loss(std::span<const float> row, std::span<const std::byte> bytes, const std::byte* scale,
            const InputMetric::Block& block) {
  std::vector<float> errors(row.size());
  decode_row(WeightFormat::int4, bytes.data(), scale, 0, errors);
  for (size_t i = 0; i < row.size(); ++i) errors[i] -= row[i];
  double sum = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    for (size_t j = 0; j < row.size(); ++j) {
      sum += double{errors[i]} * block.moments[i * row.size() + j] * double{errors[j]};
    }
  }
  return sum;
}

// But for the scale, which is fitted last.
TEST(InputMetric, LeavesNoColumnThatAnotherLevelWouldSuitBetter) {
  constexpr size_t kColumns = 96;
  const InputMetric metric(correlated(600, kColumns).moments(256), {}, 0, false, one_by_one);
  ASSERT_EQ(metric.blocks().size(), 1U);
  for (unsigned seed = 40; seed < 44; ++seed) {
    const std::vector<float> row = random_values(kColumns, seed);
    std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(WeightFormat::int4, kColumns)));
    std::vector<std::byte> scale(sizeof(float));
    quantize_row_int4(row, &metric, bytes.data(), scale.data());
    const double least = loss(row, bytes, scale.data(), metric.blocks()[0]);
    for (size_t at = kInt4CodeBytes; at < bytes.size(); ++at) {
      for (const int change : {-16, -1, 1, 16}) {
        const auto before = std::to_integer<int>(bytes[at]);
        const int q = std::abs(change) == 1 ? before & 15 : before >> 4;
        if (q == (change < 0 ? 0 : 15)) continue;
        bytes[at] = static_cast<std::byte>(before + change);
        EXPECT_GT(loss(row, bytes, scale.data(), metric.blocks()[0]), 0.995 * least) << at;
        bytes[at] = static_cast<std::byte>(before);
      }
    }
  }
}

// Inputs that are always zero, or not known to be anything else, leave a row that can be computed.
TEST(InputMetric, SurvivesInputsWithoutMoments) {
  InputMoments moments{.count = 1, .mean_squares = std::vector<float>(40, 0.0F)};
  const InputMetric metric(moments, {}, 0, true, one_by_one);
  const std::vector<float> row = random_values(40, 5);
  std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(WeightFormat::int4, 40)));
  std::vector<std::byte> scale(sizeof(float));
  const RowError error = quantize_row_int4(row, &metric, bytes.data(), scale.data());
  EXPECT_LT(error.squared_error, 0.02 * error.squared_norm);
}

TEST(InputMetric, NeedsHeadsThatItsBlocksDoNotCut) {
  InputMoments moments{.count = 1, .mean_squares = std::vector<float>(480, 1.0F)};
  EXPECT_TRUE(InputMetric::can_rotate(moments, 64));
  EXPECT_FALSE(InputMetric::can_rotate(moments, 96));
  EXPECT_TRUE(InputMetric::can_rotate(moments, 0));
}

}  // namespace
}  // namespace faststream::convert
