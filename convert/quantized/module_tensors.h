// The tensors that a quantized module has in place of its weights.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "convert/checkpoint.h"

namespace faststream::convert {

/// BitNet's two bits: the last one is not used.
inline constexpr std::array<float, 4> kTernaryValues = {-1, 0, 1, 2};

/// What stands before `ending` in the names of tensors that end so.
std::vector<std::string> names_before(const Checkpoint& checkpoint, std::string_view ending);

/// Throws Error: the tensor's file, the tensor, and `what` is wrong with it.
[[noreturn]] void refuse_tensor(const Checkpoint& checkpoint, const SourceTensor& tensor,
                                const std::string& what);

/// Takes a tensor away that a quantized module needs. Throws Error when there is none.
SourceTensor take_needed(Checkpoint& checkpoint, const std::string& name);
/// Takes a tensor away if there is one.
void drop_tensor(Checkpoint& checkpoint, const std::string& name);

/// Throws Error unless the elements of a tensor are of one of these types, as safetensors call
/// them.
void require_type(const Checkpoint& checkpoint, const SourceTensor& tensor,
                  std::initializer_list<std::string_view> types);
/// Throws Error unless a tensor has that shape.
void require_shape(const Checkpoint& checkpoint, const SourceTensor& tensor,
                   std::span<const int64_t> shape);
inline void require_shape(const Checkpoint& checkpoint, const SourceTensor& tensor,
                          std::initializer_list<int64_t> shape) {
  require_shape(checkpoint, tensor, std::span(shape.begin(), shape.size()));
}
/// Throws Error unless a tensor has two dimensions, none of them 0.
void require_matrix(const Checkpoint& checkpoint, const SourceTensor& tensor);

/// A tensor that is numbers already: with values, whatever its type is. Throws Error where that
/// cannot be a scale's.
std::shared_ptr<const SourceTensor> as_scales(const Checkpoint& checkpoint, SourceTensor tensor,
                                              std::vector<int64_t> shape);

/// How `scales` belong to a matrix, or several: one for all, for each matrix, for each row, for
/// each column, for as many columns of a row (see columns_of_groups()); or for each block of so
/// many rows and columns, if `block` says so. Throws Error when their shape is none of these.
BlockScaling scaling_by_shape(const Checkpoint& checkpoint, const SourceTensor& matrix,
                              SourceTensor scales, std::pair<int64_t, int64_t> block,
                              int64_t group_size = 0);

/// Columns of a group, of `groups` in a row of so many columns: group_size if that gives as many,
/// or equal parts; 0: it is none of these.
int64_t columns_of_groups(int64_t columns, int64_t groups, int64_t group_size);

/// All values of a small tensor.
std::vector<float> values_of(const Checkpoint& checkpoint, const SourceTensor& tensor);

/// first, first + 1, ... of 2^bits values.
std::vector<float> integers_from(int first, int bits);

}  // namespace faststream::convert
