#include "convert/weights/low_rank_update.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "convert/weights/elements.h"
#include "support/error.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

using Raw = std::vector<std::byte>;

// Of the factors that are in memory at a time (elements).
constexpr int64_t kMostOfFactor = int64_t{1} << 20;
// Columns of a product that stay in the first-level cache.
constexpr int64_t kColumnsTogether = 1024;

// product [rows, columns] += left [rows, rank] · right [rank, columns], one rank after the other,
// so that the sums do not depend on how a tensor is cut into blocks.
void add_product(int64_t rows, int64_t rank, int64_t columns, const float* left, const float* right,
                 float* product) {
  for (int64_t first = 0; first < columns; first += kColumnsTogether) {
    const int64_t end = std::min(first + kColumnsTogether, columns);
    for (int64_t row = 0; row < rows; ++row) {
      float* sums = product + row * columns;
      for (int64_t k = 0; k < rank; ++k) {
        const float factor = left[row * rank + k];
        const float* of_rank = right + k * columns;
        for (int64_t c = first; c < end; ++c) sums[c] += factor * of_rank[c];
      }
    }
  }
}

// Adds scale · left · right to a block of one matrix.
void add_factors(const Checkpoint& checkpoint, const LowRankFactors& factors, float scale,
                 const MatrixBlock& block, std::span<float> out, Raw& raw) {
  const int64_t rank = factors.right->matrix_rows();
  const int64_t piece =
      std::clamp<int64_t>(kMostOfFactor / std::max(block.rows, block.columns), 1, rank);
  std::vector<float> left;
  std::vector<float> right;
  std::vector<float> product(out.size(), 0.0F);
  for (int64_t first = 0; first < rank; first += piece) {
    const int64_t n = std::min(piece, rank - first);
    left.assign(static_cast<size_t>(block.rows * n), 1.0F);
    right.resize(static_cast<size_t>(n * block.columns));
    if (factors.left) {
      read_block(checkpoint, *factors.left, {block.first_row, block.rows, first, n}, left, raw);
    }
    read_block(checkpoint, *factors.right, {first, n, block.first_column, block.columns}, right,
               raw);
    add_product(block.rows, n, block.columns, left.data(), right.data(), product.data());
  }
  for (size_t i = 0; i < out.size(); ++i) out[i] += scale * product[i];
}

bool are_finite(std::span<const float> values) { return std::isfinite(largest_magnitude(values)); }

// Of finite factors that finite values become infinite with.
[[noreturn]] void refuse_overflow(const Checkpoint& checkpoint, const LowRankUpdate& update) {
  const SourceTensor& factor = *update.factors.front().right;
  throw Error(checkpoint.files()[factor.file].path().string() + ": tensor " +
              in_quotes(factor.name) + " and its counterpart make values of " +
              in_quotes(update.base->name) +
              " larger than a float can be; the adapter is damaged, or its \"lora_alpha\" is not "
              "what it was trained with");
}

// The block of the base with what is added to each matrix that it has rows of.
void read_sum(const Checkpoint& checkpoint, const LowRankUpdate& update, const MatrixBlock& block,
              std::span<float> out, Raw& raw) {
  read_block(checkpoint, *update.base, block, out, raw);
  const int64_t matrix_rows = update.base->matrix_rows();
  const int64_t end = block.first_row + block.rows;
  for (int64_t row = block.first_row; row < end;) {
    const int64_t matrix = row / matrix_rows;
    const int64_t n = std::min(end, (matrix + 1) * matrix_rows) - row;
    const MatrixBlock of_matrix{row % matrix_rows, n, block.first_column, block.columns};
    const std::span<float> rows =
        out.subspan(static_cast<size_t>((row - block.first_row) * block.columns),
                    static_cast<size_t>(n * block.columns));
    add_factors(checkpoint, update.factors[static_cast<size_t>(matrix)], update.scale, of_matrix,
                rows, raw);
    row += n;
  }
  if (are_finite(out)) return;
  std::vector<float> base(out.size());  // which may be to blame itself
  read_block(checkpoint, *update.base, block, base, raw);
  if (are_finite(base)) refuse_overflow(checkpoint, update);
}

// What a length is multiplied with to become the magnitude; of zeros nothing else can be made.
float factor_of(float magnitude, double squares) {
  return squares > 0 ? static_cast<float>(magnitude / std::sqrt(squares)) : 0.0F;
}

// Of a block with whole rows.
void scale_rows(std::span<const float> magnitudes, int64_t columns, std::span<float> values) {
  const auto width = static_cast<size_t>(columns);
  for (size_t row = 0; row < magnitudes.size(); ++row) {
    const std::span<float> of_row = values.subspan(row * width, width);
    const float factor = factor_of(magnitudes[row], sum_of_squares(of_row));
    for (float& value : of_row) value *= factor;
  }
}

// Of a block with whole columns.
void scale_columns(std::span<const float> magnitudes, int64_t rows, std::span<float> values) {
  const size_t columns = magnitudes.size();
  const auto row_of = [&](int64_t row) {
    return values.subspan(static_cast<size_t>(row) * columns, columns);
  };
  std::vector<double> squares(columns);
  for (int64_t row = 0; row < rows; ++row) {
    const std::span<const float> of_row = row_of(row);
    for (size_t c = 0; c < columns; ++c) squares[c] += double{of_row[c]} * of_row[c];
  }
  std::vector<float> factors(columns);
  for (size_t c = 0; c < columns; ++c) factors[c] = factor_of(magnitudes[c], squares[c]);
  for (int64_t row = 0; row < rows; ++row) {
    const std::span<float> of_row = row_of(row);
    for (size_t c = 0; c < columns; ++c) of_row[c] *= factors[c];
  }
}

}  // namespace

void read_updated_block(const Checkpoint& checkpoint, const SourceTensor& tensor,
                        const MatrixBlock& block, std::span<float> out, Raw& raw) {
  const LowRankUpdate& update = *tensor.update;
  if (!update.magnitudes) return read_sum(checkpoint, update, block, out, raw);
  const bool of_rows =
      update.magnitudes->columns() == 1 && update.magnitudes->matrix_rows() == tensor.matrix_rows();
  // All of each output, whose length counts.
  MatrixBlock whole = block;
  if (of_rows) {
    whole.first_column = 0;
    whole.columns = tensor.columns();
  } else {
    whole.first_row = 0;
    whole.rows = tensor.matrix_rows();
  }
  std::vector<float> values(static_cast<size_t>(whole.rows * whole.columns));
  read_sum(checkpoint, update, whole, values, raw);
  const bool are_sums_finite = are_finite(values);
  std::vector<float> magnitudes(static_cast<size_t>(of_rows ? whole.rows : whole.columns));
  if (of_rows) {
    read_block(checkpoint, *update.magnitudes, {whole.first_row, whole.rows, 0, 1}, magnitudes,
               raw);
    scale_rows(magnitudes, whole.columns, values);
  } else {
    read_block(checkpoint, *update.magnitudes, {0, 1, whole.first_column, whole.columns},
               magnitudes, raw);
    scale_columns(magnitudes, whole.rows, values);
  }
  if (are_sums_finite && !are_finite(values)) refuse_overflow(checkpoint, update);
  for (int64_t row = 0; row < block.rows; ++row) {
    const int64_t from = (block.first_row - whole.first_row + row) * whole.columns +
                         block.first_column - whole.first_column;
    std::copy_n(values.begin() + from, block.columns, out.begin() + row * block.columns);
  }
}

}  // namespace faststream::convert
