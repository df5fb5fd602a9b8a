// For tests that compare a backend's operations with the plain float reference: tensors on the
// host, their copies in a backend's memory with guards around them, and batches over shuffled
// pages.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "kernels/cpu/cpu_backend.h"
#include "unit/backend/test_backends.h"
#include "unit/effort.h"
#include "unit/normal.h"

namespace faststream {

/// The largest relative error of rounding to `type`: half the distance of neighbours.
inline double unit_roundoff(DType type) {
  switch (type) {
    case DType::f16:
      return 0x1p-11;
    case DType::bf16:
      return 0x1p-8;
    default:
      return 0x1p-24;
  }
}

/// Those whose elements are the numbers themselves.
inline const std::vector<WeightFormat> kFloatFormats =
    kSanitized ? std::vector{WeightFormat::f32, WeightFormat::bf16}
               : std::vector{WeightFormat::f32, WeightFormat::f16, WeightFormat::bf16};

constexpr bool is_bytes(DType dtype) { return dtype == DType::i8 || dtype == DType::packed; }

/// A matrix on the host. Every byte that is not an element, and every element not yet set, is 0xff:
/// a NaN in each floating type.
struct HostTensor {
  DType dtype = DType::f32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;
  std::vector<std::byte> bytes;

  HostTensor() = default;
  HostTensor(DType type, int64_t n_rows, int64_t n_cols, int64_t padding = 0)
      : dtype(type),
        rows(n_rows),
        cols(n_cols),
        stride(n_cols + padding),
        bytes(static_cast<size_t>(rows * stride) * dtype_size(dtype), std::byte{0xff}) {}

  [[nodiscard]] float at(int64_t row, int64_t col) const {
    return load_as_float(bytes.data(), dtype, static_cast<size_t>(row * stride + col));
  }
  void set(int64_t row, int64_t col, float value) {
    const auto index = static_cast<size_t>(row * stride + col);
    if (is_bytes(dtype)) {
      bytes[index] = static_cast<std::byte>(static_cast<int8_t>(value));
    } else {
      store_float(bytes.data(), dtype, index, value);
    }
  }
  /// Rows [first, first + count) without gaps.
  [[nodiscard]] HostTensor row_range(int64_t first, int64_t count) const {
    HostTensor part(dtype, count, cols);
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t c = 0; c < cols; ++c) part.set(r, c, at(first + r, c));
    }
    return part;
  }
  /// The same shape with f(element) in each place.
  [[nodiscard]] HostTensor map(DType type, const std::function<float(float)>& f) const {
    HostTensor result(type, rows, cols);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) result.set(r, c, f(at(r, c)));
    }
    return result;
  }
};

using Random = std::mt19937;

/// Normal numbers, or for i8 uniform ones in [-127, 127].
inline HostTensor random_tensor(Random& random, DType dtype, int64_t rows, int64_t cols,
                                int64_t padding = 0, float deviation = 1) {
  HostTensor tensor(dtype, rows, cols, padding);
  Normal normal(deviation);
  std::uniform_int_distribution<int> bytes(-127, 127);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      tensor.set(r, c, is_bytes(dtype) ? static_cast<float>(bytes(random)) : normal(random));
    }
  }
  return tensor;
}

/// A tensor in a backend's memory with guard bytes before and after it.
class DeviceTensor {
 public:
  DeviceTensor(Backend& backend, const HostTensor& host) : backend_(backend), shape_(host) {
    std::vector<std::byte> guarded(host.bytes.size() + 2 * kGuard, std::byte{0xff});
    std::copy(host.bytes.begin(), host.bytes.end(), guarded.begin() + kGuard);
    memory_ = backend.allocate(guarded.size());
    backend.copy_to_device(memory_.get(), guarded.data(), guarded.size());
  }

  [[nodiscard]] void* data() const { return memory_.get() + kGuard; }
  [[nodiscard]] Matrix matrix() const {
    Matrix matrix(data(), shape_.dtype, shape_.rows, shape_.cols);
    matrix.stride = shape_.stride;
    return matrix;
  }
  /// Of a floating type.
  [[nodiscard]] Weight weight() const {
    return {data(), format_of(shape_.dtype), shape_.rows, shape_.cols};
  }

  /// The elements, after a check that nothing between rows or around the tensor was written.
  [[nodiscard]] HostTensor fetch() const {
    HostTensor host = shape_;
    std::vector<std::byte> guarded(host.bytes.size() + 2 * kGuard);
    backend_.copy_to_host(guarded.data(), memory_.get(), guarded.size());
    std::copy_n(guarded.begin() + kGuard, host.bytes.size(), host.bytes.begin());
    size_t touched = 0;
    const auto look = [&](size_t begin, size_t end) {
      const std::span gap(guarded.begin() + static_cast<std::ptrdiff_t>(begin), end - begin);
      touched +=
          gap.size() - static_cast<size_t>(std::count(gap.begin(), gap.end(), std::byte{0xff}));
    };
    const size_t element = dtype_size(host.dtype);
    look(0, kGuard);
    for (int64_t r = 0; r < host.rows; ++r) {
      const size_t row = kGuard + static_cast<size_t>(r * host.stride) * element;
      look(row + static_cast<size_t>(host.cols) * element,
           row + static_cast<size_t>(host.stride) * element);
    }
    look(kGuard + host.bytes.size(), guarded.size());
    EXPECT_EQ(touched, 0U) << "bytes outside of the result were written";
    return host;
  }

 private:
  static constexpr size_t kGuard = 256;
  Backend& backend_;
  HostTensor shape_;
  Buffer memory_;
};

/// Numbers in a backend's memory that may not be there: biases, weights of norms.
class DeviceNumbers {
 public:
  DeviceNumbers(Backend& backend, const HostTensor* host)
      : is_null_(host == nullptr), tensor_(backend, host != nullptr ? *host : HostTensor()) {}

  [[nodiscard]] const float* data() const {
    return is_null_ ? nullptr : static_cast<const float*>(tensor_.data());
  }

 private:
  bool is_null_;
  DeviceTensor tensor_;
};

/// Compares element by element; one failure that says how many differ and where the first is.
inline void expect_near(const HostTensor& got, const HostTensor& want,
                        const std::function<double(int64_t, int64_t)>& bound,
                        const std::string& what) {
  int64_t wrong = 0;
  std::string first;
  for (int64_t r = 0; r < want.rows; ++r) {
    for (int64_t c = 0; c < want.cols; ++c) {
      const double difference = std::abs(double{got.at(r, c)} - double{want.at(r, c)});
      if (difference == 0) continue;
      const double limit = bound(r, c);
      if (difference <= limit) continue;  // false for NaN
      if (wrong++ == 0) {
        first = "row " + std::to_string(r) + ", column " + std::to_string(c) + ": " +
                std::to_string(got.at(r, c)) + " instead of " + std::to_string(want.at(r, c)) +
                ", bound " + std::to_string(limit);
      }
    }
  }
  EXPECT_EQ(wrong, 0) << what << ": " << wrong << " of " << want.rows * want.cols
                      << " elements differ, first " << first;
}

inline void expect_equal(const HostTensor& got, const HostTensor& want, const std::string& what) {
  expect_near(
      got, want, [](int64_t, int64_t) { return 0.0; }, what);
}

/// A sequence of a test's batch: the last `queries` of `kv_len` positions are computed.
struct TestSequence {
  int32_t queries = 1;
  int32_t kv_len = 1;
};

/// Pages that `sequences` need.
inline int32_t pages_of(const std::vector<TestSequence>& sequences) {
  int32_t pages = 0;
  for (const TestSequence& s : sequences) pages += pages_for(s.kv_len);
  return pages;
}

/// A packed batch whose pages are shuffled among [0, n_pages). Token ids are below `vocab`.
inline Batch make_batch(Random& random, const std::vector<TestSequence>& sequences, int32_t n_pages,
                        int32_t vocab = 100) {
  std::vector<int32_t> pages(static_cast<size_t>(n_pages));
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), random);
  Batch batch;
  for (const TestSequence& s : sequences) {
    batch.max_pages = std::max(batch.max_pages, pages_for(s.kv_len));
  }
  size_t next_page = 0;
  std::uniform_int_distribution<int32_t> token(0, vocab - 1);
  for (const TestSequence& s : sequences) {
    const int32_t index = batch.n_sequences();
    batch.query_start.push_back(batch.n_tokens());
    for (int32_t i = 0; i < s.queries; ++i) {
      batch.tokens.push_back(token(random));
      batch.positions.push_back(s.kv_len - s.queries + i);
      batch.sequence_of.push_back(index);
    }
    batch.kv_len.push_back(s.kv_len);
    for (int32_t page = 0; page < batch.max_pages; ++page) {
      const bool used = page * kPageTokens < s.kv_len;
      batch.page_table.push_back(used ? pages[next_page++] : 0);
    }
    batch.logit_rows.push_back(batch.n_tokens() - 1);
  }
  batch.query_start.push_back(batch.n_tokens());
  return batch;
}

/// Tests over devices, "cpu" and "cuda", against the reference.
class BackendTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (GetParam() == std::string("cpu")) {
      constexpr int kThreads = 3;  // more than the machine may have, and odd
      for (const CpuIsa isa : kCpuIsas) {
        if (cpu_supports(isa)) backends_.push_back(make_cpu_backend(kThreads, isa));
      }
    } else {
      std::unique_ptr<Backend> backend = make_test_backend(GetParam());
      FASTSTREAM_REQUIRE_BACKEND(backend);
      backends_.push_back(std::move(backend));
    }
    backend_ = backends_.back().get();
    reference_ = make_reference_backend();
  }

  /// Sizes that make a GPU take another kernel are a GPU's: a CPU only takes longer over them.
  [[nodiscard]] bool on_gpu() const { return backend_->description().starts_with("CUDA"); }

  /// Whether a test tries its ith case with a format. On a CPU those whose elements are codes of
  /// floats differ only in how they are decoded: each has every third case, and all together have
  /// all twice.
  [[nodiscard]] bool tries(WeightFormat format, size_t i) const {
    constexpr size_t kOneOf = kSanitized ? 6 : 3;
    return on_gpu() || !is_coded(format) || (i + static_cast<size_t>(format)) % kOneOf == 0;
  }

  /// The activation types of the backend for all formats of weights, and f32.
  [[nodiscard]] std::set<DType> activation_types() const {
    std::set<DType> types = {DType::f32};
    for (const WeightFormat format : kWeightFormats) {
      types.insert(backend_->activation_dtype(format));
    }
    return types;
  }

  /// The device's backends: the CPU has one for each instruction set that this machine supports,
  /// the best last. What they do alike (types, activations) is asked of that one.
  std::vector<std::unique_ptr<Backend>> backends_;
  Backend* backend_ = nullptr;  ///< the last
  std::unique_ptr<Backend> reference_;
  Random random_{20240229};
};

/// Names of the instances are "Cpu/BackendOps.…" and "Cuda/BackendOps.…".
#define FASTSTREAM_INSTANTIATE_BACKENDS(suite)                    \
  INSTANTIATE_TEST_SUITE_P(Cpu, suite, ::testing::Values("cpu")); \
  INSTANTIATE_TEST_SUITE_P(Cuda, suite, ::testing::Values("cuda"))

}  // namespace faststream
