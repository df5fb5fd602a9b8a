// The fast CPU backend's kernels for each instruction set that this machine has, against the
// reference.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "kernels/cpu/cpu_backend.h"
#include "support/error.h"

namespace faststream {
namespace {

constexpr int kThreads = 3;  // more than this machine may have, and odd

std::vector<CpuIsa> supported() {
  std::vector<CpuIsa> all;
  for (const CpuIsa isa :
       {CpuIsa::portable, CpuIsa::avx2, CpuIsa::avx512, CpuIsa::avx512_vnni, CpuIsa::amx}) {
    if (cpu_supports(isa)) all.push_back(isa);
  }
  return all;
}

class CpuOps : public testing::TestWithParam<CpuIsa> {
 protected:
  std::unique_ptr<Backend> fast_ = make_cpu_backend(kThreads, GetParam());
  std::unique_ptr<Backend> reference_ = make_reference_backend();
  std::mt19937 random_{7};

  std::vector<float> normal(int64_t count, float spread = 1) {
    std::normal_distribution<float> distribution(0, spread);
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) {
      value = distribution(random_);
    }
    return values;
  }
};

INSTANTIATE_TEST_SUITE_P(Isa, CpuOps, testing::ValuesIn(supported()), [](const auto& param) {
  std::string name(cpu_isa_name(param.param));
  std::erase_if(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
  return name;
});

/// Bytes that end where an unreadable page begins, so that a read past the end is a crash.
class GuardedBytes {
 public:
  explicit GuardedBytes(size_t bytes) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    mapped_ = (bytes + page - 1) / page * page + page;
    memory_ = static_cast<std::byte*>(
        mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    mprotect(memory_ + mapped_ - page, page, PROT_NONE);
    data_ = memory_ + mapped_ - page - bytes;
  }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;
  ~GuardedBytes() { munmap(memory_, mapped_); }

  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  std::byte* memory_;
  std::byte* data_;
  size_t mapped_;
};

/// Weights of any type at the end of readable memory.
struct TestWeight {
  TestWeight(DType dtype, int64_t rows, int64_t cols, std::mt19937& random)
      : bytes(static_cast<size_t>(rows * cols) * dtype_size(dtype)),
        scales(static_cast<size_t>(rows)) {
    std::normal_distribution<float> normal(0, 0.05F);
    std::uniform_int_distribution<int> integers(-127, 127);
    for (size_t i = 0; i < static_cast<size_t>(rows * cols); ++i) {
      if (dtype == DType::i8) {
        bytes.data()[i] = static_cast<std::byte>(integers(random));
      } else {
        store_float(bytes.data(), dtype, i, normal(random));
      }
    }
    for (float& scale : scales) {
      scale = 0.0005F * (1 + std::abs(normal(random)));
    }
    weight.data = bytes.data();
    weight.dtype = dtype;
    weight.rows = rows;
    weight.cols = cols;
    weight.scales = dtype == DType::i8 ? scales.data() : nullptr;
  }

  GuardedBytes bytes;
  std::vector<float> scales;
  Weight weight;
};

Matrix matrix(std::vector<float>& values, int64_t rows, int64_t cols, int64_t stride) {
  Matrix m(values.data(), DType::f32, rows, cols);
  m.stride = stride;
  return m;
}

/// What |x|·|w| may amount to at most for each output: the scale of rounding errors.
std::vector<double> magnitudes(const std::vector<float>& x, int64_t stride, int64_t rows,
                               const Weight& w) {
  std::vector<double> result(static_cast<size_t>(rows * w.rows));
  std::vector<double> channel(static_cast<size_t>(w.cols));
  for (int64_t o = 0; o < w.rows; ++o) {
    const double scale = w.scales != nullptr ? w.scales[o] : 1;
    for (int64_t c = 0; c < w.cols; ++c) {
      channel[static_cast<size_t>(c)] =
          std::abs(scale * load_as_float(w.data, w.dtype, static_cast<size_t>(o * w.cols + c)));
    }
    for (int64_t r = 0; r < rows; ++r) {
      double sum = 0;
      for (int64_t c = 0; c < w.cols; ++c) {
        sum += std::abs(x[static_cast<size_t>(r * stride + c)]) * channel[static_cast<size_t>(c)];
      }
      result[static_cast<size_t>(r * w.rows + o)] = sum;
    }
  }
  return result;
}

/// The largest error that rounding one row of x to the product's operand type can cause in output
/// o: half a step of every element times the weight's magnitude. Sums are float32: 1e-6 of |x|·|w|.
double product_bound(const std::vector<float>& x, int64_t stride, int64_t row, const Weight& w,
                     int64_t o, double magnitude) {
  const double sums = 1e-6 * magnitude + 1e-7;
  if (w.dtype == DType::bf16) return sums + magnitude / 511;  // 8 bits of mantissa
  if (w.dtype != DType::i8) return sums;
  double largest = 0;
  for (int64_t c = 0; c < w.cols; ++c) {
    largest = std::max(largest, double{std::abs(x[static_cast<size_t>(row * stride + c)])});
  }
  double weights = 0;
  for (int64_t c = 0; c < w.cols; ++c) {
    weights += std::abs(load_as_float(w.data, w.dtype, static_cast<size_t>(o * w.cols + c)));
  }
  weights *= w.scales[o];
  const double half_step = largest / 127 / 2;
  return sums + 1.001 * half_step * weights;
}

struct Shape {
  int64_t rows;
  int64_t in;
  int64_t out;
};

const std::vector<Shape> kShapes = {{1, 1, 1},     {1, 64, 16},    {1, 65, 17},    {2, 100, 31},
                                    {3, 33, 130},  {4, 4099, 6},   {5, 8192, 9},   {7, 96, 40},
                                    {8, 128, 64},  {9, 127, 33},   {16, 256, 48},  {17, 70, 37},
                                    {31, 64, 100}, {33, 2048, 70}, {40, 1000, 35}, {300, 96, 34}};

TEST_P(CpuOps, LinearEqualsTheReference) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::i8}) {
    for (const auto& [rows, in, out] : kShapes) {
      const TestWeight w(dtype, out, in, random_);
      const int64_t x_stride = in + 3;
      const int64_t out_stride = out + 5;
      std::vector<float> x = normal(rows * x_stride);
      const std::vector<float> bias = normal(out);
      const std::vector<float> before = normal(rows * out_stride);
      const std::vector<double> size = magnitudes(x, x_stride, rows, w.weight);
      for (const LinearOutput mode : {LinearOutput::store, LinearOutput::add}) {
        const float* b = mode == LinearOutput::store ? bias.data() : nullptr;
        std::vector<float> expected = before;
        std::vector<float> actual = before;
        reference_->linear(matrix(x, rows, in, x_stride), w.weight, b, mode,
                           matrix(expected, rows, out, out_stride));
        fast_->linear(matrix(x, rows, in, x_stride), w.weight, b, mode,
                      matrix(actual, rows, out, out_stride));
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t o = 0; o < out_stride; ++o) {
            const auto i = static_cast<size_t>(r * out_stride + o);
            const double bound = o < out ? product_bound(x, x_stride, r, w.weight, o,
                                                         size[static_cast<size_t>(r * out + o)])
                                         : 0;
            ASSERT_NEAR(actual[i], expected[i], bound)
                << dtype_name(dtype) << " [" << rows << ", " << in << "] x " << out << " at row "
                << r << ", output " << o;
          }
        }
      }
    }
  }
}

TEST_P(CpuOps, GatedLinearEqualsTheReference) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::i8}) {
    for (const auto& [rows, in, out] : kShapes) {
      const TestWeight w(dtype, 2 * out, in, random_);
      std::vector<float> x = normal(rows * in, 0.5F);
      std::vector<float> products(static_cast<size_t>(rows * 2 * out));
      std::vector<float> expected(static_cast<size_t>(rows * out));
      std::vector<float> actual = expected;
      const Matrix input = matrix(x, rows, in, in);
      reference_->linear(input, w.weight, nullptr, LinearOutput::store,
                         matrix(products, rows, 2 * out, 2 * out));
      reference_->gated_linear(input, w.weight, Activation::silu, matrix(expected, rows, out, out));
      fast_->gated_linear(input, w.weight, Activation::silu, matrix(actual, rows, out, out));
      const std::vector<double> size = magnitudes(x, in, rows, w.weight);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t o = 0; o < out; ++o) {
          const auto g = static_cast<size_t>(r * 2 * out + o);
          const auto u = static_cast<size_t>(r * 2 * out + out + o);
          const double gate_error = product_bound(x, in, r, w.weight, o, size[g]);
          const double up_error = product_bound(x, in, r, w.weight, out + o, size[u]);
          // |silu'| <= 1.1 and |silu(g)| <= |g|; the two errors' product is bounded as well.
          const double bound = 1.1 * gate_error * std::abs(products[u]) +
                               up_error * std::abs(products[g]) + 1.1 * gate_error * up_error +
                               1e-6 * std::abs(expected[static_cast<size_t>(r * out + o)]) + 1e-9;
          const auto i = static_cast<size_t>(r * out + o);
          ASSERT_NEAR(actual[i], expected[i], bound)
              << dtype_name(dtype) << " [" << rows << ", " << in << "] x " << out << " at row " << r
              << ", output " << o;
        }
      }
    }
  }
}

TEST_P(CpuOps, ExtremeInt8WeightsAndEqualInputsDoNotOverflow) {
  const int64_t in = 16384;
  for (const int64_t rows : {1, 16}) {
    TestWeight w(DType::i8, 32, in, random_);
    std::memset(w.bytes.data(), 0x80, static_cast<size_t>(32 * in));  // -128: damaged, yet no crash
    std::fill(w.scales.begin(), w.scales.end(), 1.0F);
    std::vector<float> x(static_cast<size_t>(rows * in), 1.0F);
    std::vector<float> out(static_cast<size_t>(rows * 32));
    fast_->linear(matrix(x, rows, in, in), w.weight, nullptr, LinearOutput::store,
                  matrix(out, rows, 32, 32));
    for (const float value : out) {
      ASSERT_NEAR(value, -128.0 * in, 2.0);
    }
  }
}

TEST_P(CpuOps, ARowOfZerosGivesTheBias) {
  for (const int64_t rows : {1, 16}) {
    const TestWeight w(DType::i8, 20, 80, random_);
    std::vector<float> x(static_cast<size_t>(rows * 80));
    const std::vector<float> bias = normal(20);
    std::vector<float> out(static_cast<size_t>(rows * 20));
    fast_->linear(matrix(x, rows, 80, 80), w.weight, bias.data(), LinearOutput::store,
                  matrix(out, rows, 20, 20));
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_EQ(out[i], bias[i % 20]);
    }
  }
}

TEST_P(CpuOps, RmsNormEqualsTheReference) {
  for (const int64_t n : {1, 7, 64, 100, 4096}) {
    std::vector<float> x = normal(5 * n);
    const std::vector<float> weight = normal(n);
    std::vector<float> expected(x.size());
    std::vector<float> actual(x.size());
    reference_->rms_norm(matrix(x, 5, n, n), weight.data(), 1e-5F, matrix(expected, 5, n, n));
    fast_->rms_norm(matrix(x, 5, n, n), weight.data(), 1e-5F, matrix(actual, 5, n, n));
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_NEAR(actual[i], expected[i], 2e-6 * std::abs(expected[i]) + 1e-30) << "n " << n;
    }
  }
}

struct HeadShape {
  int32_t heads;
  int32_t kv_heads;
  int32_t dim;
};

/// Sequences in prefill, in the middle of one, and in decode, with pages in random order.
Batch mixed_batch(int32_t n_pages, std::mt19937& random) {
  struct Part {
    int32_t queries;
    int32_t kv_len;
  };
  Batch batch;
  batch.max_pages = 5;
  batch.query_start = {0};
  std::vector<int32_t> pages(static_cast<size_t>(n_pages));
  for (size_t i = 0; i < pages.size(); ++i) {
    pages[i] = static_cast<int32_t>(i);
  }
  std::shuffle(pages.begin(), pages.end(), random);
  size_t next_page = 0;
  for (const auto& [queries, kv_len] :
       std::vector<Part>{{1, 1}, {33, 33}, {1, 100}, {40, 150}, {3, 64}, {1, 65}, {70, 70}}) {
    const auto s = static_cast<int32_t>(batch.kv_len.size());
    for (int32_t i = 0; i < queries; ++i) {
      batch.tokens.push_back(0);
      batch.positions.push_back(kv_len - queries + i);
      batch.sequence_of.push_back(s);
    }
    batch.query_start.push_back(batch.n_tokens());
    batch.kv_len.push_back(kv_len);
    for (int32_t p = 0; p < batch.max_pages; ++p) {
      batch.page_table.push_back(p * kPageTokens < kv_len ? pages.at(next_page++) : 0);
    }
  }
  return batch;
}

TEST_P(CpuOps, RopeAndAttentionEqualTheReference) {
  const int32_t n_pages = 20;
  for (const auto& [heads, kv_heads, dim] : std::vector<HeadShape>{
           {4, 4, 8}, {8, 2, 64}, {6, 2, 10}, {3, 1, 80}, {32, 8, 64}, {70, 1, 16}, {2, 1, 128}}) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      const Batch batch = mixed_batch(n_pages, random_);
      const int64_t tokens = batch.n_tokens();
      const int64_t cols = (heads + 2 * kv_heads) * dim;
      const auto cache_size = static_cast<size_t>(int64_t{n_pages} * kv_heads * kPageTokens * dim);
      // What the caches hold beyond the sequences' ends must not matter.
      std::vector<float> expected_k(cache_size, NAN);
      std::vector<float> expected_v(cache_size, NAN);
      std::vector<float> actual_k(cache_size, NAN);
      std::vector<float> actual_v(cache_size, NAN);
      const auto fill_history = [&, n_kv = kv_heads, n = dim](std::vector<float>& k,
                                                              std::vector<float>& v,
                                                              std::mt19937 random) {
        std::normal_distribution<float> distribution;
        for (size_t s = 0; s < batch.kv_len.size(); ++s) {
          for (int32_t p = 0; p < batch.kv_len[s]; ++p) {
            const int32_t page = batch.page_table[s * static_cast<size_t>(batch.max_pages) +
                                                  static_cast<size_t>(p / kPageTokens)];
            for (int32_t h = 0; h < n_kv; ++h) {
              for (int32_t i = 0; i < n; ++i) {
                const auto at = static_cast<size_t>(
                    ((int64_t{page} * n_kv + h) * kPageTokens + p % kPageTokens) * n + i);
                store_float(k.data(), dtype, at, distribution(random));
                store_float(v.data(), dtype, at, distribution(random));
              }
            }
          }
        }
        return KvLayer{k.data(), v.data(), dtype, n_pages, n_kv, n};
      };
      const KvLayer expected_kv = fill_history(expected_k, expected_v, random_);
      const KvLayer actual_kv = fill_history(actual_k, actual_v, random_);

      std::vector<float> expected_qkv = normal(tokens * cols);
      std::vector<float> actual_qkv = expected_qkv;
      std::vector<float> inv_freq(static_cast<size_t>(dim / 2));
      for (size_t i = 0; i < inv_freq.size(); ++i) {
        inv_freq[i] = std::pow(10000.0F, -2.0F * static_cast<float>(i) / static_cast<float>(dim));
      }
      std::vector<float> expected_out(static_cast<size_t>(tokens * heads * dim));
      std::vector<float> actual_out(expected_out.size());
      const auto run = [&, n_heads = heads, n = dim](Backend& backend, const KvLayer& kv,
                                                     std::vector<float>& values,
                                                     std::vector<float>& out) {
        std::vector<float> table(static_cast<size_t>(tokens * n));
        const BatchView view = backend.upload(batch);
        const Matrix rotations = matrix(table, tokens, n, n);
        const Matrix qkv = matrix(values, tokens, cols, cols);
        backend.rope_table(view, inv_freq.data(), rotations);
        backend.rope_append(view, rotations, qkv, kv);
        backend.attention(view, qkv.columns(0, n_heads * n), kv,
                          1.0F / std::sqrt(static_cast<float>(n)),
                          matrix(out, tokens, n_heads * n, n_heads * n));
      };
      run(*reference_, expected_kv, expected_qkv, expected_out);
      run(*fast_, actual_kv, actual_qkv, actual_out);
      const std::string what = std::string(dtype_name(dtype)) + " heads " + std::to_string(heads) +
                               "/" + std::to_string(kv_heads) + " dim " + std::to_string(dim);
      for (size_t i = 0; i < expected_qkv.size(); ++i) {
        ASSERT_NEAR(actual_qkv[i], expected_qkv[i], 2e-6) << what << " at " << i;
      }
      // A rotated key that lies between two 16-bit numbers may be rounded either way: one step of
      // the cache's type in a few elements. Outputs are averages of values below 5.
      const double step = dtype == DType::f32 ? 0 : dtype == DType::f16 ? 0x1p-10 : 0x1p-7;
      for (size_t i = 0; i < expected_out.size(); ++i) {
        ASSERT_NEAR(actual_out[i], expected_out[i], 1e-5 + step) << what << " at " << i;
      }
    }
  }
}

TEST_P(CpuOps, AttentionDoesNotDependOnTheBatch) {
  const int32_t heads = 8;
  const int32_t kv_heads = 2;
  const int32_t dim = 64;
  const Batch batch = mixed_batch(20, random_);
  std::vector<float> k = normal(20 * kv_heads * kPageTokens * dim);
  std::vector<float> v = normal(20 * kv_heads * kPageTokens * dim);
  const KvLayer kv{k.data(), v.data(), DType::f32, 20, kv_heads, dim};
  std::vector<float> q = normal(batch.n_tokens() * heads * dim);
  std::vector<float> together(q.size());
  const int64_t cols = heads * dim;
  fast_->attention(fast_->upload(batch), matrix(q, batch.n_tokens(), cols, cols), kv, 0.125F,
                   matrix(together, batch.n_tokens(), cols, cols));
  for (int32_t t = 0; t < batch.n_tokens(); ++t) {
    const auto s = static_cast<size_t>(batch.sequence_of[static_cast<size_t>(t)]);
    Batch single;
    single.tokens = {0};
    single.positions = {batch.positions[static_cast<size_t>(t)]};
    single.sequence_of = {0};
    single.query_start = {0, 1};
    single.kv_len = {single.positions[0] + 1};
    single.max_pages = batch.max_pages;
    const auto first = batch.page_table.begin() + static_cast<std::ptrdiff_t>(s * 5);
    single.page_table.assign(first, first + 5);
    std::vector<float> row(q.begin() + t * cols, q.begin() + (t + 1) * cols);
    std::vector<float> alone(row.size());
    fast_->attention(fast_->upload(single), matrix(row, 1, cols, cols), kv, 0.125F,
                     matrix(alone, 1, cols, cols));
    for (int64_t i = 0; i < cols; ++i) {
      ASSERT_NEAR(alone[static_cast<size_t>(i)], together[static_cast<size_t>(t * cols + i)], 1e-6)
          << "token " << t << ", element " << i;
    }
  }
}

TEST(CpuBackend, NamesItsThreadsAndInstructionSet) {
  EXPECT_EQ(make_cpu_backend(1, CpuIsa::portable)->description(), "CPU (1 thread, portable)");
  EXPECT_EQ(make_cpu_backend(2, CpuIsa::portable)->description(), "CPU (2 threads, portable)");
}

TEST(CpuBackend, RefusesAnImpossibleAllocation) {
  const auto backend = make_cpu_backend(1);
  EXPECT_THROW(backend->allocate(SIZE_MAX), Error);
  EXPECT_THROW(backend->allocate(SIZE_MAX / 2), Error);
  EXPECT_GT(backend->free_memory(), size_t{1} << 20);
}

}  // namespace
}  // namespace faststream
