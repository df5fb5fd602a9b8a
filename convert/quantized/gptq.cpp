#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "convert/quantized/methods.h"
#include "convert/quantized/module_tensors.h"
#include "convert/weights/elements.h"
#include "support/printable.h"
#include "support/shape_text.h"

namespace faststream::convert {
namespace {

constexpr int64_t kWordBits = 32;
constexpr const char* kInts = "I32";

// What qzeros say of a zero point: GPTQ's first format has one less, and AutoGPTQ takes one more
// modulo 2^bits.
std::vector<float> zero_points(int bits, bool one_less) {
  std::vector<float> values = integers_from(0, bits);
  if (!one_less) return values;
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>((i + 1) % values.size());
  return values;
}

// Bits of a number, as qzeros [groups, columns · bits / 32] have them.
int bits_of(const Checkpoint& checkpoint, const SourceTensor& zeros, int64_t columns) {
  const int64_t bits = zeros.shape[1] * kWordBits / columns;
  if (bits >= 1 && bits <= 8 && bits * columns == zeros.shape[1] * kWordBits) {
    return static_cast<int>(bits);
  }
  refuse_tensor(checkpoint, zeros,
                "has the shape " + shape_text(zeros.shape) +
                    ", which is no whole number of bits "
                    "for each of " +
                    std::to_string(columns) + " outputs");
}

struct GptqOptions {
  int64_t group_size = -1;
  bool one_less = true;    // zero points
  bool has_order = false;  // of columns, by their activations
};

// X.qweight [in · bits / 32, out], X.qzeros [groups, out · bits / 32], X.scales [groups, out].
SourceTensor gptq_matrix(Checkpoint& checkpoint, const std::string& module,
                         const GptqOptions& options) {
  SourceTensor matrix = take_needed(checkpoint, module + ".qweight");
  SourceTensor zeros = take_needed(checkpoint, module + ".qzeros");
  SourceTensor scales = take_needed(checkpoint, module + ".scales");
  for (const SourceTensor* tensor : {&matrix, &zeros, &scales}) {
    require_matrix(checkpoint, *tensor);
  }
  require_type(checkpoint, matrix, {kInts});
  require_type(checkpoint, zeros, {kInts});
  const int64_t out = matrix.shape[1];
  const int bits = bits_of(checkpoint, zeros, out);
  const bool across = kWordBits % bits != 0;
  const int64_t in = matrix.shape[0] * kWordBits / bits;
  // Where numbers cross words, they come in 32 that take as many words as they have bits.
  if (across && (matrix.shape[0] % bits != 0 || zeros.shape[1] % bits != 0)) {
    refuse_tensor(checkpoint, matrix,
                  "has the shape " + shape_text(matrix.shape) + ", which numbers of " +
                      std::to_string(bits) + " bits do not fill");
  }
  const int64_t groups = scales.shape[0];
  require_shape(checkpoint, scales, {groups, out});
  require_shape(checkpoint, zeros, {groups, zeros.shape[1]});
  PackedNumbers numbers{.bits = bits,
                        .word_bits = kWordBits,
                        .across_words = across,
                        .along = PackedNumbers::Along::lines,
                        .pitch = kWordBits * out,
                        .values = integers_from(0, bits)};
  PackedNumbers points = numbers;
  points.along = PackedNumbers::Along::line;
  points.pitch = kWordBits * zeros.shape[1];
  points.values = zero_points(bits, options.one_less);
  matrix.packed = std::make_shared<const PackedNumbers>(std::move(numbers));
  zeros.packed = std::make_shared<const PackedNumbers>(std::move(points));
  matrix.format = zeros.format = &packed_integers(bits);
  matrix.transposed = zeros.transposed = scales.transposed = true;
  matrix.shape = {out, in};
  BlockScaling scaling{.columns = columns_of_groups(in, groups, options.group_size),
                       .scales = as_scales(checkpoint, std::move(scales), {out, groups}),
                       .zeros = as_scales(checkpoint, std::move(zeros), {out, groups})};
  const bool needs_order = options.has_order && groups > 1;
  if (needs_order || checkpoint.find(module + ".g_idx") != nullptr) {
    SourceTensor order = take_needed(checkpoint, module + ".g_idx");
    require_type(checkpoint, order, {kInts});
    require_shape(checkpoint, order, {in});
    scaling.groups = std::make_shared<const SourceTensor>(std::move(order));
  } else if (scaling.columns == 0) {
    refuse_tensor(checkpoint, *scaling.scales,
                  "has " + std::to_string(groups) + " groups for " + std::to_string(in) +
                      " inputs, which are no whole groups");
  }
  matrix.scaling = std::make_shared<const BlockScaling>(std::move(scaling));
  return matrix;
}

// gemm: X.qweight [in, out / 8], X.qzeros [groups, out / 8], X.scales [groups, out], the columns of
// a word in an order of their own. gemv: X.qweight [out, in / 8], X.qzeros [out, words], X.scales
// [out, 8 · words].
SourceTensor awq_matrix(Checkpoint& checkpoint, const std::string& module, int64_t group_size,
                        bool gemv) {
  constexpr int kBits = 4;
  constexpr int64_t kInWord = kWordBits / kBits;
  SourceTensor matrix = take_needed(checkpoint, module + ".qweight");
  SourceTensor zeros = take_needed(checkpoint, module + ".qzeros");
  SourceTensor scales = take_needed(checkpoint, module + ".scales");
  for (const SourceTensor* tensor : {&matrix, &zeros, &scales}) {
    require_matrix(checkpoint, *tensor);
  }
  require_type(checkpoint, matrix, {kInts});
  require_type(checkpoint, zeros, {kInts});
  const int64_t lines = matrix.shape[0];
  const int64_t line = matrix.shape[1] * kInWord;
  const int64_t in = gemv ? line : lines;
  const int64_t out = gemv ? lines : line;
  int64_t groups = scales.shape[0];
  if (gemv) {
    groups = group_size > 0 ? (in + group_size - 1) / group_size : 1;
    require_shape(checkpoint, zeros, {out, zeros.shape[1]});
    require_shape(checkpoint, scales, {out, zeros.shape[1] * kInWord});
    if (groups > scales.shape[1]) {
      refuse_tensor(checkpoint, scales, "has fewer groups than the configuration asks for");
    }
    groups = scales.shape[1];  // some of them of no column
  } else {
    require_shape(checkpoint, scales, {groups, out});
    require_shape(checkpoint, zeros, {groups, matrix.shape[1]});
  }
  PackedNumbers numbers{.bits = kBits,
                        .word_bits = kWordBits,
                        .pitch = kBits * line,
                        .values = integers_from(0, kBits)};
  if (!gemv) numbers.order = {0, 2, 4, 6, 1, 3, 5, 7};
  PackedNumbers points = numbers;
  points.pitch = kWordBits * zeros.shape[1];
  matrix.packed = std::make_shared<const PackedNumbers>(std::move(numbers));
  zeros.packed = std::make_shared<const PackedNumbers>(std::move(points));
  matrix.format = zeros.format = &packed_integers(kBits);
  matrix.transposed = zeros.transposed = scales.transposed = !gemv;
  matrix.shape = {out, in};
  const int64_t of_group =
      gemv ? (group_size > 0 ? group_size : in) : columns_of_groups(in, groups, group_size);
  if (of_group == 0) {
    refuse_tensor(checkpoint, scales,
                  "has " + std::to_string(groups) + " groups for " + std::to_string(in) +
                      " inputs, which are no whole groups");
  }
  matrix.scaling = std::make_shared<const BlockScaling>(
      BlockScaling{.columns = of_group,
                   .scales = as_scales(checkpoint, std::move(scales), {out, groups}),
                   .zeros = as_scales(checkpoint, std::move(zeros), {out, groups})});
  return matrix;
}

constexpr int64_t kMostInGroup = int64_t{1} << 24;

}  // namespace

void join_gptq(const JsonView& quantization, Checkpoint& checkpoint) {
  const auto format = quantization.find("checkpoint_format");
  const std::string name = format ? format->as<std::string>() : "gptq";
  if (name != "gptq" && name != "gptq_v2") {
    format->fail("is " + in_quotes(name) + ", which is not supported; gptq and gptq_v2 are");
  }
  for (const char* key : {"is_marlin_format", "rotation", "adapter"}) {
    const auto option = quantization.find(key);
    if (option && option->value() != false) option->fail("is not supported");
  }
  const GptqOptions options{.group_size = quantization.get<int64_t>("group_size", -1),
                            .one_less = name == "gptq",
                            .has_order = quantization.get("desc_act", false)};
  for (const std::string& module : names_before(checkpoint, ".qweight")) {
    checkpoint.add_tensor(gptq_matrix(checkpoint, module, options), module + ".weight");
  }
}

void join_awq(const JsonView& quantization, Checkpoint& checkpoint) {
  const auto version = quantization.find("version");
  const std::string name = version ? version->as<std::string>() : "gemm";
  if (name != "gemm" && name != "GEMM" && name != "gemv" && name != "GEMV") {
    version->fail("is " + in_quotes(name) + ", which is not supported; gemm and gemv are");
  }
  const auto bits = quantization.find("bits");
  if (bits && bits->as<int64_t>() != 4) bits->fail("is not 4, as AWQ has it");
  const std::string_view key = quantization.find("q_group_size") ? "q_group_size" : "group_size";
  const int64_t group_size = quantization.get<int64_t>(key, 128);
  if (group_size > kMostInGroup) quantization.member(key).fail("is too large");
  const bool gemv = name == "gemv" || name == "GEMV";
  for (const std::string& module : names_before(checkpoint, ".qweight")) {
    checkpoint.add_tensor(awq_matrix(checkpoint, module, group_size, gemv), module + ".weight");
  }
}

}  // namespace faststream::convert
