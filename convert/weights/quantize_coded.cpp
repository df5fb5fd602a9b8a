// Codes of floats: exactly where a group has been decoded from such, else those of little error.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "convert/weights/elements.h"
#include "convert/weights/quantize.h"
#include "support/dtype.h"
#include "support/small_floats.h"

namespace faststream::convert {
namespace {

constexpr size_t kMostColumns = 128;
constexpr float kMostInteger = 15;

// What is stored of a group.
struct CodedNumbers {
  float scale = 0;
  float zero = 0;                             // of integers
  std::array<uint8_t, kMostColumns> codes{};  // of the group's columns
};

// The sum over a group of (value - what is stored)².
double squared_error(WeightFormat format, std::span<const float> group,
                     const CodedNumbers& numbers) {
  const std::span<const float> values = code_values(format);
  double error = 0;
  for (size_t i = 0; i < group.size(); ++i) {
    const float stored = (values[numbers.codes[i]] - numbers.zero) * numbers.scale;
    const double difference = double{group[i]} - double{stored};
    error += difference * difference;
  }
  return error;
}

// --- Floats --------------------------------------------------------------------------------------

// Sums of comparisons, which the compiler vectorizes.

// The nearest code, of two the even one.
uint8_t to_e2m1(float x) {
  const float m = std::abs(x);
  const int code = int{m > 0.25F} + int{m >= 0.75F} + int{m > 1.25F} + int{m >= 1.75F} +
                   int{m > 2.5F} + int{m >= 3.5F} + int{m > 5.0F};
  return static_cast<uint8_t>(code | (std::signbit(x) ? 8 : 0));
}

// The nearest code, of two the lower one.
uint8_t to_nf4(float x) {
  int code = 0;
  for (size_t i = 0; i + 1 < kNf4Values.size(); ++i) {
    code += int{x > (kNf4Values[i] + kNf4Values[i + 1]) / 2};
  }
  return static_cast<uint8_t>(code);
}

uint8_t code_of(WeightFormat format, float x) {
  if (format == WeightFormat::fp8) return to_e4m3(std::clamp(x, -kLargestE4m3, kLargestE4m3));
  if (format == WeightFormat::mxfp4) return to_e2m1(x);
  return to_nf4(x);
}

CodedNumbers with_scale(WeightFormat format, std::span<const float> group, float scale) {
  CodedNumbers numbers{.scale = scale};
  for (size_t i = 0; i < group.size(); ++i) {
    numbers.codes[i] = code_of(format, scale == 0 ? group[i] * 0.0F : group[i] / scale);
  }
  return numbers;
}

// The best of some scales, the first of them where several are.
CodedNumbers with_best_scale(WeightFormat format, std::span<const float> group,
                             std::span<const float> scales) {
  CodedNumbers best;
  double least = std::numeric_limits<double>::infinity();
  for (const float scale : scales) {
    const CodedNumbers numbers = with_scale(format, group, scale);
    const double error = squared_error(format, group, numbers);
    if (!(error < least)) continue;
    best = numbers;
    least = error;
    if (error == 0) break;
  }
  return best;
}

CodedNumbers quantize_fp8(std::span<const float> group, std::optional<float> known) {
  const float plain = largest_magnitude(group) / kLargestE4m3;
  const std::array scales = {known.value_or(plain), std::nextafter(plain, 0.0F),
                             std::nextafter(plain, std::numeric_limits<float>::max())};
  for (const float scale : scales) {
    const CodedNumbers numbers = with_scale(WeightFormat::fp8, group, scale);
    if (squared_error(WeightFormat::fp8, group, numbers) == 0) return numbers;
  }
  return with_scale(WeightFormat::fp8, group, plain);
}

CodedNumbers quantize_mxfp4(std::span<const float> group) {
  constexpr int kLeast = -127;
  const float largest = largest_magnitude(group);
  if (largest == 0) return with_scale(WeightFormat::mxfp4, group, e8m0_value(0));
  // Smaller ones are those of groups that lack the largest codes.
  constexpr int kSmaller = 3;
  const int exponent = std::ilogb(largest) - 2;
  std::array<float, 2 + kSmaller> scales{};
  int next = exponent + 1;
  for (float& scale : scales) scale = std::ldexp(1.0F, std::max(kLeast, next--));
  std::swap(scales[0], scales[1]);
  for (const float scale : scales) {
    const CodedNumbers numbers = with_scale(WeightFormat::mxfp4, group, scale);
    if (squared_error(WeightFormat::mxfp4, group, numbers) == 0) return numbers;
  }
  return with_best_scale(WeightFormat::mxfp4, group, std::span(scales).first(2));
}

CodedNumbers quantize_nf4(std::span<const float> group, std::optional<float> known) {
  if (known) {
    const CodedNumbers numbers = with_scale(WeightFormat::nf4, group, *known);
    if (squared_error(WeightFormat::nf4, group, numbers) == 0) return numbers;
  }
  const float largest = largest_magnitude(group);
  const CodedNumbers plain = with_scale(WeightFormat::nf4, group, largest);
  if (squared_error(WeightFormat::nf4, group, plain) == 0) return plain;
  // A largest magnitude that was quantized itself can have become less than zero.
  const CodedNumbers opposite = with_scale(WeightFormat::nf4, group, -largest);
  return squared_error(WeightFormat::nf4, group, opposite) == 0 ? opposite : plain;
}

// --- Integers ------------------------------------------------------------------------------------

// The largest number that all values are multiples of, with factors up to 15; 0: there is none.
double common_divisor(std::span<const float> group, double largest) {
  double divisor = largest;
  for (const float value : group) {
    double a = divisor;
    double b = std::abs(double{value});
    if (b == 0) continue;
    const double times = b / a;
    if (times == std::rint(times)) continue;
    while (b != 0) {
      const double rest = std::fmod(a, b);
      a = b;
      b = rest;
      if (b != 0 && b * (kMostInteger + 1) < largest) return 0;
    }
    divisor = a;
  }
  return divisor;
}

// A group whose values are multiples of a scale, at most 15 of them apart.
std::optional<CodedNumbers> exact_integers(WeightFormat format, std::span<const float> group) {
  const double divisor = common_divisor(group, double{largest_magnitude(group)});
  if (divisor == 0) return std::nullopt;
  // Zeros have the sign of the scale.
  const bool negative =
      std::ranges::any_of(group, [](float value) { return value == 0 && std::signbit(value); });
  const double scale = negative ? -divisor : divisor;
  float least = 0;
  float most = 0;
  std::array<float, kMostColumns> multiples{};
  for (size_t i = 0; i < group.size(); ++i) {
    multiples[i] = static_cast<float>(std::rint(double{group[i]} / scale));
    least = std::min(least, multiples[i]);
    most = std::max(most, multiples[i]);
  }
  if (most - least > kMostInteger) return std::nullopt;
  constexpr float kMiddle = 8;
  CodedNumbers numbers{.scale = static_cast<float>(scale),
                       .zero = std::clamp(kMiddle, -least, kMostInteger - most)};
  constexpr uint32_t kZeroBits = 15;
  if ((std::bit_cast<uint32_t>(numbers.scale) & kZeroBits) != 0) return std::nullopt;
  for (size_t i = 0; i < group.size(); ++i) {
    numbers.codes[i] = static_cast<uint8_t>(multiples[i] + numbers.zero);
  }
  if (squared_error(format, group, numbers) != 0) return std::nullopt;
  return numbers;
}

struct IntegerFit {
  CodedNumbers numbers;
  double error = std::numeric_limits<double>::infinity();
};

float as_bf16(double value) { return static_cast<float>(BFloat16(static_cast<float>(value))); }

IntegerFit fit_integers(std::span<const float> group, float scale, float zero) {
  IntegerFit fit{.numbers = {.scale = scale, .zero = zero}, .error = 0};
  std::array<float, kMostColumns> errors{};
  for (size_t i = 0; i < group.size(); ++i) {
    // Adding and subtracting 1.5 · 2^23 rounds to the nearest integer without a call.
    constexpr float kRounder = 12582912.0F;
    const float rounded = (group[i] / scale + zero + kRounder) - kRounder;
    const float low = rounded < 0.0F ? 0.0F : rounded;
    const float q = low > kMostInteger ? kMostInteger : low;
    fit.numbers.codes[i] = static_cast<uint8_t>(static_cast<int32_t>(q));
    errors[i] = group[i] - (q - zero) * scale;
  }
  for (size_t i = 0; i < group.size(); ++i) fit.error += double{errors[i]} * double{errors[i]};
  return fit;
}

// The scale of the least squares beside codes as they are.
float fitted_scale_of(std::span<const float> group, const CodedNumbers& numbers) {
  double products = 0;
  double squares = 0;
  for (size_t i = 0; i < group.size(); ++i) {
    const double level = double{static_cast<float>(numbers.codes[i])} - double{numbers.zero};
    products += double{group[i]} * level;
    squares += level * level;
  }
  return squares > 0 ? as_bf16(products / squares) : numbers.scale;
}

CodedNumbers quantize_integers(WeightFormat format, std::span<const float> group) {
  if (largest_magnitude(group) == 0) return {};
  if (const auto exact = exact_integers(format, group)) return *exact;
  const auto [least, most] = std::ranges::minmax(group);
  const double low = std::min(0.0F, least);
  const double range = double{std::max(0.0F, most)} - low;
  IntegerFit best;
  const auto try_fit = [&](float scale, double zero) {
    if (!(scale > 0) || !std::isfinite(scale)) return;
    const auto clamped = static_cast<float>(std::clamp(zero, 0.0, double{kMostInteger}));
    const IntegerFit fit = fit_integers(group, scale, clamped);
    if (fit.error < best.error) best = fit;
  };
  constexpr int kShares = 10;  // of the range: 1, 0.96, 0.92, ...
  constexpr double kLess = 0.04;
  for (int n = 0; n < kShares; ++n) {
    const float scale = as_bf16(range * (1 - kLess * n) / kMostInteger);
    const double zero = scale > 0 ? -low * (1 - kLess * n) / double{scale} : 0;
    try_fit(scale, std::floor(zero));
    try_fit(scale, std::ceil(zero));
  }
  if (!std::isfinite(best.error)) return {};  // scales below the least there is
  try_fit(fitted_scale_of(group, best.numbers), double{best.numbers.zero});
  return best.numbers;
}

// --- Rows ----------------------------------------------------------------------------------------

CodedNumbers quantize_group(WeightFormat format, std::span<const float> group,
                            std::optional<float> known) {
  switch (format) {
    case WeightFormat::fp8:
      return quantize_fp8(group, known);
    case WeightFormat::mxfp4:
      return quantize_mxfp4(group);
    case WeightFormat::nf4:
      return quantize_nf4(group, known);
    default:
      return quantize_integers(format, group);
  }
}

void store_description(WeightFormat format, const CodedNumbers& numbers, std::byte* to) {
  auto word = std::bit_cast<uint32_t>(numbers.scale);
  if (format == WeightFormat::mxfp4) {
    constexpr int kMantissaBits = 23;
    *to = static_cast<std::byte>(word >> kMantissaBits);  // 0: 2^-127, which is subnormal
    return;
  }
  word |= static_cast<uint32_t>(numbers.zero);
  std::memcpy(to, &word, sizeof word);
}

// Those of a step.
void store_codes(int64_t element_bits, std::span<const uint8_t> codes, std::byte* to) {
  constexpr int64_t kHalf = kPackedStep / 2;
  for (int64_t c = 0; c < (element_bits == 8 ? kPackedStep : kHalf); ++c) {
    const auto at = static_cast<size_t>(c);
    const unsigned high = element_bits == 8 ? 0U : codes[at + kHalf];
    to[coded_place(c)] = static_cast<std::byte>(codes[at] | high << 4);
  }
}

// Of columns that are not there.
uint8_t code_of_nothing(WeightFormat format, const CodedNumbers& numbers) {
  constexpr uint8_t kZeroOfNf4 = 7;
  return format == WeightFormat::nf4 ? kZeroOfNf4 : static_cast<uint8_t>(numbers.zero);
}

}  // namespace

RowError quantize_row_coded(WeightFormat format, std::span<const float> row,
                            std::span<const float> known, std::byte* out) {
  const PackedLayout layout = packed_layout(format);
  const auto cols = static_cast<int64_t>(row.size());
  const int64_t step_bytes = kPackedStep * layout.element_bits / 8;
  std::memset(out, 0, static_cast<size_t>(row_bytes(format, cols)));
  RowError result;
  for (int64_t first = 0; first < cols; first += layout.group) {
    const int64_t count = std::min(layout.group, cols - first);
    const std::span<const float> group =
        row.subspan(static_cast<size_t>(first), static_cast<size_t>(count));
    std::optional<float> scale;
    if (!known.empty()) scale = known[static_cast<size_t>(first / layout.group)];
    CodedNumbers numbers = quantize_group(format, group, scale);
    result.squared_error += squared_error(format, group, numbers);
    result.squared_norm += sum_of_squares(group);
    std::fill(numbers.codes.begin() + count, numbers.codes.end(), code_of_nothing(format, numbers));
    std::byte* block = out + first / kPackedBlock * packed_block_bytes(format);
    const int64_t in_block = first % kPackedBlock;
    store_description(format, numbers, block + in_block / layout.group * layout.group_bytes);
    for (int64_t at = 0; at < count; at += kPackedStep) {
      store_codes(layout.element_bits,
                  std::span(numbers.codes).subspan(static_cast<size_t>(at), kPackedStep),
                  block + described_bytes(format) + (in_block + at) / kPackedStep * step_bytes);
    }
  }
  return result;
}

}  // namespace faststream::convert
