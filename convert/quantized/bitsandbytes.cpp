#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "convert/quantized/methods.h"
#include "convert/quantized/module_tensors.h"
#include "convert/weights/elements.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

constexpr int64_t kMostInBlock = int64_t{1} << 24;
constexpr const char* kFloats = "F32";

// What a tensor of bytes says in JSON of how the matrix beside it is quantized.
nlohmann::json read_quant_state(const Checkpoint& checkpoint, const SourceTensor& tensor) {
  constexpr uint64_t kMostBytes = 65536;
  require_type(checkpoint, tensor, {"U8"});
  if (tensor.bytes() > kMostBytes) refuse_tensor(checkpoint, tensor, "is too large");
  std::string text(tensor.bytes(), '\0');
  checkpoint.read(tensor, 0, std::as_writable_bytes(std::span(text)));
  return parse_python_json_object(
      text, checkpoint.files()[tensor.file].path().string() + ": tensor " + in_quotes(tensor.name));
}

std::vector<float> read_table(const Checkpoint& checkpoint, const SourceTensor& tensor,
                              int64_t size) {
  require_type(checkpoint, tensor, {kFloats});
  require_shape(checkpoint, tensor, {size});
  return values_of(checkpoint, tensor);
}

// name.absmax: of each block the largest magnitude, or in double quantization 8 bits of it.
std::shared_ptr<const SourceTensor> take_largest(Checkpoint& checkpoint, const std::string& name,
                                                 const JsonView& state, int64_t blocks) {
  SourceTensor largest = take_needed(checkpoint, name + ".absmax");
  require_shape(checkpoint, largest, {blocks});
  if (!state.find("nested_blocksize")) {
    require_type(checkpoint, largest, {kFloats});
    return as_scales(checkpoint, std::move(largest), {1, blocks});
  }
  require_type(checkpoint, largest, {"U8"});
  const int64_t nested = state.member("nested_blocksize").as<int64_t>(1, kMostInBlock);
  const int64_t n_nested = (blocks + nested - 1) / nested;
  SourceTensor of_largest = take_needed(checkpoint, name + ".nested_absmax");
  require_type(checkpoint, of_largest, {kFloats});
  require_shape(checkpoint, of_largest, {n_nested});
  constexpr int kBits = 8;
  PackedNumbers numbers{
      .bits = kBits,
      .word_bits = kBits,
      .pitch = kBits * blocks,
      .values = read_table(checkpoint, take_needed(checkpoint, name + ".nested_quant_map"),
                           int64_t{1} << kBits)};
  largest.packed = std::make_shared<const PackedNumbers>(std::move(numbers));
  largest.scaling = std::make_shared<const BlockScaling>(
      BlockScaling{.columns = nested,
                   .scales = as_scales(checkpoint, std::move(of_largest), {1, n_nested}),
                   .addend = static_cast<float>(state.get<double>("nested_offset"))});
  return as_scales(checkpoint, std::move(largest), {1, blocks});
}

// Tensors name (bytes of two numbers, the first in the upper half), name.absmax, name.quant_map and
// name.quant_state.bitsandbytes__TYPE.
SourceTensor four_bit_matrix(Checkpoint& checkpoint, const std::string& name,
                             const std::string& type) {
  SourceTensor matrix = take_needed(checkpoint, name);
  const SourceTensor described =
      take_needed(checkpoint, name + ".quant_state.bitsandbytes__" + type);
  const nlohmann::json text = read_quant_state(checkpoint, described);
  const JsonView state(text, checkpoint.files()[described.file].path().string() + ": tensor " +
                                 in_quotes(described.name));
  std::vector<int64_t> shape = state.member("shape").integers<int64_t>(1, int64_t{1} << 40);
  // Two numbers a byte, whatever type they are stored as.
  const auto most = static_cast<int64_t>(2 * matrix.bytes());
  int64_t count = 1;
  for (const int64_t extent : shape) {
    if (count > most / extent) refuse_tensor(checkpoint, matrix, "is smaller than its shape");
    count *= extent;
  }
  if (shape.empty() || (count + 1) / 2 != most / 2) {
    refuse_tensor(checkpoint, matrix, "has another size than its shape");
  }
  const int64_t block = state.member("blocksize").as<int64_t>(1, kMostInBlock);
  constexpr int kBits = 4;
  PackedNumbers numbers{
      .bits = kBits,
      .word_bits = 8,
      .pitch = kBits * shape.back(),
      .order = {1, 0},
      .values = read_table(checkpoint, take_needed(checkpoint, name + ".quant_map"), 1 << kBits)};
  matrix.packed = std::make_shared<const PackedNumbers>(std::move(numbers));
  matrix.format = type == "nf4" ? &kNf4Format : &kFp4Format;
  matrix.shape = std::move(shape);
  matrix.scaling = std::make_shared<const BlockScaling>(
      BlockScaling{.rows = 0,
                   .columns = block,
                   .scales = take_largest(checkpoint, name, state, (count + block - 1) / block)});
  return matrix;
}

// X.weight, 8-bit integers, and X.SCB, of each row the largest magnitude, which is 127.
SourceTensor eight_bit_matrix(Checkpoint& checkpoint, const std::string& module) {
  SourceTensor matrix = take_needed(checkpoint, module + ".weight");
  require_type(checkpoint, matrix, {"I8"});
  require_matrix(checkpoint, matrix);
  SourceTensor largest = take_needed(checkpoint, module + ".SCB");
  require_type(checkpoint, largest, {kFloats});
  require_shape(checkpoint, largest, {matrix.shape[0]});
  if (const SourceTensor* format = checkpoint.find(module + ".weight_format")) {
    std::vector<std::byte> bytes(format->bytes());
    checkpoint.read(*format, 0, bytes);
    for (const std::byte byte : bytes) {
      if (byte == std::byte{0}) continue;
      refuse_tensor(checkpoint, *format,
                    "asks for another order than rows, which is not supported");
    }
    drop_tensor(checkpoint, module + ".weight_format");
  }
  matrix.format = &kInt8Format;
  constexpr float kOfLargest = 7.874015718698502e-3F;  // 1 / 127, as bitsandbytes has it
  matrix.scaling = std::make_shared<const BlockScaling>(
      BlockScaling{.columns = matrix.shape[1],
                   .scales = as_scales(checkpoint, std::move(largest), {matrix.shape[0], 1}),
                   .factor = kOfLargest});
  return matrix;
}

}  // namespace

void join_bitsandbytes(const JsonView& quantization, Checkpoint& checkpoint) {
  static_cast<void>(quantization);  // the tensors say all of it
  for (const char* type : {"nf4", "fp4"}) {
    const std::string ending = std::string(".quant_state.bitsandbytes__") + type;
    for (const std::string& name : names_before(checkpoint, ending)) {
      checkpoint.add_tensor(four_bit_matrix(checkpoint, name, type), name);
    }
  }
  for (const std::string& module : names_before(checkpoint, ".SCB")) {
    checkpoint.add_tensor(eight_bit_matrix(checkpoint, module), module + ".weight");
  }
}

}  // namespace faststream::convert
