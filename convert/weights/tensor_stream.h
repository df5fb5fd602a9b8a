// Tensors from the checkpoint into the model file, block by block, on all threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "convert/calibration/activation_statistics.h"
#include "convert/source_model.h"
#include "convert/weights/input_metric.h"
#include "convert/weights/quantize.h"
#include "models/tensor_plan.h"
#include "support/thread_pool.h"

namespace faststream::convert {

/// Converts tensors one after the other. While the threads read and convert a block of rows, one of
/// them writes the block before; memory is two blocks and a scratch area for each thread.
class TensorStream {
 public:
  /// Takes the bytes of a file, in their order. Any thread may call it, one at a time.
  using Append = std::function<void(std::span<const std::byte> bytes)>;

  /// Source and pool must outlive the stream.
  TensorStream(const Checkpoint& source, Append append, ThreadPool& pool);

  /// What came of a quantized tensor; zeros for others.
  using Norms = RowError;

  /// What a matrix is multiplied with, element (r, c) with rows[r] and, of `experts` equal parts of
  /// the rows, columns[part of r, c]. Empty: ones.
  struct Factors {
    std::vector<float> rows;
    std::vector<float> columns;
    int64_t experts = 1;
  };

  /// Appends the tensor `plan`, made of `parts` and multiplied, and its scales if its format has
  /// some. `statistics` of what it is multiplied with may be null. `on_block` is called with the
  /// source bytes read so far, of all tensors. Throws Error when a part cannot be read, or has a
  /// value that is not finite or not representable.
  Norms add(const TensorPlan& plan, std::span<const TensorPart> parts, const Factors& factors,
            const ActivationStatistics* statistics, const std::function<void(uint64_t)>& on_block);

  /// The sums of squares of a matrix: of its rows, and of its columns in each of `experts` equal
  /// parts of the rows, of rows as they are or each divided by its norm.
  struct Squares {
    std::vector<double> rows;
    std::vector<double> columns;  ///< [experts, columns]
  };
  enum class RowsAs { they_are, units };
  /// `on_block` is called as by add(), though what is read here is not counted.
  Squares squares(const TensorPlan& plan, std::span<const TensorPart> parts, int64_t experts,
                  RowsAs rows_as, const std::function<void(uint64_t)>& on_block);

  /// Writes what is still in memory.
  void flush();

 private:
  struct Source {
    const TensorPart* part = nullptr;
    const SourceTensor* tensor = nullptr;  // null: zeros
    int64_t first_row = 0;                 // in the joined tensor
    int64_t end_row = 0;
    int64_t width = 0;                             // of its rows in the checkpoint
    std::vector<float> projection = {};            // [width, columns of the tensor]; empty: none
    std::shared_ptr<const Source> plus = nullptr;  // whose values are added to these; null: none
    bool has_scales = false;                       // of fp8 or nf4, for each row that it gives
  };
  struct Job;
  struct Scratch {
    std::vector<std::byte> raw;
    std::vector<float> values;
    std::vector<float> columns;
    std::vector<float> scales;
  };

  /// Of those rows of a tensor with so many columns.
  [[nodiscard]] Source source_of(const TensorPart& part, int64_t first_row, int64_t end_row,
                                 int64_t cols, WeightFormat format) const;
  [[nodiscard]] Job job_of(const TensorPlan& plan, std::span<const TensorPart> parts) const;
  /// Of each part of a matrix' rows that has inputs of its own; null where nothing is known.
  [[nodiscard]] std::vector<std::unique_ptr<const InputMetric>> metrics_of(
      const TensorPlan& plan, const Factors& factors, const ActivationStatistics* statistics) const;
  /// Rows [first, end) of the tensor's, of one source, as floats in scratch.values.
  void make_rows(const Job& job, const Source& source, int64_t first, int64_t end,
                 Scratch& scratch) const;
  void convert_rows(Job& job, int64_t first, int64_t end, Scratch& scratch) const;
  /// The row of the checkpoint's tensor that becomes row `row` of a part.
  static int64_t source_row(const TensorPart& part, int64_t row);
  [[nodiscard]] std::vector<float> read_projection(const RowProjection& projection,
                                                   int64_t cols) const;
  void read_rows(const Source& source, int64_t first, int64_t count, Scratch& scratch) const;
  void read_scattered_rows(const Source& source, int64_t first, int64_t count,
                           Scratch& scratch) const;
  void read_columns(const Source& source, int64_t first, int64_t count, Scratch& scratch) const;
  [[nodiscard]] std::string where(const Job& job, const Source& source) const;

  const Checkpoint& source_;
  Append append_;
  ThreadPool& pool_;
  void (*rotate_)(const float* row, int64_t n, float* to);
  std::vector<Scratch> scratch_;           // one for each thread
  std::vector<std::byte> block_;           // being converted
  std::vector<std::byte> pending_;         // converted, to be written
  std::vector<std::byte> pending_scales_;  // to be written after pending_
  uint64_t bytes_read_ = 0;
};

}  // namespace faststream::convert
