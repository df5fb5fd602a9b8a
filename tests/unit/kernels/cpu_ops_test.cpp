// What the fast CPU backend promises beside its operations' contract (backend_ops_test.cpp): it
// reads nothing beyond the weights, survives damaged ones, and says what it runs on.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "kernels/cpu/cpu_backend.h"
#include "support/error.h"
#include "unit/normal.h"
#include "unit/support/set_variable.h"

namespace faststream {
namespace {

std::vector<CpuIsa> supported() {
  std::vector<CpuIsa> all;
  for (const CpuIsa isa : kCpuIsas) {
    if (cpu_supports(isa)) all.push_back(isa);
  }
  return all;
}

class CpuOps : public testing::TestWithParam<CpuIsa> {
 protected:
  std::unique_ptr<Backend> backend_ = make_cpu_backend(2, GetParam());
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

TEST_P(CpuOps, ReadsNothingBeyondTheWeights) {
  for (const WeightFormat format : kWeightFormats) {
    for (const auto& [in, out] :
         {std::pair<int64_t, int64_t>{1, 2}, {65, 18}, {96, 40}, {4099, 6}, {127, 34}, {64, 100}}) {
      const GuardedBytes bytes(static_cast<size_t>(out * row_bytes(format, in)));
      const GuardedBytes scales(static_cast<size_t>(out * scale_shape(format).row_bytes()));
      const Weight weight{bytes.data(), format, out, in,
                          is_float(format) ? nullptr : scales.data()};
      for (const int64_t rows : {1, 2, 5, 16, 17, 33, 300}) {
        std::vector<float> x(static_cast<size_t>(rows * in), 1.0F);
        std::vector<float> y(static_cast<size_t>(rows * out), 1.0F);
        Input input{.x = {x.data(), DType::f32, rows, in}};
        backend_->linear(input, weight, {}, {y.data(), DType::f32, rows, out});
        EXPECT_EQ(y, std::vector<float>(y.size(), 0.0F));
        y.assign(static_cast<size_t>(rows * out / 2), 1.0F);
        backend_->gated_linear(input, weight, nullptr, Activation::silu,
                               {y.data(), DType::f32, rows, out / 2});
        EXPECT_EQ(y, std::vector<float>(y.size(), 0.0F));
        // Two experts, of which all rows use the last.
        std::vector<float> scores;
        for (int64_t r = 0; r < rows; ++r) scores.insert(scores.end(), {0.0F, 1.0F});
        const std::vector<float> ones(static_cast<size_t>(out * (out / 2)), 1.0F);
        y.assign(static_cast<size_t>(rows * out / 2), 1.0F);
        backend_->experts(input, {scores.data(), DType::f32, rows, 2}, {.used = 1},
                          {.n_experts = 2,
                           .up = weight,
                           .down = {ones.data(), WeightFormat::f32, out, out / 2},
                           .gated = false},
                          OutputMode::store, {y.data(), DType::f32, rows, out / 2});
        EXPECT_EQ(y, std::vector<float>(y.size(), 0.0F));
      }
    }
  }
}

// Pages that a window has passed may be another sequence's.
TEST_P(CpuOps, AttentionReadsNoPageBeforeTheWindow) {
  constexpr int32_t kDim = 16;
  constexpr int32_t kPages = 4;
  constexpr int32_t kLength = 120;
  constexpr size_t kPage = size_t{kPageTokens} * kDim;
  std::vector<float> cache(kPages * kPage, 1.0F);
  std::fill_n(cache.begin(), 2 * kPage, std::numeric_limits<float>::quiet_NaN());
  for (const int32_t queries : {1, 20}) {
    Batch batch;
    for (int32_t i = kLength - queries; i < kLength; ++i) {
      batch.tokens.push_back(0);
      batch.positions.push_back(i);
      batch.sequence_of.push_back(0);
    }
    batch.query_start = {0, queries};
    batch.kv_len = {kLength};
    batch.page_table = {0, 1, 2, 3};
    batch.max_pages = kPages;
    std::vector<float> qkv(static_cast<size_t>(queries) * 3 * kDim, 1.0F);
    std::vector<float> out(static_cast<size_t>(queries) * kDim);
    backend_->attention(backend_->upload(batch), {qkv.data(), DType::f32, queries, 3 * kDim},
                        {nullptr, DType::f32, queries, 0}, {},
                        {cache.data(), cache.data(), DType::f32, kPages, 1, kDim, kDim},
                        {.window = 37}, {out.data(), DType::f32, queries, kDim});
    for (const float value : out) EXPECT_NEAR(value, 1, 1e-6);
  }
}

/// Numbers with a magnitude in [0.5, 2), as bytes.
std::vector<std::byte> random_numbers(DType dtype, size_t count) {
  std::mt19937 random(1);
  std::vector<std::byte> bytes(count * dtype_size(dtype));
  for (size_t i = 0; i < count; ++i) {
    const auto draw = static_cast<uint32_t>(random());
    const uint32_t bits = dtype == DType::f32    ? 0x3f000000U | (draw & 0x80ffffffU)
                          : dtype == DType::bf16 ? 0x3f00U | (draw & 0x80ffU)
                                                 : 0x3800U | (draw & 0x87ffU);
    std::memcpy(bytes.data() + i * dtype_size(dtype), &bits, dtype_size(dtype));
  }
  return bytes;
}

// Bit for bit: where a prompt is cut, and which beams look at a source together, is chance.
TEST_P(CpuOps, ARowOfAttentionIsTheSameAloneAndWithOthers) {
  constexpr int32_t kPages = 3;
  constexpr int32_t kLength = 70;
  constexpr int32_t kQueries = 7;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const int32_t dim : {64, 20}) {
      std::vector<float> q(static_cast<size_t>(kQueries * dim));
      std::memcpy(q.data(), random_numbers(DType::f32, q.size()).data(), q.size() * sizeof(float));
      std::vector<std::byte> cache =
          random_numbers(dtype, static_cast<size_t>(kPages * kPageTokens * dim));
      const auto attend = [&](int32_t first, int32_t count, float* out) {
        Batch batch;
        for (int32_t i = first; i < first + count; ++i) {
          batch.tokens.push_back(0);
          batch.positions.push_back(kLength - kQueries + i);
          batch.sequence_of.push_back(0);
        }
        batch.query_start = {0, count};
        batch.kv_len = {kLength - kQueries + first + count};
        batch.page_table = {2, 0, 1};
        batch.max_pages = kPages;
        backend_->attention(backend_->upload(batch),
                            {q.data() + first * dim, DType::f32, count, dim},
                            {nullptr, DType::f32, count, 0}, {},
                            {cache.data(), cache.data(), dtype, kPages, 1, dim, dim},
                            {.scale = 0.1F}, {out, DType::f32, count, dim});
      };
      std::vector<float> together(q.size());
      attend(0, kQueries, together.data());
      std::vector<float> alone(q.size());
      for (int32_t i = 0; i < kQueries; ++i) attend(i, 1, alone.data() + i * dim);
      EXPECT_EQ(together, alone) << dtype_name(dtype) << ", heads of " << dim;
    }
  }
}

/// Bytes that malloc() has given; 0 under a sanitizer.
size_t allocated_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

/// What `run` gives for a text of kTextTokens, and the state that it leaves, in steps of `each`
/// tokens.
constexpr int32_t kTextTokens = 70;
template <typename Run>
std::vector<float> in_steps(Backend& backend, int32_t each, int64_t columns, int64_t state_size,
                            const Run& run) {
  std::vector<float> out(static_cast<size_t>(kTextTokens * columns));
  std::vector<float> states(static_cast<size_t>(3 * state_size));
  int32_t to = 0;
  for (int32_t first = 0; first < kTextTokens; first += each) {
    const int32_t count = std::min(each, kTextTokens - first);
    Batch batch;
    batch.add_sequence(std::vector<int32_t>(static_cast<size_t>(count)), first);
    batch.state_from = {to};
    to = to == 1 ? 2 : 1;
    batch.state_to = {to};
    batch.state_border = {0};
    run(backend.upload(batch), first, StateLayer{states.data(), state_size, 3},
        Matrix(out.data(), DType::f32, kTextTokens, columns).row_range(first, count));
  }
  out.insert(out.end(), states.begin() + to * state_size, states.begin() + (to + 1) * state_size);
  return out;
}

// A prompt's tokens come together, those after it alone.
TEST_P(CpuOps, TokensOfARecurrenceAreTheSameAloneAndTogether) {
  std::mt19937 random(7);
  Normal normal;
  const auto random_rows = [&](int64_t rows, int64_t cols) {
    std::vector<float> values(static_cast<size_t>(rows * cols));
    for (float& value : values) value = normal(random);
    return values;
  };
  using Shape = std::pair<int32_t, int32_t>;
  for (const Shape& shape : {Shape{128, 128}, Shape{64, 80}, Shape{37, 300}}) {
    const int32_t key_dim = shape.first;
    const int32_t value_dim = shape.second;
    for (const auto& [delta, by_channel] :
         {std::pair{false, false}, std::pair{true, false}, std::pair{true, true}}) {
      Recurrence r{.n_heads = 2,
                   .n_key_heads = 1,
                   .key_dim = key_dim,
                   .value_dim = value_dim,
                   .delta = delta,
                   .by_channel = by_channel,
                   .unit_eps = delta ? 1e-6F : 0};
      const int64_t columns = int64_t{r.n_heads} * value_dim;
      std::vector<float> q = random_rows(kTextTokens, key_dim);
      std::vector<float> k = random_rows(kTextTokens, key_dim);
      std::vector<float> v = random_rows(kTextTokens, columns);
      const std::vector<float> rates = {-0.3F, -1};
      const std::vector<float> steps = random_rows(r.n_heads, key_dim);
      r.rates = rates.data();
      r.steps = steps.data();
      std::vector<float> gates = random_rows(kTextTokens, gate_columns(r));
      const auto run = [&](const BatchView& view, int32_t first, const StateLayer& states,
                           const Matrix& out) {
        const auto rows = [&](std::vector<float>& of, int64_t cols) {
          return Matrix(of.data(), DType::f32, kTextTokens, cols).row_range(first, view.n_tokens);
        };
        backend_->recur(view, rows(q, key_dim), rows(k, key_dim), rows(v, columns),
                        rows(gates, gate_columns(r)), r, states, out);
      };
      const std::vector<float> whole =
          in_steps(*backend_, kTextTokens, columns, key_dim * columns, run);
      for (const int32_t each : {1, 2, 33}) {
        EXPECT_TRUE(whole == in_steps(*backend_, each, columns, key_dim * columns, run))
            << key_dim << " by " << value_dim << (by_channel ? ", by channel" : "")
            << (delta ? ", delta" : "") << ", steps of " << each;
      }
    }
  }

  constexpr int64_t kChannels = 150;
  constexpr int64_t kStates = 16;
  std::vector<float> x = random_rows(kTextTokens, kChannels);
  std::vector<float> steps = random_rows(kTextTokens, kChannels);
  std::vector<float> bc = random_rows(kTextTokens, 2 * kStates);
  const std::vector<float> rates(static_cast<size_t>(kStates * kChannels), -0.7F);
  const std::vector<float> added = random_rows(1, kChannels);
  const SelectiveScan scan{
      .state_size = kStates, .rates = rates.data(), .steps = added.data(), .skips = added.data()};
  const auto run = [&](const BatchView& view, int32_t first, const StateLayer& states,
                       const Matrix& out) {
    const auto rows = [&](std::vector<float>& of, int64_t cols) {
      return Matrix(of.data(), DType::f32, kTextTokens, cols).row_range(first, view.n_tokens);
    };
    const Matrix b_and_c = rows(bc, 2 * kStates);
    backend_->scan(view, rows(x, kChannels), rows(steps, kChannels), b_and_c.columns(0, kStates),
                   b_and_c.columns(kStates, kStates), scan, states, out);
  };
  const std::vector<float> whole =
      in_steps(*backend_, kTextTokens, kChannels, kStates * kChannels, run);
  for (const int32_t each : {1, 33}) {
    EXPECT_TRUE(whole == in_steps(*backend_, each, kChannels, kStates * kChannels, run))
        << "scan, steps of " << each;
  }
}

TEST_P(CpuOps, TakesNoMoreScratchMemoryThanItSays) {
  constexpr int64_t kExperts = 8;
  constexpr int64_t kUsed = 3;
  constexpr int64_t kIn = 320;
  constexpr int64_t kMiddle = 200;
  for (const WeightFormat format : kWeightFormats) {
    const std::vector<std::byte> zeros(kExperts * 2 * kMiddle * kIn * sizeof(float));
    const void* scales = is_float(format) ? nullptr : zeros.data();
    for (const int64_t tokens : {1, 40, 300}) {
      StepBounds bounds;
      bounds.tokens = bounds.sequences = bounds.logits = tokens;
      bounds.products = {{tokens * kUsed, kIn, 2 * kMiddle, format, true, false, false, kExperts},
                         {tokens * kUsed, kMiddle, kIn, format, false, false, false, kExperts}};
      std::vector<float> x(static_cast<size_t>(tokens * kIn), 1.0F);
      std::vector<float> out(x.size());
      std::vector<float> scores(static_cast<size_t>(tokens * kExperts), 1.0F);  // the same for all
      const std::unique_ptr<Backend> backend = make_cpu_backend(2, GetParam());
      const size_t before = allocated_bytes();
      Input input{.x = {x.data(), DType::f32, tokens, kIn}};
      backend->experts(input, {scores.data(), DType::f32, tokens, kExperts}, {.used = kUsed},
                       {.n_experts = kExperts,
                        .up = {zeros.data(), format, kExperts * 2 * kMiddle, kIn, scales},
                        .down = {zeros.data(), format, kExperts * kIn, kMiddle, scales}},
                       OutputMode::add, {out.data(), DType::f32, tokens, kIn});
      EXPECT_LE(allocated_bytes(), before + backend->scratch_bytes(bounds))
          << format_name(format) << ", " << tokens << " tokens";
    }
  }
}

TEST_P(CpuOps, ExtremeInt8WeightsAndEqualInputsDoNotOverflow) {
  constexpr int64_t kIn = 16384;
  const std::vector<float> scales(32, 1.0F);
  // -128: a damaged file, yet no crash.
  for (const int weight : {-128, -127, 127}) {
    const std::vector<std::byte> bytes(static_cast<size_t>(32 * kIn),
                                       static_cast<std::byte>(weight));
    for (const float sign : {1.0F, -1.0F}) {
      for (const int64_t rows : {1, 16, 40}) {
        std::vector<float> x(static_cast<size_t>(rows * kIn), sign);
        std::vector<float> out(static_cast<size_t>(rows * 32));
        Input input{.x = {x.data(), DType::f32, rows, kIn}};
        backend_->linear(input, {bytes.data(), WeightFormat::int8, 32, kIn, scales.data()}, {},
                         {out.data(), DType::f32, rows, 32});
        for (const float value : out) {
          ASSERT_NEAR(value, sign * static_cast<float>(weight * kIn), 2.0);
        }
      }
    }
  }
}

/// A matrix of int4 of random bytes, and the same one in int8.
struct Int4AndInt8 {
  Int4AndInt8(std::mt19937& random, int64_t rows, int64_t cols)
      : stored(static_cast<size_t>(rows * row_bytes(WeightFormat::int4, cols))),
        integers(static_cast<size_t>(rows * cols)),
        scales(static_cast<size_t>(rows)),
        int4{stored.data(), WeightFormat::int4, rows, cols, scales.data()},
        int8{integers.data(), WeightFormat::int8, rows, cols, scales.data()} {
    for (std::byte& byte : stored) byte = static_cast<std::byte>(random());
    for (int64_t r = 0; r < rows; ++r) {
      scales[static_cast<size_t>(r)] = 1e-3F * static_cast<float>(1 + random() % 100);
      int4.decode(r, 0, std::span(integers.data() + r * cols, static_cast<size_t>(cols)));
    }
  }

  std::vector<std::byte> stored;
  std::vector<int8_t> integers;
  std::vector<float> scales;
  Weight int4;
  Weight int8;
};

/// Of all bits and signs; whole rows of the largest magnitude are the most that sums must hold.
std::vector<float> inputs_of_all_kinds(std::mt19937& random, int64_t rows, int64_t cols) {
  Normal normal;
  std::vector<float> x;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      x.push_back(r % 5 == 3 ? 1.0F : r % 5 == 4 ? -1.0F : normal(random));
    }
  }
  return x;
}

TEST_P(CpuOps, Int4WeightsGiveTheBitsOfInt8WeightsOfTheSameValues) {
  std::mt19937 random(1);
  for (const auto& sides : {std::pair<int64_t, int64_t>{1, 2},
                            {31, 6},
                            {33, 34},
                            {96, 64},
                            {480, 70},
                            {512, 20},
                            {545, 66},
                            {1200, 34},
                            {4096, 40}}) {
    const int64_t in = sides.first;
    const int64_t out = sides.second;
    const Int4AndInt8 weights(random, out, in);
    for (const int64_t rows : {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33, 70}) {
      std::vector<float> x = inputs_of_all_kinds(random, rows, in);
      Input input{.x = {x.data(), DType::f32, rows, in}};
      for (const auto& inputs : {std::pair{8, false}, {8, true}, {16, false}}) {
        const int bits = inputs.first;
        const bool rotated = inputs.second;
        const auto products = [&](Weight weight) {
          weight.input_bits = bits;
          weight.rotated = rotated;
          std::vector<float> y(static_cast<size_t>(rows * out * 3 / 2));
          backend_->linear(input, weight, {}, {y.data(), DType::f32, rows, out});
          backend_->gated_linear(input, weight, nullptr, Activation::silu,
                                 {y.data() + rows * out, DType::f32, rows, out / 2});
          return y;
        };
        ASSERT_EQ(products(weights.int4), products(weights.int8))
            << in << " to " << out << ", " << rows << " rows, inputs of " << bits << " bits";
      }
    }
  }
}

// Some have one row, some many.
TEST_P(CpuOps, ExpertsOfInt4GiveTheBitsOfInt8) {
  constexpr int64_t kExperts = 6;
  constexpr int64_t kIn = 544;
  constexpr int64_t kMiddle = 80;
  std::mt19937 random(1);
  const Int4AndInt8 up(random, kExperts * 2 * kMiddle, kIn);
  const Int4AndInt8 down(random, kExperts * kIn, kMiddle);
  for (const int64_t tokens : {1, 12, 60}) {
    std::vector<float> x = inputs_of_all_kinds(random, tokens, kIn);
    std::vector<float> scores;
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t e = 0; e < kExperts; ++e) {
        scores.push_back(e == 0 ? 9.0F : static_cast<float>(e * 100 + (t * t) % (e + 7)) / 500);
      }
    }
    const auto result = [&](const Weight& of_up, const Weight& of_down) {
      std::vector<float> y(static_cast<size_t>(tokens * kIn));
      Input input{.x = {x.data(), DType::f32, tokens, kIn}};
      backend_->experts(input, {scores.data(), DType::f32, tokens, kExperts}, {.used = 2},
                        {.n_experts = kExperts, .up = of_up, .down = of_down}, OutputMode::store,
                        {y.data(), DType::f32, tokens, kIn});
      return y;
    };
    ASSERT_EQ(result(up.int4, down.int4), result(up.int8, down.int8)) << tokens << " tokens";
  }
}

constexpr std::array kCodedFormats = {WeightFormat::fp8,      WeightFormat::mxfp4,
                                      WeightFormat::nf4,      WeightFormat::int4_g32,
                                      WeightFormat::int4_g64, WeightFormat::int4_g128};
constexpr std::array<int64_t, 8> kCodedColumns = {1, 31, 32, 33, 511, 512, 513, 1124};

/// A coded matrix of any codes but NaN and of scales from 2^-12 to 2^-5, with any zero points;
/// extreme: those of mxfp4 the smallest and large ones, too; and the floats that it means.
struct CodedAndFloats {
  CodedAndFloats(std::mt19937& random, WeightFormat format, int64_t rows, int64_t cols,
                 bool extreme = false)
      : stored(static_cast<size_t>(rows * row_bytes(format, cols))),
        values(static_cast<size_t>(rows * cols)),
        coded{stored.data(), format, rows, cols},
        floats{values.data(), WeightFormat::f32, rows, cols} {
    constexpr std::byte kNan{0x7f};
    for (std::byte& byte : stored) {
      byte = static_cast<std::byte>(random());
      if (format == WeightFormat::fp8 && (byte & kNan) == kNan) byte = {};
    }
    const int64_t row_size = row_bytes(format, cols);
    const auto group = static_cast<size_t>(packed_layout(format).group_bytes);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t at = 0; at < row_size; at += packed_block_bytes(format)) {
        std::byte* block = stored.data() + r * row_size + at;
        for (size_t i = 0; i < static_cast<size_t>(described_bytes(format)); i += group) {
          uint32_t word = ((115 + random() % 8) << 23) | (random() & 0x7fffffU);
          if (group == 1) word = extreme && random() % 2 == 0 ? random() % 2 * 250 : word >> 23;
          std::memcpy(block + i, &word, group);
        }
      }
      coded.decode(r, 0, std::span(values.data() + r * cols, static_cast<size_t>(cols)));
    }
  }

  std::vector<std::byte> stored;
  std::vector<float> values;
  Weight coded;
  Weight floats;
};

// Bit for bit, by products with rows of a single one.
TEST_P(CpuOps, CodesOfFloatsMeanWhatTheFormatSays) {
  constexpr int64_t kOut = 6;
  std::mt19937 random(1);
  for (const WeightFormat format : kCodedFormats) {
    for (const int64_t in : kCodedColumns) {
      const CodedAndFloats weights(random, format, kOut, in, true);
      for (const int64_t most_rows : {3, 8, 300}) {
        for (int64_t first = 0; first < in; first += most_rows) {
          const int64_t rows = std::min(most_rows, in - first);
          std::vector<float> x(static_cast<size_t>(rows * in));
          std::vector<float> want;
          for (int64_t r = 0; r < rows; ++r) {
            x[static_cast<size_t>(r * in + first + r)] = 1;
            for (int64_t o = 0; o < kOut; ++o) {
              want.push_back(weights.values[static_cast<size_t>(o * in + first + r)]);
            }
          }
          std::vector<float> y(want.size());
          Input input{.x = {x.data(), DType::f32, rows, in}};
          backend_->linear(input, weights.coded, {}, {y.data(), DType::f32, rows, kOut});
          ASSERT_EQ(y, want) << format_name(format) << ", " << in << " columns, " << rows
                             << " rows from " << first;
        }
      }
    }
  }
}

// As near as sums in another order.
TEST_P(CpuOps, RowsTimesCodesOfFloatsGiveWhatTheFloatsGive) {
  constexpr int64_t kOut = 22;
  std::mt19937 random(1);
  for (const WeightFormat format : kCodedFormats) {
    for (const int64_t in : kCodedColumns) {
      const CodedAndFloats weights(random, format, kOut, in);
      for (const int64_t rows : {1, 2, 3, 4, 5, 7, 8, 9, 33}) {
        std::vector<float> x = inputs_of_all_kinds(random, rows, in);
        Input input{.x = {x.data(), DType::f32, rows, in}};
        const auto products = [&](const Weight& weight, int64_t channels) {
          std::vector<float> y(static_cast<size_t>(rows * channels));
          backend_->linear(input, weight, {.in_order = true},
                           {y.data(), DType::f32, rows, channels});
          return y;
        };
        const std::vector<float> got = products(weights.coded, kOut);
        const std::vector<float> want = products(weights.floats, kOut);
        const double bound = format == WeightFormat::fp8 ? 0.02 : 1e-3;
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_NEAR(got[i], want[i], bound)
              << format_name(format) << ", " << in << " columns, " << rows << " rows";
        }
      }
    }
  }
}

// Bit for bit: as many as decode together.
TEST_P(CpuOps, ARowTimesCodesOfFloatsIsTheSameAloneAndBesideAFewOthers) {
  constexpr int64_t kOut = 22;
  constexpr int64_t kRows = 7;
  std::mt19937 random(1);
  for (const WeightFormat format : kCodedFormats) {
    for (const int64_t in : kCodedColumns) {
      const CodedAndFloats weights(random, format, kOut, in);
      std::vector<float> x = inputs_of_all_kinds(random, kRows, in);
      const auto products = [&](int64_t first, int64_t rows) {
        std::vector<float> y(static_cast<size_t>(rows * kOut));
        Input input{.x = {x.data() + first * in, DType::f32, rows, in}};
        backend_->linear(input, weights.coded, {}, {y.data(), DType::f32, rows, kOut});
        return y;
      };
      const std::vector<float> together = products(0, kRows);
      std::vector<float> alone;
      for (int64_t r = 0; r < kRows; ++r) {
        const std::vector<float> one = products(r, 1);
        alone.insert(alone.end(), one.begin(), one.end());
      }
      ASSERT_EQ(together, alone) << format_name(format) << ", " << in << " columns";
    }
  }
}

TEST_P(CpuOps, ACodeThatIsNotANumberStaysSoAndLeavesOtherChannelsAlone) {
  constexpr int64_t kOut = 9;
  std::mt19937 random(1);
  for (const int64_t in : {1, 33, 100, 700}) {
    CodedAndFloats weights(random, WeightFormat::fp8, kOut, in);
    // The last column's, of both signs.
    const int64_t row_size = row_bytes(WeightFormat::fp8, in);
    const int64_t last = stored_columns(WeightFormat::fp8, in / kPackedBlock * kPackedBlock) +
                         described_bytes(WeightFormat::fp8) + coded_place((in - 1) % kPackedBlock);
    weights.stored[static_cast<size_t>(2 * row_size + last)] = std::byte{0x7f};
    weights.stored[static_cast<size_t>(8 * row_size + last)] = std::byte{0xff};
    for (const int64_t rows : {1, 5, 40}) {
      std::vector<float> x(static_cast<size_t>(rows * in));
      std::vector<float> y(static_cast<size_t>(rows * kOut));
      Input input{.x = {x.data(), DType::f32, rows, in}};
      backend_->linear(input, weights.coded, {}, {y.data(), DType::f32, rows, kOut});
      for (size_t i = 0; i < y.size(); ++i) {
        ASSERT_EQ(std::isnan(y[i]), i % kOut == 2 || i % kOut == 8)
            << in << " columns, element " << i;
      }
    }
  }
}

// Once they fell into the branch of f32, or did nothing.
TEST_P(CpuOps, RefusesTypesThatItHasNoKernelsFor) {
  std::vector<float> values(4096);
  const Matrix x(values.data(), DType::f32, 1, 64);
  Batch batch;
  batch.tokens = batch.positions = batch.sequence_of = batch.page_table = {0};
  batch.query_start = {0, 1};
  batch.kv_len = {1};
  batch.max_pages = 1;
  const BatchView view = backend_->upload(batch);
  EXPECT_THROW(backend_->embed(
                   view, {.table = {values.data(), WeightFormat::int8, 1, 64, values.data()}}, x),
               std::logic_error);
  for (const DType type : {DType::i8, DType::u8}) {
    const KvLayer kv{values.data(), values.data(), type, 1, 1, 32, 32};
    const Matrix qkv(values.data(), DType::f32, 1, 96);
    EXPECT_THROW(backend_->attention(view, qkv, {values.data(), DType::f32, 1, 32}, {}, kv, {},
                                     {values.data(), DType::f32, 1, 32}),
                 std::logic_error);
  }
}

TEST(CpuBackend, NamesItsThreadsAndInstructionSet) {
  EXPECT_EQ(make_cpu_backend(1, CpuIsa::portable)->description(), "CPU (1 thread, portable)");
  EXPECT_EQ(make_cpu_backend(2, CpuIsa::portable)->description(), "CPU (2 threads, portable)");
}

constexpr const char* kIsaLimit = "FASTSTREAM_MAX_CPU_ISA";

TEST(CpuIsaLimit, IsTakenFromTheEnvironment) {
  for (const CpuIsa isa : kCpuIsas) {
    const SetVariable limit(kIsaLimit, std::string(cpu_isa_id(isa)));
    EXPECT_LE(best_cpu_isa(), isa);
    EXPECT_TRUE(cpu_supports(best_cpu_isa()));
  }
  const SetVariable portable(kIsaLimit, "portable");
  EXPECT_EQ(best_cpu_isa(), CpuIsa::portable);
  const SetVariable none(kIsaLimit, "");
  EXPECT_TRUE(cpu_supports(best_cpu_isa()));
}

TEST(CpuIsaLimit, ThatNamesNothingIsRefused) {
  const SetVariable limit(kIsaLimit, "AVX9\n");
  try {
    best_cpu_isa();
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "The environment variable FASTSTREAM_MAX_CPU_ISA is \"AVX9\\n\", which names no "
                 "instruction set; unset it, or set it to one of portable, avx2, avx_vnni, "
                 "avx512, avx512_vnni, avx512_bf16, amx.");
  }
}

TEST(CpuBackend, RefusesAnImpossibleAllocation) {
  const auto backend = make_cpu_backend(1);
  EXPECT_THROW(backend->allocate(SIZE_MAX), Error);
  EXPECT_THROW(backend->allocate(SIZE_MAX / 2), Error);
  EXPECT_GT(backend->free_memory(), size_t{1} << 20);
}

}  // namespace
}  // namespace faststream
