// CUDA operations that need more memory for themselves than they may take work in pieces.
#include "kernels/cuda/scratch.h"

#include <array>

#include "unit/backend/backend_weights.h"

namespace faststream {
namespace {

TEST(Scratch, APieceHasAsManyRowsAsFitInWholeGrains) {
  EXPECT_EQ(piece_of(100, 1000, 16).rows, 100);
  EXPECT_GE(piece_of(100, 1000, 16).bytes, 112U * 1000) << "padded to a grain";
  EXPECT_EQ(piece_of(1000, kMaxScratchBytes / 100, 16).rows, 96);
  EXPECT_EQ(piece_of(1000, kMaxScratchBytes / 100, 1).rows, 100);
  EXPECT_EQ(piece_of(1000, kMaxScratchBytes / 100, 16, 32).rows, 32);
  EXPECT_EQ(piece_of(1000, 2 * kMaxScratchBytes, 16).rows, 16) << "a grain is the least";
  EXPECT_EQ(piece_of(3, 2 * kMaxScratchBytes, 16).rows, 3);
  EXPECT_LE(piece_of(1 << 20, 1000, 16).bytes, kMaxScratchBytes + 1000);
}

class CudaScratch : public BackendTest {};

// The largest model that is common, with as many sequences as there may be.
TEST_P(CudaScratch, IsAskedForWithinBounds) {
  const StepBounds bounds{
      .tokens = 2048,
      .sequences = 1024,
      .logits = 1024,
      .context = 131072,
      .vocab = 128256,
      .n_heads = 32,
      .n_kv_heads = 8,
      .head_dim = 128,
      .weight_format = WeightFormat::int8,
      .products = {{.rows = 1024, .in = 4096, .out = 128256, .format = WeightFormat::int8}}};
  const size_t bytes = backend_->scratch_bytes(bounds);
  EXPECT_GE(bytes, kMaxScratchBytes / 2);
  EXPECT_LE(bytes, 2 * kMaxScratchBytes);
}

// Eight of 128 experts for each of 2,048 tokens.
TEST_P(CudaScratch, OfExpertsIsAskedForWithinBounds) {
  constexpr int64_t kPairs = 8 * 2048;
  const size_t bytes = backend_->scratch_bytes({.tokens = 2048,
                                                .sequences = 64,
                                                .logits = 64,
                                                .context = 4096,
                                                .vocab = 151936,
                                                .n_heads = 32,
                                                .n_kv_heads = 4,
                                                .head_dim = 128,
                                                .weight_format = WeightFormat::bf16,
                                                .products = {{.rows = kPairs,
                                                              .in = 2048,
                                                              .out = 1536,
                                                              .format = WeightFormat::bf16,
                                                              .gated = true,
                                                              .experts = 128},
                                                             {.rows = kPairs,
                                                              .in = 768,
                                                              .out = 2048,
                                                              .format = WeightFormat::bf16,
                                                              .experts = 128}}});
  EXPECT_GE(bytes, kPairs * (2 * 768 + 4 * 2048)) << "the middle, and results in float";
  EXPECT_LE(bytes, 2 * kMaxScratchBytes);
}

// The product of rows at the ends of pieces is that of these rows alone.
TEST_P(CudaScratch, AProductInPiecesHasTheRowsOfTheWhole) {
  constexpr int64_t kRows = 600;
  constexpr int64_t kOutputs = 131072;
  constexpr int64_t kInputs = 32;
  const int64_t piece = piece_of(kRows, kOutputs * 4 + kInputs + 4, 16).rows;
  ASSERT_LT(piece, kRows);
  for (const WeightFormat format : {WeightFormat::int8, WeightFormat::bf16}) {
    const DType act = backend_->activation_dtype(format);
    const DeviceTensor x(*backend_, random_tensor(random_, act, kRows, kInputs));
    const DeviceWeight device_weight(*backend_, random_weight(random_, format, kOutputs, kInputs));
    const DeviceTensor bias(*backend_, random_tensor(random_, DType::f32, 1, kOutputs));
    const Weight weight = device_weight.weight();
    const auto product = [&](const Matrix& rows) {
      const DeviceTensor out(*backend_, HostTensor(act, rows.rows, kOutputs));
      Input input{.x = rows};
      backend_->linear(input, weight, {.bias = static_cast<const float*>(bias.data())},
                       out.matrix());
      return out.fetch();
    };
    const auto gated = [&](const Matrix& rows) {
      const DeviceTensor out(*backend_, HostTensor(act, rows.rows, kOutputs / 2));
      Input input{.x = rows};
      backend_->gated_linear(input, weight, nullptr, Activation::silu, out.matrix());
      return out.fetch();
    };
    const HostTensor whole = product(x.matrix());
    const HostTensor whole_gated = gated(x.matrix());
    for (const int64_t row : {int64_t{0}, piece - 1, piece, kRows - 1}) {
      const HostTensor alone = product(x.matrix().row_range(row, 1));
      const HostTensor alone_gated = gated(x.matrix().row_range(row, 1));
      int64_t different = 0;
      for (int64_t c = 0; c < kOutputs; ++c) {
        different += whole.at(row, c) != alone.at(0, c) ? 1 : 0;
        if (c < kOutputs / 2) different += whole_gated.at(row, c) != alone_gated.at(0, c) ? 1 : 0;
      }
      EXPECT_EQ(different, 0) << format_name(format) << ", row " << row;
    }
  }
}

// The same of experts, each of whose rows takes hidden floats and more. All of them are used, so
// that many rows are of few tokens.
TEST_P(CudaScratch, ExpertsInPiecesHaveTheTokensOfTheWhole) {
  constexpr int64_t kTokens = 350;
  constexpr int64_t kIn = 16;
  constexpr int64_t kHidden = 65536;
  constexpr int32_t kExperts = 16;
  constexpr int32_t kUsed = kExperts;
  constexpr int64_t kPairBytes = 2 * (kIn + 32) + 4 * (kIn + kHidden);
  ASSERT_GT(kTokens * kUsed * kPairBytes, kMaxExpertsBytes);
  ASSERT_LT(kTokens * kUsed * kPairBytes, 2 * kMaxExpertsBytes);
  constexpr int64_t kPiece = kTokens / 2;  // of equal ones
  for (const WeightFormat format : {WeightFormat::int8, WeightFormat::bf16}) {
    const DType act = backend_->activation_dtype(format);
    const DeviceTensor x(*backend_, random_tensor(random_, act, kTokens, kIn));
    const DeviceTensor scores(*backend_, random_tensor(random_, DType::f32, kTokens, kExperts));
    const DeviceWeight up(*backend_, random_weight(random_, format, kExperts * 2 * kIn, kIn));
    const DeviceWeight down(*backend_, random_weight(random_, format, kExperts * kHidden, kIn));
    const auto result = [&](int64_t first, int64_t count) {
      const DeviceTensor out(*backend_, HostTensor(DType::f32, count, kHidden));
      Input input{.x = x.matrix().row_range(first, count)};
      backend_->experts(input, scores.matrix().row_range(first, count), {.used = kUsed},
                        {.n_experts = kExperts, .up = up.weight(), .down = down.weight()},
                        OutputMode::store, out.matrix());
      return out.fetch();
    };
    const HostTensor whole = result(0, kTokens);
    for (const int64_t token : {int64_t{0}, kPiece - 1, kPiece, kTokens - 1}) {
      const HostTensor alone = result(token, 1);
      int64_t different = 0;
      for (int64_t c = 0; c < kHidden; ++c) {
        different += whole.at(token, c) != alone.at(0, c) ? 1 : 0;
      }
      EXPECT_EQ(different, 0) << format_name(format) << ", token " << token;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, CudaScratch, ::testing::Values("cuda"));

}  // namespace
}  // namespace faststream
