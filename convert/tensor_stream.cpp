#include "convert/tensor_stream.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "convert/elements.h"
#include "convert/quantize.h"
#include "support/error.h"

namespace faststream {
namespace {

// What a thread converts at a time (elements): small enough for its second-level cache, large
// enough for the disk.
constexpr int64_t kPieceElements = int64_t{128} << 10;
// Pieces of a block for each thread: enough to balance, few enough to bound memory.
constexpr int64_t kPiecesPerThread = 4;
constexpr int64_t kMaxBlockElements = int64_t{32} << 20;

constexpr int64_t ceil_div(int64_t value, int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

// The row of a checkpoint's tensor that becomes row `row` (see TensorPart::interleaved_head_dim).
int64_t source_row(int64_t row, int64_t head_dim) {
  const int64_t half = head_dim / 2;
  const int64_t head = row / head_dim;
  const int64_t place = row % head_dim;
  return head * head_dim + (place < half ? 2 * place : 2 * (place - half) + 1);
}

void check_range(std::span<const float> values, DType type, const std::string& where) {
  const float largest = largest_magnitude(values);
  if (!std::isfinite(largest)) {
    throw Error(where + " holds NaN or infinity; the checkpoint is damaged or its training failed");
  }
  if (largest >= overflow_magnitude(type)) {
    throw Error(where + " holds a value of magnitude " + std::to_string(largest) +
                ", too large for " + std::string(dtype_name(type)) + "; choose another --dtype");
  }
}

}  // namespace

// One tensor on its way: where its rows come from and where the current block goes.
struct TensorStream::Job {
  struct Source {
    const TensorPart* part;
    const SourceTensor* tensor;
    int64_t first_row;  // in the joined tensor
    int64_t end_row;
  };
  std::vector<Source> sources;
  DType dtype = DType::f32;
  int64_t rows = 0;
  int64_t cols = 1;
  int64_t block_first_row = 0;
  std::byte* block = nullptr;
  // [rows], i8 only
  std::vector<float> scales;
  std::vector<Norms> norms;
};

TensorStream::TensorStream(const Checkpoint& source, ModelWriter& writer, ThreadPool& pool)
    : source_(source), writer_(writer), pool_(pool), scratch_(static_cast<size_t>(pool.size())) {}

TensorStream::Norms TensorStream::add(const TensorPlan& plan, std::span<const TensorPart> parts,
                                      const std::function<void(uint64_t)>& on_block) {
  Job job;
  job.dtype = plan.dtype;
  job.cols = plan.shape.size() == 2 ? plan.shape[1] : 1;
  for (const TensorPart& part : parts) {
    const SourceTensor& tensor = source_.require(part.source, part.shape);
    job.sources.push_back({&part, &tensor, job.rows, job.rows + part.shape[0]});
    job.rows += part.shape[0];
  }
  if (job.rows != plan.shape[0]) {
    throw Error(source_.name() + ": the parts of tensor \"" + plan.name + "\" have " +
                std::to_string(job.rows) + " rows together, not " + std::to_string(plan.shape[0]));
  }
  if (job.dtype == DType::i8) {
    job.scales.resize(static_cast<size_t>(job.rows));
    job.norms.resize(static_cast<size_t>(job.rows));
  }

  const int64_t piece_rows = std::max<int64_t>(1, kPieceElements / job.cols);
  const int64_t block_rows = std::clamp(kMaxBlockElements / job.cols, int64_t{1},
                                        piece_rows * kPiecesPerThread * pool_.size());
  const auto row_bytes = static_cast<size_t>(job.cols) * dtype_size(job.dtype);
  for (int64_t first = 0; first < job.rows; first += block_rows) {
    const int64_t end = std::min(first + block_rows, job.rows);
    block_.resize(static_cast<size_t>(end - first) * row_bytes);
    job.block_first_row = first;
    job.block = block_.data();

    // Piece 0 writes the block before, so that disk and processors work at the same time.
    const int64_t n_pieces = 1 + ceil_div(end - first, piece_rows);
    pool_.parallel_for(n_pieces, 1, 1, [&](int thread, int64_t piece, int64_t) {
      if (piece == 0) {
        flush();
      } else {
        const int64_t begin = first + (piece - 1) * piece_rows;
        convert_rows(job, begin, std::min(begin + piece_rows, end),
                     scratch_[static_cast<size_t>(thread)]);
      }
    });
    std::swap(block_, pending_);
    for (const Job::Source& s : job.sources) {
      const int64_t rows = std::min(end, s.end_row) - std::max(first, s.first_row);
      bytes_read_ += s.tensor->format->bytes(std::max<int64_t>(rows, 0) * job.cols);
    }
    on_block(bytes_read_);
  }

  const auto scale_bytes = std::as_bytes(std::span(job.scales));
  pending_scales_.assign(scale_bytes.begin(), scale_bytes.end());
  Norms total;
  for (const Norms& row : job.norms) {
    total.squared_error += row.squared_error;
    total.squared_norm += row.squared_norm;
  }
  return total;
}

void TensorStream::flush() {
  writer_.append(pending_);
  writer_.append(pending_scales_);
  pending_.clear();
  pending_scales_.clear();
}

void TensorStream::convert_rows(Job& job, int64_t first, int64_t end, Scratch& scratch) const {
  for (const Job::Source& source : job.sources) {
    const int64_t begin = std::max(first, source.first_row);
    const int64_t stop = std::min(end, source.end_row);
    if (begin >= stop) continue;
    read_rows(*source.part, *source.tensor, begin - source.first_row, stop - begin, job.cols,
              scratch);
    const std::span<const float> values = scratch.values;
    check_range(values, job.dtype,
                source_.files()[source.tensor->file].path().string() + ": tensor \"" +
                    source.tensor->name + "\"");
    const auto cols = static_cast<size_t>(job.cols);
    std::byte* out =
        job.block + static_cast<size_t>(begin - job.block_first_row) * cols * dtype_size(job.dtype);
    if (job.dtype != DType::i8) {
      narrow(values, job.dtype, out);
      continue;
    }
    for (int64_t row = begin; row < stop; ++row) {
      const size_t place = static_cast<size_t>(row - begin) * cols;
      const QuantizedRow result =
          quantize_row(values.subspan(place, cols), {reinterpret_cast<int8_t*>(out) + place, cols});
      // Each row belongs to one piece, so these writes do not meet.
      job.scales[static_cast<size_t>(row)] = result.scale;
      job.norms[static_cast<size_t>(row)] = {result.squared_error, result.squared_norm};
    }
  }
}

void TensorStream::read_rows(const TensorPart& part, const SourceTensor& tensor, int64_t first,
                             int64_t count, int64_t cols, Scratch& scratch) const {
  const size_t row_bytes = tensor.format->bytes(cols);
  scratch.raw.resize(tensor.format->bytes(count * cols));
  scratch.values.resize(static_cast<size_t>(count * cols));
  if (part.interleaved_head_dim == 0) {
    source_.read(tensor, first * cols, scratch.raw);
  } else {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = source_row(first + i, part.interleaved_head_dim);
      source_.read(tensor, row * cols,
                   std::span(scratch.raw).subspan(static_cast<size_t>(i) * row_bytes, row_bytes));
    }
  }
  tensor.format->decode(scratch.raw.data(), scratch.values);
}

}  // namespace faststream
