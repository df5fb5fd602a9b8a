#include "support/hadamard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/cpu/isa/isa.h"
#include "kernels/cpu/isa/kernels.h"
#include "unit/convert/checkpoint_files.h"

namespace faststream {
namespace {

std::vector<float> rotated(std::vector<float> row) {
  hadamard(std::span(row));
  return row;
}

TEST(Hadamard, IsWhatItsDefinitionSays) {
  for (const int64_t n : {1, 4, 16, 64, 256}) {
    const std::vector<float> row = convert::random_values(static_cast<size_t>(n), 3);
    const std::vector<float> got = rotated(row);
    for (int64_t i = 0; i < n; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < n; ++j) {
        const bool negative =
            (std::popcount(static_cast<uint64_t>(i & j)) % 2 != 0) != hadamard_negates(j);
        sum += (negative ? -1 : 1) * double{row[static_cast<size_t>(j)]};
      }
      EXPECT_NEAR(got[static_cast<size_t>(i)], sum / std::sqrt(static_cast<double>(n)), 1e-5) << n;
    }
  }
}

TEST(Hadamard, TakesTheLargestBlocksThatFit) {
  std::vector<float> row = convert::random_values(256 + 64 + 64 + 16 + 4 + 1, 5);
  std::vector<float> parts;
  size_t at = 0;
  for (const size_t block : {256U, 64U, 64U, 16U, 4U, 1U}) {
    const auto from = row.begin() + static_cast<std::ptrdiff_t>(at);
    const auto part = rotated({from, from + static_cast<std::ptrdiff_t>(block)});
    parts.insert(parts.end(), part.begin(), part.end());
    at += block;
  }
  EXPECT_EQ(rotated(row), parts);
}

TEST(Hadamard, RotatesColumnsOfAMatrix) {
  constexpr size_t kRows = 64 + 16 + 1;
  constexpr size_t kColumns = 3;
  std::vector<float> matrix = convert::random_values(kRows * kColumns, 6);
  std::vector<std::vector<float>> columns(kColumns);
  for (size_t i = 0; i < matrix.size(); ++i) columns[i % kColumns].push_back(matrix[i]);
  hadamard(std::span(matrix), kColumns);
  for (size_t c = 0; c < kColumns; ++c) {
    const std::vector<float> want = rotated(columns[c]);
    for (size_t r = 0; r < kRows; ++r) EXPECT_EQ(matrix[r * kColumns + c], want[r]) << r;
  }
}

TEST(Hadamard, LeavesProductsAsTheyAre) {
  for (const size_t n : {3U, 100U, 576U, 1000U}) {
    const std::vector<float> a = convert::random_values(n, 1);
    const std::vector<float> b = convert::random_values(n, 2);
    const std::vector<float> ra = rotated(a);
    const std::vector<float> rb = rotated(b);
    EXPECT_NEAR(std::inner_product(a.begin(), a.end(), b.begin(), 0.0),
                std::inner_product(ra.begin(), ra.end(), rb.begin(), 0.0), 1e-4)
        << n;
  }
}

TEST(Hadamard, SpreadsOneNumberAndEqualOnesOverTheBlock) {
  for (const size_t n : {16U, 64U, 256U}) {
    std::vector<float> one(n);
    one[n / 3] = static_cast<float>(n);
    for (const float value : rotated(one)) {
      EXPECT_FLOAT_EQ(std::abs(value), std::sqrt(static_cast<float>(n)));
    }
    float largest = 0;
    for (const float value : rotated(std::vector<float>(n, 1))) {
      largest = std::max(largest, std::abs(value));
    }
    EXPECT_FLOAT_EQ(largest, n == 16 ? 2 : 1) << n;
  }
}

TEST(Hadamard, HasTheSameBitsOnEveryProcessor) {
  const Kernels portable = portable_kernels();
  std::vector<Kernels> others;
#if defined(__x86_64__)
  if (cpu_supports(CpuIsa::avx2)) others.push_back(avx2_kernels());
  if (cpu_supports(CpuIsa::avx512)) others.push_back(avx512_kernels());
#endif
  for (const int64_t n : {1, 7, 16, 84, 576, 1111}) {
    const std::vector<float> row = convert::random_values(static_cast<size_t>(n), 9);
    std::vector<float> want(row.size());
    portable.hadamard(row.data(), n, want.data());
    const std::vector<float> reference = rotated(row);
    for (size_t i = 0; i < row.size(); ++i) EXPECT_NEAR(want[i], reference[i], 1e-5) << n;
    for (const Kernels& kernels : others) {
      std::vector<float> got(row.size());
      kernels.hadamard(row.data(), n, got.data());
      EXPECT_EQ(got, want) << n;
    }
  }
}

}  // namespace
}  // namespace faststream
