// Numbers that a model computes once, for operations to read.
#pragma once

#include <vector>

#include "backend/backend.h"

namespace faststream {

/// Owns them in a backend's memory; the backend must outlive them.
class Tables {
 public:
  explicit Tables(Backend& backend) : backend_(backend) {}

  /// Of float or int32_t.
  template <typename Number = float>
  const Number* add(const std::vector<Number>& values) {
    const size_t bytes = values.size() * sizeof(Number);
    const Buffer& buffer = buffers_.emplace_back(backend_.allocate(bytes));
    backend_.copy_to_device(buffer.get(), values.data(), bytes);
    return reinterpret_cast<const Number*>(buffer.get());
  }

 private:
  Backend& backend_;
  std::vector<Buffer> buffers_;
};

}  // namespace faststream
