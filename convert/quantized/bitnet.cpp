#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "convert/quantized/methods.h"
#include "convert/quantized/module_tensors.h"
#include "convert/weights/elements.h"
#include "convert/weights/read_values.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

constexpr int kTernaryBits = 2;
constexpr int kByteBits = 8;

// The value of an option, one of two.
std::string choice_in(const JsonView& quantization, std::string_view key, std::string_view usual,
                      std::string_view other) {
  auto value = quantization.get<std::string>(key, std::string(usual));
  if (value != usual && value != other) {
    quantization.member(key).fail("is " + in_quotes(value) + ", which is not supported; " +
                                  std::string(usual) + " and " + std::string(other) + " are");
  }
  return value;
}

// Bytes [rows / 4, columns]: two bits from the lowest ones on are of a row in the first quarter of
// all, in the second and so on.
void unpack(SourceTensor& matrix) {
  constexpr int64_t kInByte = kByteBits / kTernaryBits;
  matrix.packed = std::make_shared<const PackedNumbers>(
      PackedNumbers{.bits = kTernaryBits,
                    .word_bits = kByteBits,
                    .along = PackedNumbers::Along::distant_lines,
                    .pitch = kByteBits * matrix.columns(),
                    .values = {kTernaryValues.begin(), kTernaryValues.end()}});
  matrix.format = &packed_integers(kTernaryBits);
  matrix.shape[0] *= kInByte;
}

// Numbers with a scale, which "bitlinear" divides by.
void join_numbers(Checkpoint& checkpoint, bool divides) {
  for (const std::string& module : names_before(checkpoint, ".weight_scale")) {
    SourceTensor matrix = take_needed(checkpoint, module + ".weight");
    require_matrix(checkpoint, matrix);
    if (!matrix.has_values()) {
      require_type(checkpoint, matrix, {"U8"});
      unpack(matrix);
    }
    BlockScaling scaling =
        scaling_by_shape(checkpoint, matrix, checkpoint.take(module + ".weight_scale"), {0, 0});
    scaling.divides = divides;
    matrix.scaling = std::make_shared<const BlockScaling>(std::move(scaling));
    checkpoint.add_tensor(std::move(matrix), module + ".weight");
  }
}

// Modules that stay as they are: their names, or how these begin or end.
std::vector<std::string> kept_modules(const JsonView& quantization) {
  std::vector<std::string> names;
  const auto kept = quantization.find("modules_to_not_convert");
  if (!kept) return names;
  for (const JsonView& each : kept->elements()) {
    names.push_back(each.as<std::string>());
    if (names.back().find_first_of("*+?[](){}|^$\\") != std::string::npos) {
      each.fail("is a pattern; only names of modules are supported");
    }
  }
  return names;
}

bool is_kept(std::string_view module, std::span<const std::string> kept) {
  return std::ranges::any_of(kept, [&](const std::string& name) {
    return module == name || module.starts_with(name + ".") || module.ends_with(name);
  });
}

double mean_magnitude(const Checkpoint& checkpoint, const SourceTensor& matrix) {
  constexpr int64_t kPiece = int64_t{1} << 18;
  std::vector<float> values;
  std::vector<std::byte> raw;
  double sum = 0;
  const int64_t elements = matrix.elements();
  for (int64_t at = 0; at < elements; at += kPiece) {
    values.resize(static_cast<size_t>(std::min(kPiece, elements - at)));
    read_values(checkpoint, matrix, at, values, raw);
    for (const float value : values) sum += std::abs(double{value});
  }
  return sum / static_cast<double>(elements);
}

// Matrices of layers that the model rounds whenever it multiplies with them.
void round_masters(Checkpoint& checkpoint, std::span<const std::string> kept) {
  constexpr float kLeastMean = 1e-5F;
  for (const std::string& module : names_before(checkpoint, ".weight")) {
    const SourceTensor& found = *checkpoint.find(module + ".weight");
    if (found.shape.size() != 2 || module.find("layers.") == std::string::npos ||
        is_kept(module, kept)) {
      continue;
    }
    SourceTensor matrix = checkpoint.take(module + ".weight");
    require_matrix(checkpoint, matrix);
    require_type(checkpoint, matrix, {kF32Format.name, kF16Format.name, kBf16Format.name});
    const auto mean = static_cast<float>(mean_magnitude(checkpoint, matrix));
    if (!std::isfinite(mean)) refuse_tensor(checkpoint, matrix, "has values that are not finite");
    matrix.ternary = 1 / std::max(mean, kLeastMean);
    checkpoint.add_tensor(std::move(matrix), module + ".weight");
  }
}

}  // namespace

void join_bitnet(const JsonView& quantization, Checkpoint& checkpoint) {
  const auto norms = quantization.find("use_rms_norm");
  if (norms && norms->as<bool>()) {
    norms->fail("asks for a norm before each product, which is not supported");
  }
  const bool divides =
      choice_in(quantization, "linear_class", "bitlinear", "autobitlinear") == "bitlinear";
  const bool is_online =
      choice_in(quantization, "quantization_mode", "offline", "online") == "online";
  if (is_online && !divides) return round_masters(checkpoint, kept_modules(quantization));
  join_numbers(checkpoint, divides);
}

}  // namespace faststream::convert
