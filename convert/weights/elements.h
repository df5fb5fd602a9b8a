// Arrays of elements, converted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "support/dtype.h"
#include "support/weight_format.h"

namespace faststream::convert {

/// How a checkpoint writes an array of elements: in blocks, each decoded on its own. The elements
/// of plain types are blocks of one.
struct ElementFormat {
  std::string_view name;  ///< as the file formats have it: "F32", "Q4_K"
  int64_t block_elements = 1;
  int64_t block_bytes = 0;
  /// The type that the elements become in a model file unless the user names one.
  DType packed = DType::f32;
  /// out[i] = element i of the blocks at `in` (any alignment); whole blocks. Null: such elements
  /// are no weights that can be converted.
  void (*decode)(const std::byte* in, std::span<float> out) = nullptr;

  /// Bytes of `elements` elements, which are whole blocks.
  [[nodiscard]] constexpr uint64_t bytes(int64_t elements) const {
    return static_cast<uint64_t>(elements / block_elements * block_bytes);
  }
};

/// IEEE 754 binary32, binary16 and binary64, and the upper half of binary32; little-endian.
extern const ElementFormat kF32Format;
extern const ElementFormat kF16Format;
extern const ElementFormat kF64Format;
extern const ElementFormat kBf16Format;
// Numbers of 8 bits that belong to scales: what has no scales is refused, so these are not what a
// checkpoint's tensors have from the start.

/// E4M3 without infinities (arXiv:2209.05433).
extern const ElementFormat kE4m3Format;
/// Powers of two (OCP Microscaling Formats 1.0).
extern const ElementFormat kE8m0Format;
/// Integers in two's complement.
extern const ElementFormat kInt8Format;

/// Small numbers in bytes or words, which a PackedNumbers says how to read: these only count bytes.
extern const ElementFormat kNf4Format;
extern const ElementFormat kFp4Format;
/// Integers of 1 to 8 bits.
const ElementFormat& packed_integers(int bits);

/// The format that safetensors call so: "F32", "BF16", "I64". Of other types than F32, F16, BF16
/// and F64, those of masks, positions and packed numbers, no elements can be decoded: a checkpoint
/// may hold them, but a model must not need them. Null: there is none.
const ElementFormat* find_element_format(std::string_view name);

/// Element i of `out` (f32, f16 or bf16) = in[i], rounded to nearest even.
void narrow(std::span<const float> in, DType type, std::byte* out);

/// The largest |value|; infinite or NaN when any of the values is. 0 for no values.
float largest_magnitude(std::span<const float> values);

/// In an order of its own, the same on all machines.
double sum_of_squares(std::span<const float> values);

/// The smallest magnitude that is infinite in the format.
float overflow_magnitude(WeightFormat format);

}  // namespace faststream::convert
