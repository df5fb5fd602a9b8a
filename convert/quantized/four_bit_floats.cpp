#include "convert/quantized/four_bit_floats.h"

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "convert/quantized/module_tensors.h"
#include "convert/weights/elements.h"
#include "support/small_floats.h"

namespace faststream::convert {
namespace {

void set_e2m1_pairs(SourceTensor& tensor, std::vector<int64_t> shape) {
  constexpr int kBits = 4;
  tensor.shape = std::move(shape);
  tensor.format = &kFp4Format;
  tensor.packed = std::make_shared<const PackedNumbers>(
      PackedNumbers{.bits = kBits,
                    .word_bits = 2 * kBits,
                    .pitch = kBits * tensor.columns(),
                    .values = {kE2m1Values.begin(), kE2m1Values.end()}});
}

std::vector<int64_t> with_columns(std::vector<int64_t> shape, int64_t columns) {
  shape.back() = columns;
  return shape;
}

}  // namespace

SourceTensor nvfp4_matrix(const Checkpoint& checkpoint, SourceTensor matrix, SourceTensor scales,
                          SourceTensor scale_of_scales, bool divides) {
  constexpr int64_t kTogether = 16;
  require_matrix(checkpoint, matrix);
  require_type(checkpoint, matrix, {"U8"});
  require_type(checkpoint, scales, {kE4m3Format.name});
  if (scale_of_scales.elements() != 1) {
    refuse_tensor(checkpoint, scale_of_scales, "has more than one element");
  }
  // Values that infinity divides would all be 0.
  if (scale_of_scales.has_values() &&
      !std::isfinite(values_of(checkpoint, scale_of_scales).front())) {
    refuse_tensor(checkpoint, scale_of_scales, "is NaN or infinity; the checkpoint is damaged");
  }
  const int64_t rows = matrix.shape[0];
  const int64_t columns = 2 * matrix.shape[1];
  const int64_t groups = (columns + kTogether - 1) / kTogether;
  require_shape(checkpoint, scales, {rows, groups});
  scales.format = &kE4m3Format;
  scales.scaling = std::make_shared<const BlockScaling>(
      BlockScaling{.rows = rows,
                   .columns = groups,
                   .scales = as_scales(checkpoint, std::move(scale_of_scales), {1, 1}),
                   .divides = divides});
  set_e2m1_pairs(matrix, {rows, columns});
  matrix.scaling = std::make_shared<const BlockScaling>(BlockScaling{
      .columns = kTogether, .scales = std::make_shared<const SourceTensor>(std::move(scales))});
  return matrix;
}

SourceTensor mxfp4_matrix(const Checkpoint& checkpoint, SourceTensor matrix, SourceTensor scales) {
  constexpr int64_t kTogether = 32;
  require_type(checkpoint, matrix, {"U8"});
  require_type(checkpoint, scales, {"U8", kE8m0Format.name});
  if (matrix.shape.size() < 2) refuse_tensor(checkpoint, matrix, "is no matrix");
  const int64_t columns = 2 * matrix.columns();
  require_shape(checkpoint, scales,
                with_columns(matrix.shape, (columns + kTogether - 1) / kTogether));
  scales.format = &kE8m0Format;
  set_e2m1_pairs(matrix, with_columns(matrix.shape, columns));
  matrix.scaling = std::make_shared<const BlockScaling>(BlockScaling{
      .columns = kTogether, .scales = std::make_shared<const SourceTensor>(std::move(scales))});
  return matrix;
}

void join_mxfp4_blocks(Checkpoint& checkpoint) {
  constexpr int64_t kBytes = 16;  // of a block
  for (const std::string& name : names_before(checkpoint, "_blocks")) {
    const SourceTensor& blocks = *checkpoint.find(name + "_blocks");
    const SourceTensor* scales = checkpoint.find(name + "_scales");
    if (scales == nullptr || blocks.shape.size() < 2 || blocks.shape.back() != kBytes ||
        blocks.format->name != "U8" || scales->format->name != "U8") {
      continue;  // of another format; whoever needs it will say what is wrong
    }
    std::vector<int64_t> shape = blocks.shape;
    shape.pop_back();
    if (scales->shape != shape) continue;
    shape.back() *= kBytes;
    SourceTensor matrix = checkpoint.take(name + "_blocks");
    matrix.name = name;
    matrix.shape = std::move(shape);
    checkpoint.add_tensor(
        mxfp4_matrix(checkpoint, std::move(matrix), checkpoint.take(name + "_scales")));
  }
}

}  // namespace faststream::convert
