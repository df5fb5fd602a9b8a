#include "kernels/cpu/sampling/output_screen.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_backend.h"

namespace faststream {
namespace {

// Squares of numbers below 2^-63 may be lost, of as many as OutputScreen::kMostInputs.
constexpr float kLost = 0x1p-55F;

int64_t padded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/// At least the norms of x [in], of x' = scale · quantized, and of x - x'; infinite where one is
/// not a number.
struct Norms {
  float exact = 0;
  float rounded = 0;
  float error = 0;
};

Norms norms_of(const float* x, const int8_t* quantized, float scale, int64_t in) {
  constexpr int kSums = 16;  // beside each other, for vectors
  float squares[3][kSums] = {};
  const auto add = [&](int64_t i, int sum) {
    const float rounded = static_cast<float>(quantized[i]) * scale;
    const float error = x[i] - rounded;
    squares[0][sum] += x[i] * x[i];
    squares[1][sum] += rounded * rounded;
    squares[2][sum] += error * error;
  };
  int64_t i = 0;
  for (; i + kSums <= in; i += kSums) {
    for (int sum = 0; sum < kSums; ++sum) add(i + sum, sum);
  }
  for (; i < in; ++i) add(i, 0);
  const auto norm = [](const float* sums) {
    double square = 0;
    for (int sum = 0; sum < kSums; ++sum) square += double{sums[sum]};
    constexpr double kRounding = 1.0 + 0x1p-8;  // of as many terms as kMostInputs / kSums
    const auto length = static_cast<float>(std::sqrt(square) * kRounding);
    return std::isfinite(length) ? length + kLost : std::numeric_limits<float>::infinity();
  };
  return {norm(squares[0]), norm(squares[1]), norm(squares[2])};
}

}  // namespace

size_t OutputScreen::bytes(int64_t vocab, int64_t in) {
  const int64_t floats = 3 * vocab + 2 * logit_blocks(vocab);
  return static_cast<size_t>(padded(vocab * in) + floats * int64_t{sizeof(float)});
}

OutputScreen::OutputScreen(const Weight& weight, Buffer memory, const Kernels& kernels,
                           ThreadPool& pool)
    : memory_(std::move(memory)), quantize_(kernels.quantize_i8) {
  const int64_t vocab = weight.rows;
  const int64_t in = weight.cols;
  auto* rows = reinterpret_cast<int8_t*>(memory_.get());
  auto* scales = reinterpret_cast<float*>(memory_.get() + padded(vocab * in));
  of_channels_ = {scales + vocab, scales + 2 * vocab};
  of_blocks_ = {scales + 3 * vocab, scales + 3 * vocab + logit_blocks(vocab)};
  rounded_ = {
      .data = rows, .format = WeightFormat::int8, .rows = vocab, .cols = in, .scales = scales};
  pool.parallel_for(logit_blocks(vocab), 1, [&](int64_t first, int64_t last) {
    std::vector<float> channel(static_cast<size_t>(in));
    for (int64_t block = first; block < last; ++block) {
      float& largest_norm = of_blocks_.norms[block] = 0;
      float& largest_error = of_blocks_.errors[block] = 0;
      const int64_t end = std::min((block + 1) * kLogitBlock, vocab);
      for (int64_t c = block * kLogitBlock; c < end; ++c) {
        kernels.widen(weight.row(c), float_type(stored_type(weight.format)), in, channel.data());
        scales[c] = quantize_(channel.data(), in, rows + c * in);
        const Norms norms = norms_of(channel.data(), rows + c * in, scales[c], in);
        of_channels_.norms[c] = norms.rounded;
        of_channels_.errors[c] = norms.error;
        largest_norm = std::max(largest_norm, norms.rounded);
        largest_error = std::max(largest_error, norms.error);
      }
    }
  });
}

RowBounds OutputScreen::row_bounds(const float* x, int8_t* room) const {
  const int64_t in = rounded_.cols;
  const float scale = quantize_(x, in, room);
  const Norms norms = norms_of(x, room, scale, in);
  // Relative to |x| |w|: sums of floats, in any order, and a bf16 product's rounding of x.
  const float rounding = 0x1p-9F + 0x1p-20F + static_cast<float>(in) * 0x1p-23F;
  constexpr float kRounding = 1 + 0x1p-16F;  // of what is computed with these
  return {.of_norms = (norms.error + rounding * norms.exact) * kRounding,
          .of_errors = norms.exact * (1 + rounding) * kRounding};
}

}  // namespace faststream
