// Rows of a tensor as its parts have them, from wherever in the checkpoint.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "convert/weights/read_values.h"
#include "convert/weights/tensor_stream.h"

namespace faststream::convert {
namespace {

// Rows that are apart are read with those between them if these are at most as many times theirs.
constexpr int64_t kMostBetween = 4;

// The row that stands at `row` when pairs stand in halves.
int64_t reordered(int64_t row, const SidewisePairs& pairs) {
  if (pairs.head_dim == 0) return row;
  const int64_t half = pairs.rotated / 2;
  const int64_t place = row % pairs.head_dim;
  if (place >= pairs.rotated) return row;
  return row - place + (place < half ? 2 * place : 2 * (place - half) + 1);
}

}  // namespace

int64_t TensorStream::source_row(const TensorPart& part, int64_t row) {
  return part.first_row + part.row_step * reordered(row, part.pairs);
}

std::vector<float> TensorStream::read_projection(const RowProjection& projection,
                                                 int64_t cols) const {
  const SourceTensor& tensor =
      source_.require(projection.matrix, projection_shape(projection, cols));
  std::vector<float> values(static_cast<size_t>(projection.inputs * cols));
  std::vector<std::byte> raw;
  read_values(source_, tensor, projection.first_row * projection.inputs, values, raw);
  if (projection.transposed) return values;
  const auto rows = static_cast<size_t>(cols);
  const auto width = static_cast<size_t>(projection.inputs);
  std::vector<float> turned(values.size());
  for (size_t i = 0; i < rows; ++i) {
    for (size_t k = 0; k < width; ++k) turned[k * rows + i] = values[i * width + k];
  }
  return turned;
}

void TensorStream::read_rows(const Source& source, int64_t first, int64_t count,
                             Scratch& scratch) const {
  const TensorPart& part = *source.part;
  const int64_t cols = source.width;
  scratch.values.resize(static_cast<size_t>(count * cols));
  const std::span<float> values = scratch.values;
  if (part.values != nullptr) {
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(part.values->begin() + source_row(part, first + i) * cols, cols,
                  values.begin() + i * cols);
    }
  } else if (source.tensor == nullptr) {
    std::ranges::fill(values, 0.0F);
  } else if (part.transposed) {
    read_columns(source, first, count, scratch);
  } else if (part.pairs.head_dim == 0 && part.row_step == 1) {
    read_values(source_, *source.tensor, (part.first_row + first) * cols, values, scratch.raw);
  } else {
    read_scattered_rows(source, first, count, scratch);
  }
}

void TensorStream::read_scattered_rows(const Source& source, int64_t first, int64_t count,
                                       Scratch& scratch) const {
  const TensorPart& part = *source.part;
  const auto cols = static_cast<size_t>(source.width);
  int64_t least = source_row(part, first);
  int64_t most = least;
  for (int64_t i = 1; i < count; ++i) {
    least = std::min(least, source_row(part, first + i));
    most = std::max(most, source_row(part, first + i));
  }
  const bool together = most - least < kMostBetween * count;
  if (together) {
    scratch.columns.resize(static_cast<size_t>(most - least + 1) * cols);
    read_values(source_, *source.tensor, least * source.width, scratch.columns, scratch.raw);
  }
  for (int64_t i = 0; i < count; ++i) {
    const std::span<float> row =
        std::span(scratch.values).subspan(static_cast<size_t>(i) * cols, cols);
    const int64_t from = source_row(part, first + i);
    if (together) {
      std::copy_n(&scratch.columns[static_cast<size_t>(from - least) * cols], cols, row.begin());
    } else {
      read_values(source_, *source.tensor, from * source.width, row, scratch.raw);
    }
  }
}

// The tensor is matrices [inputs, n]; row r is of column r % n of the matrix r / n.
void TensorStream::read_columns(const Source& source, int64_t first, int64_t count,
                                Scratch& scratch) const {
  const int64_t cols = source.width;
  const int64_t n = source.part->shape.back();
  const int64_t inputs = source.part->shape.end()[-2];
  for (int64_t done = 0; done < count;) {
    // The rows from here on that are in the same matrix, and the columns that hold them all.
    const int64_t matrix = source_row(*source.part, first + done) / n;
    int64_t end = done;
    int64_t least = n;
    int64_t most = 0;
    for (; end < count && source_row(*source.part, first + end) / n == matrix; ++end) {
      const int64_t column = source_row(*source.part, first + end) % n;
      least = std::min(least, column);
      most = std::max(most, column);
    }
    const MatrixBlock block{matrix * inputs + source.part->first_input, cols, least,
                            most - least + 1};
    scratch.columns.resize(static_cast<size_t>(block.rows * block.columns));
    read_block(source_, *source.tensor, block, scratch.columns, scratch.raw);
    for (int64_t i = done; i < end; ++i) {
      const int64_t column = source_row(*source.part, first + i) % n - least;
      for (int64_t k = 0; k < cols; ++k) {
        scratch.values[static_cast<size_t>(i * cols + k)] =
            scratch.columns[static_cast<size_t>(k * block.columns + column)];
      }
    }
    done = end;
  }
}

}  // namespace faststream::convert
