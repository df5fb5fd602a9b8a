#include "bench/ceilings.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "support/split_mix.h"

namespace faststream::bench {
namespace {

constexpr int kRuns = 5;  // of which the fastest counts

// Seconds of the fastest of some runs.
template <typename Operation>
double fastest(Backend& backend, const Operation& operation) {
  operation();  // allocates scratch memory, chooses algorithms
  (void)backend.take_times();
  backend.note_time();
  for (int run = 0; run < kRuns; ++run) {
    operation();
    backend.note_time();
  }
  const std::vector<double> seconds = backend.take_times();
  return *std::min_element(seconds.begin(), seconds.end());
}

// Memory of random elements: products of zeros take a GPU less power, and so less time.
Buffer random_elements(Backend& backend, DType dtype, int64_t count) {
  constexpr int64_t kBlock = int64_t{1} << 20;
  const size_t size = dtype_size(dtype);
  std::vector<std::byte> block(static_cast<size_t>(std::min(count, kBlock)) * size);
  for (size_t i = 0; i < block.size() / size; ++i) {
    const auto random = static_cast<int32_t>(split_mix(1, i + 1) >> 32);
    if (size == 1) {
      block[i] = static_cast<std::byte>(random);
    } else {
      store_float(block.data(), dtype, i, static_cast<float>(random) * 0x1p-31F);
    }
  }
  const size_t bytes = static_cast<size_t>(count) * size;
  Buffer memory = backend.allocate(bytes);
  for (size_t at = 0; at < bytes; at += block.size()) {
    backend.copy_to_device(memory.get() + at, block.data(), std::min(block.size(), bytes - at));
  }
  return memory;
}

double bytes_per_second(Backend& backend, size_t bytes) {
  const size_t whole = std::max<size_t>(bytes / 64, 1) * 64;
  const Buffer memory = random_elements(backend, DType::i8, static_cast<int64_t>(whole));
  return static_cast<double>(whole) /
         fastest(backend, [&] { backend.read_memory(memory.get(), whole); });
}

// Of products of x [n, n] and weights [4n, n], as n grows until one takes kLong.
double operations_per_second(Backend& backend, WeightFormat weights, DType activations) {
  constexpr double kLong = 2e-3;  // seconds
  constexpr int64_t kMost = 16384;
  double best = 0;
  for (int64_t n = 128; n <= kMost; n *= 2) {
    const size_t bytes = static_cast<size_t>(4 * n * row_bytes(weights, n)) +
                         static_cast<size_t>(5 * n * n) * dtype_size(activations);
    if (bytes > backend.free_memory() / 4) break;
    const Buffer x = random_elements(backend, activations, n * n);
    const Buffer w =
        random_elements(backend, stored_type(weights), 4 * n * stored_columns(weights, n));
    const ScaleShape scale = scale_shape(weights);
    const Buffer scales =
        random_elements(backend, stored_type(scale.format), 4 * n * scale.columns);
    const Buffer out = backend.allocate(static_cast<size_t>(4 * n * n) * dtype_size(activations));
    const Weight weight{
        .data = w.get(), .format = weights, .rows = 4 * n, .cols = n, .scales = scales.get()};
    Input input{.x = Matrix(x.get(), activations, n, n)};
    const double seconds = fastest(backend, [&] {
      backend.linear(input, weight, {}, Matrix(out.get(), activations, n, 4 * n));
    });
    best = std::max(best, 8.0 * static_cast<double>(n) * static_cast<double>(n * n) / seconds);
    if (seconds > kLong) break;
  }
  return best;
}

}  // namespace

Ceilings measure_ceilings(Backend& backend, WeightFormat weights, size_t bytes) {
  const DType activations = backend.activation_dtype(weights);
  Ceilings ceilings{.memory = bytes_per_second(backend, bytes),
                    .weights = operations_per_second(backend, weights, activations)};
  ceilings.activations = stored_type(weights) == activations
                             ? ceilings.weights
                             : operations_per_second(backend, format_of(activations), activations);
  return ceilings;
}

}  // namespace faststream::bench
