#include "convert/adapters/factors.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "convert/weights/elements.h"
#include "convert/weights/read_values.h"
#include "support/error.h"
#include "support/printable.h"

namespace faststream::convert {

std::string quoted_tensor(const std::string& name) {
  constexpr size_t kLongestName = 200;
  return name.size() > kLongestName ? in_quotes(name) : '"' + printable(name) + '"';
}

void refuse_factor(const Checkpoint& weights, const SourceTensor& tensor, const std::string& what) {
  throw Error(weights.files()[tensor.file].path().string() + ": tensor " +
              quoted_tensor(tensor.name) + " " + what);
}

void require_values(const Checkpoint& weights, const SourceTensor& tensor) {
  if (tensor.has_values()) return;
  refuse_factor(weights, tensor,
                "has elements of the type " + std::string(tensor.format->name) +
                    ", which cannot be merged; F64, F32, F16 and BF16 can");
}

void require_finite(const Checkpoint& weights, const SourceTensor& tensor) {
  require_values(weights, tensor);
  constexpr int64_t kPiece = int64_t{1} << 20;
  std::vector<float> values;
  std::vector<std::byte> raw;
  const int64_t elements = tensor.elements();
  for (int64_t first = 0; first < elements; first += kPiece) {
    values.resize(static_cast<size_t>(std::min(kPiece, elements - first)));
    read_values(weights, tensor, first, values, raw);
    if (!std::isfinite(largest_magnitude(values))) {
      refuse_factor(weights, tensor,
                    "holds NaN or infinity; the adapter is damaged or its training failed");
    }
  }
}

std::shared_ptr<const SourceTensor> lines_of(const SourceTensor& tensor, int64_t first,
                                             int64_t rows, int64_t columns, int64_t step) {
  SourceTensor part = tensor;
  part.offset += tensor.format->bytes(first);
  part.shape = {rows, columns};
  part.step = step;
  return std::make_shared<const SourceTensor>(std::move(part));
}

}  // namespace faststream::convert
