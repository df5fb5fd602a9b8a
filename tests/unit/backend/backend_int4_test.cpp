// An int4 matrix is an int8 one: products with either have the same bits.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "unit/backend/backend_weights.h"
#include "unit/effort.h"

namespace faststream {
namespace {

HostWeight as_int8(const HostWeight& int4) {
  HostWeight wide = int4;
  wide.format = WeightFormat::int8;
  wide.values = HostTensor(DType::i8, int4.values.rows, int4.cols);
  for (int64_t r = 0; r < int4.values.rows; ++r) {
    decode_integers(WeightFormat::int4,
                    int4.values.bytes.data() + r * row_bytes(WeightFormat::int4, int4.cols), 0,
                    {reinterpret_cast<int8_t*>(wide.values.bytes.data()) + r * int4.cols,
                     static_cast<size_t>(int4.cols)});
  }
  return wide;
}

class BackendInt4 : public BackendTest {
 protected:
  /// Those that add integers.
  [[nodiscard]] std::vector<Backend*> exact_backends() const {
    std::vector<Backend*> exact;
    for (const auto& backend : backends_) {
      const std::vector<WeightFormat> formats = formats_summed_in_order(*backend);
      if (std::ranges::find(formats, WeightFormat::int4) != formats.end()) {
        exact.push_back(backend.get());
      }
    }
    return exact;
  }

  struct Results {
    HostTensor stored;
    HostTensor added;
    HostTensor gated;
  };
  static Results run(Backend& backend, const HostTensor& x, const HostWeight& weight,
                     const HostTensor& bias, const HostTensor& before) {
    const DeviceTensor device_x(backend, x);
    const DeviceWeight device_weight(backend, weight);
    const DeviceNumbers device_bias(backend, &bias);
    const int64_t outputs = weight.values.rows;
    const DeviceTensor stored(backend, HostTensor(x.dtype, x.rows, outputs));
    const DeviceTensor added(backend, before);
    const DeviceTensor gated(backend, HostTensor(x.dtype, x.rows, outputs / 2));
    Input input{.x = device_x.matrix()};
    backend.linear(input, device_weight.weight(), {.bias = device_bias.data()}, stored.matrix());
    backend.linear(input, device_weight.weight(), {.output = OutputMode::add}, added.matrix());
    backend.gated_linear(input, device_weight.weight(), nullptr, Activation::silu, gated.matrix());
    return {stored.fetch(), added.fetch(), gated.fetch()};
  }

  static HostTensor run_experts(Backend& backend, const HostTensor& x, const HostTensor& scores,
                                const HostWeight& up, const HostWeight& down, int64_t hidden) {
    const DeviceTensor device_x(backend, x);
    const DeviceTensor device_scores(backend, scores);
    const DeviceWeight device_up(backend, up);
    const DeviceWeight device_down(backend, down);
    const DeviceTensor out(backend, HostTensor(DType::f32, x.rows, hidden));
    Input input{.x = device_x.matrix()};
    backend.experts(input, device_scores.matrix(), {.used = 2},
                    {.n_experts = static_cast<int32_t>(scores.cols),
                     .up = device_up.weight(),
                     .down = device_down.weight(),
                     .gated = true,
                     .activation = Activation::silu},
                    OutputMode::store, out.matrix());
    return out.fetch();
  }
};

TEST_P(BackendInt4, ProductsAreThoseOfTheInt8MatrixThatItIs) {
  // Parts of a group, groups, blocks, and chunks of three blocks in the step's kernel.
  constexpr std::pair<int64_t, int64_t> kShapes[] = {{16, 16},   {72, 32},  {288, 80},  {2880, 48},
                                                     {4096, 32}, {520, 40}, {5504, 16}, {65, 6}};
  const DType act = backend_->activation_dtype(WeightFormat::int4);
  for (const auto& [inputs, outputs] : kShapes) {
    for (const int64_t rows : {1, 2, 33, 64, 100, 150, 230}) {
      constexpr int64_t kMost = 300'000;  // elements, so that it takes little time
      if (rows * inputs > kMost || (kSanitized && rows > 100)) continue;
      const HostTensor x = random_tensor(random_, act, rows, inputs, 8);
      const HostTensor bias = random_tensor(random_, DType::f32, 1, outputs);
      const HostTensor before = random_tensor(random_, DType::f32, rows, outputs);
      const HostWeight weight = random_weight(random_, WeightFormat::int4, outputs, inputs);
      const HostWeight wide = as_int8(weight);
      for (Backend* backend : exact_backends()) {
        const std::string what = backend->description() + ": " + std::to_string(rows) +
                                 " rows of " + std::to_string(inputs) + " to " +
                                 std::to_string(outputs);
        const Results got = run(*backend, x, weight, bias, before);
        const Results want = run(*backend, x, wide, bias, before);
        expect_equal(got.stored, want.stored, what + ", stored");
        expect_equal(got.added, want.added, what + ", added");
        expect_equal(got.gated, want.gated, what + ", gated");
      }
    }
  }
}

// Of groups with every code, whose elements have every value: Int4Levels is what they mean to all.
TEST_P(BackendInt4, ProductsKnowAllCodes) {
  constexpr int64_t kGroups = kInt4Block / kInt4Group;
  constexpr int64_t kOutputs = 256 / kGroups;
  HostWeight weight = random_weight(random_, WeightFormat::int4, kOutputs, kInt4Block);
  for (int64_t o = 0; o < kOutputs; ++o) {
    std::byte* block = weight.values.bytes.data() + o * kInt4BlockBytes;
    for (int64_t g = 0; g < kGroups; ++g) {
      block[g] = static_cast<std::byte>(o * kGroups + g);
      for (int64_t i = 0; i < kInt4GroupBytes; ++i) {
        block[kInt4CodeBytes + g * kInt4GroupBytes + i] = static_cast<std::byte>(16 * (15 - i) + i);
      }
    }
  }
  const HostWeight wide = as_int8(weight);
  for (int64_t o = 0; o < kOutputs; ++o) {
    for (int64_t c = 0; c < kInt4Block; ++c) {
      const Int4Levels levels(static_cast<std::byte>(o * kGroups + c / kInt4Group));
      const int64_t i = c % kInt4Group;
      const int64_t q = i < kInt4GroupBytes ? i : 2 * kInt4GroupBytes - 1 - i;
      ASSERT_EQ(wide.values.at(o, c), levels[static_cast<int32_t>(q)]) << o << ", " << c;
    }
  }
  const DType act = backend_->activation_dtype(WeightFormat::int4);
  for (const int64_t rows : {1, 5, 64}) {
    const HostTensor x = random_tensor(random_, act, rows, kInt4Block);
    const HostTensor bias = random_tensor(random_, DType::f32, 1, kOutputs);
    const HostTensor before = random_tensor(random_, DType::f32, rows, kOutputs);
    for (Backend* backend : exact_backends()) {
      expect_equal(run(*backend, x, weight, bias, before).stored,
                   run(*backend, x, wide, bias, before).stored,
                   backend->description() + ": " + std::to_string(rows) + " rows, all codes");
    }
  }
}

TEST_P(BackendInt4, ExpertsAreThoseOfTheInt8MatrixThatItIs) {
  struct Shape {
    int64_t n_experts;
    int64_t in;
    int64_t middle;
    int64_t hidden;
  };
  const DType act = backend_->activation_dtype(WeightFormat::int4);
  for (const Shape& s : {Shape{8, 576, 272, 576}, {4, 1600, 64, 800}}) {
    for (const int64_t tokens : {1, 2, 30, 300}) {
      if (kSanitized && tokens > 100) continue;
      const HostTensor x = random_tensor(random_, act, tokens, s.in);
      const HostTensor scores = random_tensor(random_, DType::f32, tokens, s.n_experts, 0, 2);
      const HostWeight up =
          random_weight(random_, WeightFormat::int4, s.n_experts * 2 * s.middle, s.in);
      const HostWeight down =
          random_weight(random_, WeightFormat::int4, s.n_experts * s.hidden, s.middle);
      const HostWeight wide_up = as_int8(up);
      const HostWeight wide_down = as_int8(down);
      for (Backend* backend : exact_backends()) {
        if (!backend->description().starts_with("CUDA")) continue;
        expect_equal(run_experts(*backend, x, scores, up, down, s.hidden),
                     run_experts(*backend, x, scores, wide_up, wide_down, s.hidden),
                     backend->description() + ": " + std::to_string(tokens) + " tokens, " +
                         std::to_string(s.n_experts) + " experts of " + std::to_string(s.in));
      }
    }
  }
}

FASTSTREAM_INSTANTIATE_BACKENDS(BackendInt4);

}  // namespace
}  // namespace faststream
