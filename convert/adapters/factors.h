// Factors of low rank, as adapters' tensors hold them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "convert/checkpoint.h"

namespace faststream::convert {

/// The name as a message has it: whole, as names of deep modules are long, but for one that is no
/// name.
std::string quoted_tensor(const std::string& name);

/// Throws Error: the file, the tensor, and `what` is wrong with it.
[[noreturn]] void refuse_factor(const Checkpoint& weights, const SourceTensor& tensor,
                                const std::string& what);

/// Throws Error unless something can be added to the tensor's values, or they be added.
void require_values(const Checkpoint& weights, const SourceTensor& tensor);

/// The same of a factor, whose values must be finite, so that not the model's weights are said to
/// be at fault.
void require_finite(const Checkpoint& weights, const SourceTensor& tensor);

/// Of a tensor whose elements lie one by one: [rows, columns] from the element `first` on, of each
/// line every step-th.
std::shared_ptr<const SourceTensor> lines_of(const SourceTensor& tensor, int64_t first,
                                             int64_t rows, int64_t columns, int64_t step = 1);

}  // namespace faststream::convert
