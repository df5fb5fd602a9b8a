#include "convert/families/normalized_table.h"

#include <cmath>
#include <cstddef>
#include <span>

#include "convert/quantized/module_tensors.h"
#include "convert/weights/elements.h"
#include "convert/weights/read_values.h"

namespace faststream::convert {

std::vector<float> rows_of(const NormalizedTable& table, int64_t rows, int64_t cols,
                           const Checkpoint& weights) {
  std::vector<std::byte> raw;
  const auto read = [&](const std::string& name, const std::vector<int64_t>& shape) {
    const SourceTensor& tensor = weights.require(name, shape);
    std::vector<float> values(static_cast<size_t>(tensor.elements()));
    read_values(weights, tensor, 0, values, raw);
    // Or what is made of it would be blamed.
    if (!std::isfinite(largest_magnitude(values))) {
      refuse_tensor(weights, tensor,
                    "holds NaN or infinity; the checkpoint is damaged or its training failed");
    }
    return values;
  };
  std::vector<float> values = read(table.name, {rows, cols});
  if (table.norm.empty()) return values;
  const std::vector<float> weight = read(table.norm + ".weight", {cols});
  const std::vector<float> bias = read(table.norm + ".bias", {cols});
  const auto n = static_cast<size_t>(cols);
  for (size_t first = 0; first < values.size(); first += n) {
    const std::span<float> row = std::span(values).subspan(first, n);
    double sum = 0;
    for (const float x : row) sum += x;
    const double mean = sum / static_cast<double>(n);
    double squares = 0;
    for (const float x : row) squares += (x - mean) * (x - mean);
    const double factor = 1 / std::sqrt(squares / static_cast<double>(n) + table.eps);
    for (size_t i = 0; i < n; ++i) {
      row[i] = static_cast<float>((row[i] - mean) * factor * weight[i] + bias[i]);
    }
  }
  return values;
}

}  // namespace faststream::convert
