// CUDA operations that need more memory for themselves than they may take work in pieces.
#include "kernels/cuda/scratch.h"

#include <array>

#include "unit/backend_fixture.h"

namespace faststream {
namespace {

TEST(Scratch, APieceHasAsManyRowsAsFitInWholeGrains) {
  EXPECT_EQ(rows_of_piece(100, 1000, 16), 100);
  EXPECT_EQ(rows_of_piece(1000, kMaxScratchBytes / 100, 16), 96);
  EXPECT_EQ(rows_of_piece(1000, kMaxScratchBytes / 100, 1), 100);
  EXPECT_EQ(rows_of_piece(1000, 2 * kMaxScratchBytes, 16), 16) << "a grain is the least";
  EXPECT_EQ(rows_of_piece(3, 2 * kMaxScratchBytes, 16), 3);
}

class CudaScratch : public BackendTest {};

// The product of rows at the ends of pieces is that of these rows alone.
TEST_P(CudaScratch, AProductInPiecesHasTheRowsOfTheWhole) {
  constexpr int64_t kRows = 600;
  constexpr int64_t kOutputs = 131072;
  constexpr int64_t kInputs = 32;
  const int64_t piece = rows_of_piece(kRows, kOutputs * 4 + kInputs + 4, 16);
  ASSERT_LT(piece, kRows);
  for (const DType type : {DType::i8, DType::bf16}) {
    const DType act = backend_->activation_dtype(type);
    const DeviceTensor x(*backend_, random_tensor(random_, act, kRows, kInputs));
    const DeviceTensor data(*backend_, random_tensor(random_, type, kOutputs, kInputs));
    const DeviceTensor scales(*backend_, random_tensor(random_, DType::f32, 1, kOutputs));
    const DeviceTensor bias(*backend_, random_tensor(random_, DType::f32, 1, kOutputs));
    const Weight weight = data.weight(type == DType::i8 ? &scales : nullptr);
    const auto product = [&](const Matrix& rows) {
      const DeviceTensor out(*backend_, HostTensor(act, rows.rows, kOutputs));
      backend_->linear(rows, weight, static_cast<const float*>(bias.data()), LinearOutput::store,
                       out.matrix());
      return out.fetch();
    };
    const auto gated = [&](const Matrix& rows) {
      const DeviceTensor out(*backend_, HostTensor(act, rows.rows, kOutputs / 2));
      backend_->gated_linear(rows, weight, Activation::silu, out.matrix());
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
      EXPECT_EQ(different, 0) << dtype_name(type) << ", row " << row;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, CudaScratch, ::testing::Values("cuda"));

}  // namespace
}  // namespace faststream
