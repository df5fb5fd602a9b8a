#include "convert/quantized/module_tensors.h"

#include <algorithm>
#include <numeric>

#include "convert/weights/elements.h"
#include "convert/weights/read_values.h"
#include "support/error.h"
#include "support/printable.h"
#include "support/shape_text.h"

namespace faststream::convert {

std::vector<std::string> names_before(const Checkpoint& checkpoint, std::string_view ending) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (name.ends_with(ending)) names.push_back(name.substr(0, name.size() - ending.size()));
  }
  return names;
}

void refuse_tensor(const Checkpoint& checkpoint, const SourceTensor& tensor,
                   const std::string& what) {
  throw Error(checkpoint.files()[tensor.file].path().string() + ": tensor " +
              in_quotes(tensor.name) + " " + what);
}

SourceTensor take_needed(Checkpoint& checkpoint, const std::string& name) {
  if (checkpoint.find(name) == nullptr) {
    throw Error(checkpoint.name() + ": tensor " + in_quotes(name) +
                " is missing, which belongs to a quantized matrix; is the checkpoint complete?");
  }
  return checkpoint.take(name);
}

void drop_tensor(Checkpoint& checkpoint, const std::string& name) {
  if (checkpoint.find(name) != nullptr) static_cast<void>(checkpoint.take(name));
}

void require_type(const Checkpoint& checkpoint, const SourceTensor& tensor,
                  std::initializer_list<std::string_view> types) {
  if (std::ranges::find(types, tensor.format->name) != types.end()) return;
  std::string known;
  for (const std::string_view type : types) {
    known += (known.empty() ? "" : " or ") + std::string(type);
  }
  refuse_tensor(checkpoint, tensor,
                "has elements of the type " + std::string(tensor.format->name) + ", not " + known +
                    " as \"quantization_config\" has it");
}

void require_shape(const Checkpoint& checkpoint, const SourceTensor& tensor,
                   std::span<const int64_t> shape) {
  if (std::ranges::equal(tensor.shape, shape)) return;
  refuse_tensor(checkpoint, tensor,
                "has the shape " + shape_text(tensor.shape) + ", but must have " +
                    shape_text(shape) + " beside the others of its matrix");
}

void require_matrix(const Checkpoint& checkpoint, const SourceTensor& tensor) {
  if (tensor.shape.size() == 2 && tensor.elements() > 0) return;
  refuse_tensor(checkpoint, tensor, "has the shape " + shape_text(tensor.shape) + ", no matrix's");
}

std::shared_ptr<const SourceTensor> as_scales(const Checkpoint& checkpoint, SourceTensor tensor,
                                              std::vector<int64_t> shape) {
  if (tensor.format->name == kE4m3Format.name) tensor.format = &kE4m3Format;
  if (tensor.format->name == kE8m0Format.name) tensor.format = &kE8m0Format;
  if (!tensor.has_values()) {
    refuse_tensor(
        checkpoint, tensor,
        "has elements of the type " + std::string(tensor.format->name) + ", which no scale has");
  }
  tensor.shape = std::move(shape);
  return std::make_shared<const SourceTensor>(std::move(tensor));
}

BlockScaling scaling_by_shape(const Checkpoint& checkpoint, const SourceTensor& matrix,
                              SourceTensor scales, std::pair<int64_t, int64_t> block,
                              int64_t group_size) {
  const int64_t rows = matrix.matrix_rows();
  const int64_t columns = matrix.columns();
  if (matrix.elements() == 0) refuse_tensor(checkpoint, matrix, "has no elements");
  const int64_t matrices = matrix.elements() / columns / rows;
  const int64_t count = scales.elements();
  const auto made = [&](int64_t of_rows, int64_t of_columns, std::vector<int64_t> shape) {
    return BlockScaling{.rows = of_rows,
                        .columns = of_columns,
                        .scales = as_scales(checkpoint, std::move(scales), std::move(shape))};
  };
  if (count == 1 && matrices > 1) return made(0, matrix.elements(), {1, 1});
  if (count == matrices && (count == 1 || scales.shape[0] == matrices)) {
    return made(rows, columns, {matrices, 1});
  }
  std::vector<int64_t> expected = matrix.shape;
  if (block.first > 0) {
    expected.end()[-2] = (rows + block.first - 1) / block.first;
    expected.back() = (columns + block.second - 1) / block.second;
    if (scales.shape == expected) return made(block.first, block.second, expected);
  }
  if (block.first == 0) {
    expected.back() = 1;
    if (scales.shape == expected || (scales.shape.size() == 1 && count == rows && matrices == 1)) {
      return made(1, columns, {matrices * rows, 1});
    }
    if (scales.columns() == columns && scales.matrix_rows() == 1 && count == matrices * columns) {
      return made(rows, 1, {matrices, columns});
    }
    const int64_t groups = scales.columns();
    expected.back() = groups;
    const int64_t of_group =
        scales.shape == expected ? columns_of_groups(columns, groups, group_size) : 0;
    if (of_group > 0) return made(1, of_group, {matrices * rows, groups});
  }
  refuse_tensor(checkpoint, scales,
                "has the shape " + shape_text(scales.shape) + ", but the scales of a matrix " +
                    shape_text(matrix.shape) +
                    (block.first > 0 ? " in the blocks that the configuration has are "
                                     : " are one, one a row, one a column or a few a row, ") +
                    shape_text(expected));
}

int64_t columns_of_groups(int64_t columns, int64_t groups, int64_t group_size) {
  if (group_size > 0 && group_size <= columns &&
      (columns + group_size - 1) / group_size == groups) {
    return group_size;
  }
  return groups > 0 && columns % groups == 0 ? columns / groups : 0;
}

std::vector<float> values_of(const Checkpoint& checkpoint, const SourceTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  std::vector<std::byte> raw;
  read_values(checkpoint, tensor, 0, values, raw);
  return values;
}

std::vector<float> integers_from(int first, int bits) {
  std::vector<float> values(size_t{1} << bits);
  std::iota(values.begin(), values.end(), static_cast<float>(first));
  return values;
}

}  // namespace faststream::convert
