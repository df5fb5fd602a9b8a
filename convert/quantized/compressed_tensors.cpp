#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "convert/quantized/four_bit_floats.h"
#include "convert/quantized/methods.h"
#include "convert/quantized/module_tensors.h"
#include "convert/weights/elements.h"
#include "support/printable.h"
#include "support/shape_text.h"

namespace faststream::convert {
namespace {

constexpr int kWord = 32;

// What the configuration says of all groups of modules together; tensors say which is which.
struct Groups {
  std::set<int> bits;
  std::pair<int64_t, int64_t> block = {0, 0};
  int64_t group_size = 0;
  // Of every group: so there must be tensors of it beside every matrix.
  bool have_zero_points = false;
  bool have_order = false;
};

void check_format(const JsonView& of) {
  constexpr auto kKnown = std::to_array<std::string_view>(
      {"dense", "pack-quantized", "int-quantized", "float-quantized", "naive-quantized",
       "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized", "mixed-precision"});
  const auto format = of.find("format");
  if (!format) return;
  const auto name = format->as<std::string>();
  if (std::ranges::find(kKnown, name) == kKnown.end()) {
    format->fail("is " + in_quotes(name) + ", which is not supported");
  }
}

// Whether columns are grouped in the order of their activations. True is what the package's first
// releases have for it.
bool asks_for_order(const JsonView& weights) {
  const auto order = weights.find("actorder");
  if (!order) return false;
  if (order->value().is_boolean()) return order->as<bool>();
  const auto name = order->as<std::string>();
  return name == "group" || name == "dynamic";
}

Groups read_groups(const JsonView& quantization) {
  constexpr int kMostBits = 8;
  constexpr int64_t kMost = int64_t{1} << 24;
  Groups groups;
  const auto all = quantization.find("config_groups");
  if (!all || !all->value().is_object()) return groups;
  groups.have_zero_points = groups.have_order = !all->value().empty();
  for (const auto& [name, ignored] : all->value().items()) {
    const auto group = all->find(name);
    if (!group) continue;
    check_format(*group);
    const auto weights = group->find("weights");
    if (!weights) continue;
    groups.have_zero_points = groups.have_zero_points && !weights->get("symmetric", true);
    groups.have_order = groups.have_order && asks_for_order(*weights);
    if (const auto bits = weights->find("num_bits")) {
      groups.bits.insert(bits->as<int32_t>(1, kMostBits));
    }
    if (const auto size = weights->find("group_size"); size && size->as<int64_t>() > 0) {
      groups.group_size = size->as<int64_t>(1, kMost);
    }
    if (const auto block = weights->find("block_structure")) {
      const std::vector<int64_t> both = block->integers<int64_t>(1, kMost);
      if (both.size() != 2) block->fail("is not a pair");
      groups.block = {both[0], both[1]};
    }
  }
  return groups;
}

// X.weight_shape, as numbers.
std::vector<int64_t> take_weight_shape(Checkpoint& checkpoint, const std::string& module) {
  constexpr int64_t kMostDimensions = 3;
  const SourceTensor tensor = take_needed(checkpoint, module + ".weight_shape");
  require_type(checkpoint, tensor, {"I64", "I32"});
  if (tensor.shape.size() != 1 || tensor.shape[0] < 2 || tensor.shape[0] > kMostDimensions) {
    refuse_tensor(checkpoint, tensor, "is no shape of a matrix");
  }
  std::vector<std::byte> bytes(tensor.bytes());
  checkpoint.read(tensor, 0, bytes);
  const size_t size = tensor.format->bytes(1);
  std::vector<int64_t> shape;
  for (size_t at = 0; at < bytes.size(); at += size) {
    int64_t extent = 0;  // the bytes are little-endian and the number is not negative
    std::memcpy(&extent, bytes.data() + at, size);
    constexpr int64_t kMost = int64_t{1} << 31;
    if (extent < 1 || extent >= kMost) refuse_tensor(checkpoint, tensor, "is no shape");
    shape.push_back(extent);
  }
  return shape;
}

// How so many numbers of a few bits fill so many words: across them, or, as the package had it
// before, only as many in each as fit.
std::optional<PackedNumbers> packing_of(int bits, int64_t count, int64_t words) {
  PackedNumbers packed{.bits = bits, .word_bits = kWord};
  packed.values = integers_from(-(1 << (bits - 1)), bits);
  packed.across_words = kWord % bits != 0 && (count * bits + kWord - 1) / kWord == words;
  const int64_t in_word = kWord / bits;
  if (packed.across_words || (count + in_word - 1) / in_word == words) return packed;
  return std::nullopt;
}

// X.weight_zero_point, of a scale each: numbers, or packed along the rows of a matrix.
std::shared_ptr<const SourceTensor> zero_points_beside(const Checkpoint& checkpoint,
                                                       SourceTensor zeros,
                                                       const BlockScaling& scaling, int bits) {
  const std::vector<int64_t>& shape = scaling.scales->shape;
  if (zeros.format->name == "I32" && bits > 0 && zeros.shape.size() == 2) {
    auto packed = packing_of(bits, shape[0], zeros.shape[0]);
    if (!packed || zeros.shape[1] != shape[1]) {
      refuse_tensor(checkpoint, zeros,
                    "has the shape " + shape_text(zeros.shape) +
                        ", which does not hold a number of " + std::to_string(bits) +
                        " bits for each scale of " + shape_text(shape));
    }
    packed->along = PackedNumbers::Along::lines;
    packed->pitch = kWord * shape[1];
    zeros.packed = std::make_shared<const PackedNumbers>(*std::move(packed));
    zeros.format = &packed_integers(bits);
  } else {
    if (zeros.format->name == "I8") zeros.format = &kInt8Format;
    if (zeros.elements() != scaling.scales->elements()) {
      refuse_tensor(checkpoint, zeros, "has another shape than the scales");
    }
  }
  return as_scales(checkpoint, std::move(zeros), shape);
}

// Adds X.weight with its scales, and the zero points and the order of groups that it may have.
void add_scaled(Checkpoint& checkpoint, const std::string& module, SourceTensor matrix,
                const Groups& groups, int bits) {
  SourceTensor scales = take_needed(checkpoint, module + ".weight_scale");
  if (scales.format->name == "U8") scales.format = &kE8m0Format;
  const bool in_blocks =
      groups.block.first > 0 && scales.shape.size() == matrix.shape.size() &&
      scales.matrix_rows() ==
          (matrix.matrix_rows() + groups.block.first - 1) / groups.block.first &&
      scales.columns() == (matrix.columns() + groups.block.second - 1) / groups.block.second;
  BlockScaling scaling = scaling_by_shape(
      checkpoint, matrix, std::move(scales),
      in_blocks ? groups.block : std::pair<int64_t, int64_t>{0, 0}, groups.group_size);
  if (groups.have_zero_points || checkpoint.find(module + ".weight_zero_point") != nullptr) {
    scaling.zeros = zero_points_beside(
        checkpoint, take_needed(checkpoint, module + ".weight_zero_point"), scaling, bits);
  }
  if (groups.have_order || checkpoint.find(module + ".weight_g_idx") != nullptr) {
    SourceTensor order = take_needed(checkpoint, module + ".weight_g_idx");
    require_type(checkpoint, order, {"I32"});
    require_shape(checkpoint, order, {matrix.columns()});
    scaling.groups = std::make_shared<const SourceTensor>(std::move(order));
  }
  matrix.scaling = std::make_shared<const BlockScaling>(std::move(scaling));
  checkpoint.add_tensor(std::move(matrix), module + ".weight");
}

void join_packed_integers(Checkpoint& checkpoint, const std::string& module, SourceTensor matrix,
                          const Groups& groups) {
  require_type(checkpoint, matrix, {"I32"});
  std::vector<int64_t> shape = take_weight_shape(checkpoint, module);
  std::vector<int64_t> of_words = shape;
  of_words.back() = matrix.columns();
  require_shape(checkpoint, matrix, of_words);
  std::optional<PackedNumbers> packed;
  for (const int bits : groups.bits) {
    if (!packed) packed = packing_of(bits, shape.back(), matrix.columns());
  }
  if (!packed) {
    refuse_tensor(checkpoint, matrix,
                  "has the shape " + shape_text(matrix.shape) +
                      ", which \"num_bits\" of no group "
                      "in \"config_groups\" explains for a matrix " +
                      shape_text(shape));
  }
  const int bits = packed->bits;
  packed->pitch = kWord * matrix.columns();
  matrix.packed = std::make_shared<const PackedNumbers>(*std::move(packed));
  matrix.format = &packed_integers(bits);
  matrix.shape = std::move(shape);
  add_scaled(checkpoint, module, std::move(matrix), groups, bits);
}

void join_four_bit_floats(Checkpoint& checkpoint, const std::string& module, SourceTensor matrix) {
  SourceTensor scales = take_needed(checkpoint, module + ".weight_scale");
  if (checkpoint.find(module + ".weight_global_scale") != nullptr) {
    matrix = nvfp4_matrix(checkpoint, std::move(matrix), std::move(scales),
                          checkpoint.take(module + ".weight_global_scale"), true);
  } else {
    matrix = mxfp4_matrix(checkpoint, std::move(matrix), std::move(scales));
  }
  checkpoint.add_tensor(std::move(matrix), module + ".weight");
}

}  // namespace

void join_compressed_tensors(const JsonView& quantization, Checkpoint& checkpoint) {
  check_format(quantization);
  const auto status = quantization.get<std::string>("quantization_status", "compressed");
  if (status != "compressed") {
    quantization.member("quantization_status")
        .fail("is " + in_quotes(status) + ", which is not supported");
  }
  const auto transforms = quantization.find("transform_config");
  if (transforms && !transforms->value().empty()) {
    transforms->fail("asks for rotations while the model runs, which is not supported");
  }
  if (const auto sparsity = quantization.find("sparsity_config");
      sparsity && !sparsity->value().empty()) {
    const auto format = sparsity->get<std::string>("format", "dense");
    if (format != "dense") {
      sparsity->fail("has the format " + in_quotes(format) + ", which is not supported");
    }
  }
  const Groups groups = read_groups(quantization);
  for (const std::string& module : names_before(checkpoint, ".weight_packed")) {
    SourceTensor matrix = checkpoint.take(module + ".weight_packed");
    if (matrix.format->name == "U8") {
      join_four_bit_floats(checkpoint, module, std::move(matrix));
    } else {
      join_packed_integers(checkpoint, module, std::move(matrix), groups);
    }
  }
  for (const std::string& module : names_before(checkpoint, ".weight_scale")) {
    SourceTensor matrix = take_needed(checkpoint, module + ".weight");
    require_type(checkpoint, matrix, {"I8", kE4m3Format.name});
    if (matrix.shape.size() < 2) refuse_tensor(checkpoint, matrix, "is no matrix");
    matrix.format = matrix.format->name == "I8" ? &kInt8Format : &kE4m3Format;
    add_scaled(checkpoint, module, std::move(matrix), groups, 0);
  }
}

}  // namespace faststream::convert
