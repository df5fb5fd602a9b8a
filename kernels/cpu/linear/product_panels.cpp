// x Wᵀ with many rows in floats, where there are no tiles for the weights' format: rows are packed
// once, then each thread takes blocks of channels (panel_kernel.h).
//
// The inner dimension is cut into ranges, so that a panel of rows and a block of weights stay in
// the second-level cache. Weights other than f32 are widened a block's range at a time, so that f16
// keeps its precision and no copy of the model is made.
#include <algorithm>
#include <array>

#include "kernels/cpu/cpu_backend.h"

namespace faststream {
namespace {

constexpr int64_t kBlockRows = 256;    // that are packed at a time
constexpr int64_t kBlockInputs = 512;  // of a range

/// Rows in panels of whole groups, as even as can be.
struct Panels {
  Panels(int64_t rows, int64_t most_groups)
      : groups((rows + kPanelRows - 1) / kPanelRows),
        count((groups + most_groups - 1) / most_groups) {}

  [[nodiscard]] int64_t first_row(int64_t panel) const {
    return panel * groups / count * kPanelRows;
  }
  [[nodiscard]] int64_t rows(int64_t panel) const {
    return first_row(panel + 1) - first_row(panel);
  }
  [[nodiscard]] int64_t of_group(int64_t group) const { return ((group + 1) * count - 1) / groups; }

  int64_t groups;
  int64_t count;
};

}  // namespace

int64_t panel_scratch() { return kPanelBlock * (2 * kBlockRows + kBlockInputs); }

const float* CpuBackend::widen_weights(const Weight& weight, int64_t row, int64_t first,
                                       int64_t count, float* room) const {
  const std::byte* from = weight.row(row) + row_bytes(weight.format, first);
  switch (weight.format) {
    case WeightFormat::f32:
      return static_cast<const float*>(static_cast<const void*>(from));
    case WeightFormat::f16:
    case WeightFormat::bf16:
      kernels_.widen(from, float_type(stored_type(weight.format)), count, room);
      break;
    case WeightFormat::int8:
      kernels_.widen_i8(reinterpret_cast<const int8_t*>(from), count, room);
      break;
    case WeightFormat::int4: {
      std::array<int8_t, kBlockInputs> integers;
      kernels_.decode_int4(from, count, integers.data());
      kernels_.widen_i8(integers.data(), count, room);
      break;
    }
    default:
      coded_kernels(weight.format).decode(from, count, room);
  }
  return room;
}

void CpuBackend::multiply_panels(const Product& product) {
  const Matrix& x = product.x;
  const Weight& weight = product.weight;
  const int64_t in = weight.cols;
  const int64_t channels = product.channels();
  const int64_t step = kPanelBlock / product.halves;

  for (int64_t start = 0; start < x.rows; start += kBlockRows) {
    const int64_t rows = std::min(kBlockRows, x.rows - start);
    const auto* inputs = static_cast<const float*>(x.data) + start * x.stride;
    const Panels panels(rows, kernels_.panel_groups);
    const int64_t padded_rows = panels.groups * kPanelRows;
    auto* packed = shared_scratch_.get<float>(padded_rows * in);
    pool_.parallel_for(panels.groups, 1, [&](int64_t first, int64_t last) {
      for (int64_t group = first; group < last; ++group) {
        const int64_t row = group * kPanelRows;
        const int64_t panel = panels.of_group(group);
        const int64_t begin = panels.first_row(panel);
        kernels_.pack_panel(inputs + row * x.stride, x.stride, std::min(kPanelRows, rows - row), in,
                            packed + begin * in + row - begin, panels.rows(panel));
      }
    });

    pool_.parallel_for(channels, step, 16 * step, [&](int thread, int64_t first, int64_t last) {
      Scratch& scratch = thread_scratch_[static_cast<size_t>(thread)];
      auto* partial = scratch.get<float>(panel_scratch());
      float* sums = partial + kPanelBlock * kBlockRows;
      float* widened = sums + kPanelBlock * kBlockRows;
      std::array<const float*, kPanelBlock> weights{};
      PanelTask task;
      task.weights = weights.data();
      task.partial_stride = padded_rows;
      FinishTask result = product.result;
      result.sums = sums;
      result.sums_stride = kPanelBlock;
      result.rows = rows;
      result.up_column = step;
      result.out += start * result.out_stride;
      for (int64_t c = first; c < last; c += step) {
        result.first = c;
        result.channels = std::min(step, last - c);
        // A gated product's block has the same channels of both halves.
        task.channels = product.halves == 2 ? kPanelBlock : result.channels;
        for (int64_t k = 0; k < in; k += kBlockInputs) {
          task.in = std::min(kBlockInputs, in - k);
          for (int64_t i = 0; i < kPanelBlock; ++i) {
            const int64_t channel =
                i / step * channels + c + std::min(i % step, result.channels - 1);
            weights[static_cast<size_t>(i)] =
                widen_weights(weight, channel, k, task.in, widened + i * kBlockInputs);
          }
          task.is_first = k == 0;
          for (int64_t panel = 0; panel < panels.count; ++panel) {
            const int64_t row = panels.first_row(panel);
            task.rows = panels.rows(panel);
            task.packed = packed + row * in + k * task.rows;
            task.partial = partial + row;
            kernels_.multiply_panel(task);
          }
        }
        kernels_.transpose_sums(partial, padded_rows, kPanelBlock, padded_rows, sums, kPanelBlock);
        product.finish(result);
      }
    });
  }
}

}  // namespace faststream
