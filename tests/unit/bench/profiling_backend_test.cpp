#include "bench/profiling_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "backend/backend.h"

namespace faststream::bench {
namespace {

TEST(ProfilingBackend, TimesOperationsByShapeAndOnlyWhileItIsOn) {
  ProfilingBackend backend(make_cpu_backend(1), WeightFormat::f32, 4096);
  std::vector<float> x(8, 1.0F);
  std::vector<float> weights(4 * 8, 1.0F);
  std::vector<float> out(4);
  const auto multiply = [&](int64_t rows) {
    const Weight weight{
        .data = weights.data(), .format = WeightFormat::f32, .rows = rows, .cols = 8};
    Input input{.x = Matrix(x.data(), DType::f32, 1, 8)};
    backend.linear(input, weight, {}, Matrix(out.data(), DType::f32, 1, rows));
  };
  multiply(4);
  EXPECT_EQ(out, std::vector<float>(4, 8.0F));
  backend.start();
  multiply(4);
  multiply(2);
  multiply(4);
  std::vector<OperationProfile> profiles = backend.stop();
  multiply(2);

  ASSERT_EQ(profiles.size(), 2U);
  std::ranges::sort(profiles, {}, &OperationProfile::operation);
  EXPECT_EQ(profiles[0].operation, "linear 2 x 8 f32");
  EXPECT_EQ(profiles[0].calls, 1);
  EXPECT_EQ(profiles[1].operation, "linear 4 x 8 f32");
  EXPECT_EQ(profiles[1].calls, 2);
  EXPECT_EQ(profiles[1].work.weight_bytes, 2 * 4 * 8 * 4);
  EXPECT_EQ(profiles[1].work.weight_ops, 2 * 2 * 4 * 8);
  EXPECT_GT(profiles[1].seconds, 0);

  backend.start();
  EXPECT_TRUE(backend.stop().empty());
}

}  // namespace
}  // namespace faststream::bench
