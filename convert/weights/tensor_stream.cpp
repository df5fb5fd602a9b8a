#include "convert/weights/tensor_stream.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "convert/quantized/held_formats.h"
#include "convert/weights/elements.h"
#include "kernels/cpu/isa/kernels.h"
#include "support/error.h"
#include "support/hadamard.h"

namespace faststream::convert {
namespace {

// What a thread converts at a time (elements): small enough for its second-level cache, large
// enough for the disk.
constexpr int64_t kPieceElements = int64_t{128} << 10;
// Pieces of a block for each thread: enough to balance, few enough to bound memory.
constexpr int64_t kPiecesPerThread = 4;
constexpr int64_t kMaxBlockElements = int64_t{32} << 20;
// Of transposed tensors at a time: from each of their rows a disk should give more than a few
// bytes.
constexpr int64_t kLeastColumns = 256;

constexpr int64_t ceil_div(int64_t value, int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

// The logarithm of a rate whose opposite is given; of none, that of the least there is.
float log_of_opposite(float value) {
  if (value > 0) return std::numeric_limits<float>::quiet_NaN();
  return std::log(std::max(-value, std::numeric_limits<float>::min()));
}

// Rows of `cols` values whose blocks of columns stand in another order.
void reorder_columns(const std::vector<int64_t>& blocks, int64_t cols, std::span<float> values,
                     std::vector<float>& row) {
  if (blocks.empty()) return;
  const auto width = static_cast<size_t>(cols);
  const size_t size = width / blocks.size();
  row.resize(width);
  for (size_t at = 0; at < values.size(); at += width) {
    for (size_t b = 0; b < blocks.size(); ++b) {
      std::copy_n(&values[at + static_cast<size_t>(blocks[b]) * size], size, &row[b * size]);
    }
    std::copy_n(row.begin(), width, &values[at]);
  }
}

void divide_by_norm(std::span<float> row) {
  double squares = 0;
  for (const float value : row) squares += double{value} * value;
  constexpr double kLeastNorm = 1e-12;  // as torch.nn.functional.normalize() has it
  const auto norm = static_cast<float>(std::max(std::sqrt(squares), kLeastNorm));
  for (float& value : row) value /= norm;
}

// What a part asks for besides an order of rows.
void change_values(const TensorPart& part, int64_t cols, std::span<float> values) {
  if (part.log_of_opposite) {
    for (float& value : values) value = log_of_opposite(value);
  }
  if (part.add != 0 || part.scale != 1) {
    for (float& value : values) value = part.scale * (value + part.add);
  }
  if (!part.unit_rows) return;
  const auto width = static_cast<size_t>(cols);
  for (size_t at = 0; at < values.size(); at += width) divide_by_norm(values.subspan(at, width));
}

// Each of the rows times a matrix [width, cols].
void project(std::span<const float> rows, int64_t width, std::span<const float> matrix,
             int64_t cols, std::vector<float>& out) {
  const auto n = static_cast<size_t>(cols);
  out.assign(rows.size() / static_cast<size_t>(width) * n, 0.0F);
  float* to = out.data();
  for (size_t at = 0; at < rows.size(); at += static_cast<size_t>(width), to += n) {
    const float* from = matrix.data();
    for (const float value : rows.subspan(at, static_cast<size_t>(width))) {
      for (size_t i = 0; i < n; ++i) to[i] += value * from[i];
      from += n;
    }
  }
}

// Values of a matrix' rows from `first` on.
void multiply_rows(const TensorStream::Factors& factors, int64_t first, int64_t rows, int64_t cols,
                   std::span<float> values) {
  if (factors.rows.empty() && factors.columns.empty()) return;
  const auto width = static_cast<size_t>(cols);
  for (size_t at = 0; at < values.size(); at += width, ++first) {
    const float of_row = factors.rows.empty() ? 1.0F : factors.rows[static_cast<size_t>(first)];
    const std::span<float> row = values.subspan(at, width);
    if (factors.columns.empty()) {
      for (float& value : row) value *= of_row;
    } else {
      const float* of_columns =
          &factors.columns[static_cast<size_t>(first / (rows / factors.experts) * cols)];
      for (size_t c = 0; c < width; ++c) row[c] *= of_row * of_columns[c];
    }
  }
}

// Values of a tensor's rows from `first` on, whole heads where these are rotated.
void rotate_heads(const HeadRotation& heads, int64_t first, int64_t cols, std::span<float> values) {
  if (heads.dim == 0) return;
  const auto dim = static_cast<size_t>(heads.dim);
  const auto width = static_cast<size_t>(cols);
  if (heads.columns) {
    for (size_t at = 0; at < values.size(); at += dim) hadamard(values.subspan(at, dim));
    return;
  }
  const auto before = static_cast<size_t>(std::max<int64_t>(0, heads.first_row - first)) * width;
  for (size_t at = before; at < values.size(); at += dim * width) {
    hadamard(values.subspan(at, dim * width), width);
  }
}

void refuse_rotation(const std::string& where) {
  throw Error(where +
              " holds values that are too large to be rotated; choose --dtype bf16, or f32");
}

void check_range(std::span<const float> values, WeightFormat format, const std::string& where) {
  const float largest = largest_magnitude(values);
  if (!std::isfinite(largest)) {
    throw Error(where + " holds NaN or infinity; the checkpoint is damaged or its training failed");
  }
  if (largest >= overflow_magnitude(format)) {
    throw Error(where + " holds a value of magnitude " + std::to_string(largest) +
                ", too large for " + std::string(format_name(format)) + "; choose another --dtype");
  }
}

}  // namespace

// One tensor on its way: where its rows come from and where the current block goes.
struct TensorStream::Job {
  std::string name;
  std::vector<Source> sources;
  WeightFormat format = WeightFormat::f32;
  bool rotated = false;
  HeadRotation heads;
  bool transposed = false;
  int64_t rows = 0;
  int64_t cols = 1;
  int64_t block_first_row = 0;
  std::byte* block = nullptr;
  const Factors* factors = nullptr;
  std::vector<std::unique_ptr<const InputMetric>> metrics;  // of equal parts of the rows
  // Of quantized tensors: [rows, scale_row_bytes], and [rows].
  std::vector<std::byte> scales;
  int64_t scale_row_bytes = 0;
  std::vector<Norms> norms;
};

TensorStream::TensorStream(const Checkpoint& source, Append append, ThreadPool& pool)
    : source_(source),
      append_(std::move(append)),
      pool_(pool),
      rotate_(portable_kernels().hadamard),
      scratch_(static_cast<size_t>(pool.size())) {}

TensorStream::Source TensorStream::source_of(const TensorPart& part, int64_t first_row,
                                             int64_t end_row, int64_t cols,
                                             WeightFormat format) const {
  const SourceTensor* tensor =
      part.source.empty() ? nullptr : &source_.require(part.source, part.shape);
  Source source{&part, tensor, first_row, end_row, source_width(part, cols)};
  if (part.projection.inputs > 0) source.projection = read_projection(part.projection, cols);
  if (part.plus) {
    source.plus =
        std::make_shared<const Source>(source_of(*part.plus, first_row, end_row, cols, format));
  }
  const bool needs_scales = format == WeightFormat::fp8 || format == WeightFormat::nf4;
  source.has_scales = needs_scales && is_rows_alone(part, cols) && tensor->columns() == cols &&
                      held_format(source_, *tensor) == format;
  return source;
}

TensorStream::Job TensorStream::job_of(const TensorPlan& plan,
                                       std::span<const TensorPart> parts) const {
  Job job;
  job.name = plan.name;
  job.format = plan.format;
  job.rotated = plan.rotated;
  job.heads = plan.heads;
  job.cols = row_width(plan);
  for (const TensorPart& part : parts) {
    const int64_t end = job.rows + part_rows(part, job.cols);
    job.sources.push_back(source_of(part, job.rows, end, job.cols, job.format));
    job.rows = end;
    const SourceTensor* tensor = job.sources.back().tensor;
    job.transposed = job.transposed || part.transposed != (tensor && tensor->lies_in_columns());
  }
  return job;
}

std::vector<std::unique_ptr<const InputMetric>> TensorStream::metrics_of(
    const TensorPlan& plan, const Factors& factors, const ActivationStatistics* statistics) const {
  if (statistics == nullptr || plan.format != WeightFormat::int4) return {};
  const int64_t head_dim = plan.heads.columns ? plan.heads.dim : 0;
  const int64_t n_parts = ActivationStatistics::parts_of(plan);
  std::vector<std::unique_ptr<const InputMetric>> metrics(static_cast<size_t>(n_parts));
  const InputMetric::ForEach on_threads = [&](int64_t count, const auto& body) {
    pool_.parallel_for(count, 1, 1, [&](int, int64_t n, int64_t) { body(n); });
  };
  for (int64_t part = 0; part < n_parts; ++part) {
    const InputMoments* moments = statistics->find(plan.id, part);
    if (moments == nullptr || !InputMetric::can_rotate(*moments, head_dim)) continue;
    std::span<const float> columns = factors.columns;
    if (factors.experts > 1) {
      columns = columns.subspan(static_cast<size_t>(part * plan.columns()),
                                static_cast<size_t>(plan.columns()));
    }
    metrics[static_cast<size_t>(part)] =
        std::make_unique<const InputMetric>(*moments, columns, head_dim, plan.rotated, on_threads);
  }
  return metrics;
}

TensorStream::Norms TensorStream::add(const TensorPlan& plan, std::span<const TensorPart> parts,
                                      const Factors& factors,
                                      const ActivationStatistics* statistics,
                                      const std::function<void(uint64_t)>& on_block) {
  Job job = job_of(plan, parts);
  job.factors = &factors;
  job.metrics = metrics_of(plan, factors, statistics);
  if (!is_float(job.format)) {
    job.scale_row_bytes = scale_shape(job.format).row_bytes();
    job.scales.resize(static_cast<size_t>(job.rows * job.scale_row_bytes));
    job.norms.resize(static_cast<size_t>(job.rows));
  }

  const int64_t least_rows = job.transposed ? kLeastColumns : 1;
  const int64_t whole = std::max<int64_t>(1, job.heads.dim);  // rows that are rotated together
  const int64_t piece_rows =
      ceil_div(std::max(least_rows, kPieceElements / job.cols), whole) * whole;
  const int64_t piece_elements = piece_rows * job.cols;
  const int64_t threads = pool_.size();
  const int64_t most_pieces =
      std::max(threads, kPiecesPerThread * threads * kPieceElements / piece_elements);
  const int64_t block_rows =
      piece_rows * std::clamp(kMaxBlockElements / piece_elements, int64_t{1}, most_pieces);
  const auto row_bytes = static_cast<size_t>(faststream::row_bytes(job.format, job.cols));
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
    for (const Source& source : job.sources) {
      const int64_t rows = std::min(end, source.end_row) - std::max(first, source.first_row);
      if (rows <= 0) continue;
      for (const Source* s = &source; s != nullptr; s = s->plus.get()) {
        if (s->tensor != nullptr) bytes_read_ += s->tensor->format->bytes(rows * s->width);
      }
    }
    on_block(bytes_read_);
  }

  pending_scales_ = std::move(job.scales);
  Norms total;
  for (const Norms& row : job.norms) {
    total.squared_error += row.squared_error;
    total.squared_norm += row.squared_norm;
  }
  return total;
}

void TensorStream::flush() {
  append_(pending_);
  append_(pending_scales_);
  pending_.clear();
  pending_scales_.clear();
}

TensorStream::Squares TensorStream::squares(const TensorPlan& plan,
                                            std::span<const TensorPart> parts, int64_t experts,
                                            RowsAs rows_as,
                                            const std::function<void(uint64_t)>& on_block) {
  const Job job = job_of(plan, parts);
  const auto cols = static_cast<size_t>(job.cols);
  const int64_t expert_rows = job.rows / experts;
  Squares squares;
  squares.rows.resize(static_cast<size_t>(job.rows));
  squares.columns.resize(static_cast<size_t>(experts) * cols);
  // Pieces whose sums are added in their order, so that the file does not depend on threads.
  constexpr int64_t kPieces = 64;
  const int64_t piece_rows = std::max<int64_t>(1, kPieceElements / job.cols);
  std::vector<float> sums;
  for (int64_t expert = 0; expert < experts; ++expert) {
    const std::span<double> columns =
        std::span(squares.columns).subspan(static_cast<size_t>(expert) * cols, cols);
    const int64_t end = (expert + 1) * expert_rows;
    for (int64_t at = expert * expert_rows; at < end; at += kPieces * piece_rows) {
      sums.assign(static_cast<size_t>(kPieces) * cols, 0.0F);
      pool_.parallel_for(kPieces, 1, 1, [&](int thread, int64_t piece, int64_t) {
        const int64_t first = at + piece * piece_rows;
        const int64_t stop = std::min(first + piece_rows, end);
        float* to = &sums[static_cast<size_t>(piece) * cols];
        Scratch& scratch = scratch_[static_cast<size_t>(thread)];
        for (const Source& source : job.sources) {
          const int64_t from = std::max(first, source.first_row);
          const int64_t until = std::min(stop, source.end_row);
          if (from >= until) continue;
          make_rows(job, source, from, until, scratch);
          const float* values = scratch.values.data();
          for (int64_t row = from; row < until; ++row, values += cols) {
            const double sum = sum_of_squares({values, cols});
            squares.rows[static_cast<size_t>(row)] = sum;
            const auto factor = static_cast<float>(
                rows_as == RowsAs::units && std::isnormal(sum) ? 1 / std::sqrt(sum) : 1);
            for (size_t c = 0; c < cols; ++c) {
              const float value = values[c] * factor;
              to[c] += value * value;
            }
          }
        }
      });
      for (size_t i = 0; i < sums.size(); ++i) columns[i % cols] += sums[i];
      on_block(bytes_read_);
    }
  }
  return squares;
}

void TensorStream::make_rows(const Job& job, const Source& source, int64_t first, int64_t end,
                             Scratch& scratch) const {
  read_rows(source, first - source.first_row, end - first, scratch);
  reorder_columns(source.part->column_blocks, source.width, scratch.values, scratch.columns);
  if (!source.projection.empty()) {
    scratch.columns.swap(scratch.values);
    project(scratch.columns, source.width, source.projection, job.cols, scratch.values);
  }
  change_values(*source.part, job.cols, scratch.values);
  if (!source.plus) return;
  Scratch summand;
  make_rows(job, *source.plus, first, end, summand);
  for (size_t i = 0; i < scratch.values.size(); ++i) scratch.values[i] += summand.values[i];
}

void TensorStream::convert_rows(Job& job, int64_t first, int64_t end, Scratch& scratch) const {
  for (const Source& source : job.sources) {
    const int64_t begin = std::max(first, source.first_row);
    const int64_t stop = std::min(end, source.end_row);
    if (begin >= stop) continue;
    make_rows(job, source, begin, stop, scratch);
    multiply_rows(*job.factors, begin, job.rows, job.cols, scratch.values);
    const std::span<const float> values = scratch.values;
    check_range(values, job.format, where(job, source));
    if (job.heads.dim != 0) {
      rotate_heads(job.heads, begin, job.cols, scratch.values);
      if (!std::isfinite(largest_magnitude(values))) refuse_rotation(where(job, source));
    }
    const auto cols = static_cast<size_t>(job.cols);
    const int64_t row_bytes = faststream::row_bytes(job.format, job.cols);
    std::byte* out = job.block + (begin - job.block_first_row) * row_bytes;
    if (is_float(job.format)) {
      narrow(values, stored_type(job.format), out);
      continue;
    }
    for (int64_t row = begin; row < stop; ++row) {
      const size_t place = static_cast<size_t>(row - begin) * cols;
      if (job.rotated) rotate_(&values[place], job.cols, &scratch.values[place]);
      // Each row belongs to one piece, so these writes do not meet.
      const InputMetric* metric =
          job.metrics.empty()
              ? nullptr
              : job.metrics[static_cast<size_t>(
                                row / (job.rows / static_cast<int64_t>(job.metrics.size())))]
                    .get();
      if (source.has_scales) {
        read_held_scales(source_, *source.tensor, job.format,
                         source_row(*source.part, row - source.first_row), scratch.scales,
                         scratch.raw);
      }
      const std::span<const float> known =
          source.has_scales ? std::span(std::as_const(scratch.scales)) : std::span<const float>();
      const auto error =
          quantize(job.format, values.subspan(place, cols), metric, known,
                   out + (row - begin) * row_bytes, job.scales.data() + row * job.scale_row_bytes);
      if (!error) refuse_rotation(where(job, source));
      job.norms[static_cast<size_t>(row)] = *error;
    }
  }
}

std::string TensorStream::where(const Job& job, const Source& source) const {
  if (source.tensor == nullptr) return source_.name() + ": tensor \"" + job.name + "\"";
  return source_.files()[source.tensor->file].path().string() + ": tensor \"" +
         source.tensor->name + "\"" + (source.tensor->update ? " with what adapters add" : "");
}

}  // namespace faststream::convert
