// Products with weights, compared with the plain float reference.
#include <algorithm>
#include <array>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/hadamard.h"
#include "unit/backend/backend_weights.h"
#include "unit/effort.h"

namespace faststream {
namespace {

class BackendProducts : public BackendTest {
 protected:
  /// x Wᵀ (+ bias, activated, + before) by `backend`.
  static HostTensor product(Backend& backend, const HostTensor& x, const HostWeight& weight,
                            const HostTensor* bias, OutputMode mode, const HostTensor& before,
                            Activation activation = Activation::none, bool in_order = false) {
    const DeviceTensor device_x(backend, x);
    const DeviceWeight device_weight(backend, weight);
    const DeviceNumbers device_bias(backend, bias);
    const DeviceTensor out(backend, before);
    Input input{.x = device_x.matrix()};
    backend.linear(input, device_weight.weight(),
                   {.bias = device_bias.data(),
                    .output = mode,
                    .activation = activation,
                    .in_order = in_order},
                   out.matrix());
    return out.fetch();
  }

  /// activation(x Gᵀ + bias) * (x Uᵀ + bias) by `backend`, of the type and shape of `like`.
  static HostTensor gated_product(Backend& backend, const HostTensor& x, const HostWeight& gate_up,
                                  const HostTensor& like, const HostTensor* bias = nullptr,
                                  const Gate& gate = Activation::silu) {
    const DeviceTensor device_x(backend, x);
    const DeviceWeight device_weight(backend, gate_up);
    const DeviceNumbers device_bias(backend, bias);
    const DeviceTensor out(backend, like);
    Input input{.x = device_x.matrix()};
    backend.gated_linear(input, device_weight.weight(), device_bias.data(), gate, out.matrix());
    return out.fetch();
  }

  /// Bounds of a product's error, [rows, outputs]. Independent roundings add up like a random walk:
  /// - float32 sums: four deviations, of the sum of magnitudes;
  /// - f32 x beside 16-bit weights, which a backend may round to their type: six deviations of
  ///   relative errors that are uniform within the unit roundoff;
  /// - x beside integer weights, which a backend may quantize by row to eight bits: six deviations
  /// of
  ///   errors uniform within half a step; of a row that is rotated first, likewise of what three
  ///   roundings to bf16 change;
  /// - x beside fp8, which a backend may round to E4M3;
  /// - integer weights whose inputs keep 16 bits: they may become bf16.
  static HostTensor product_bounds(const HostTensor& x, const HostWeight& weight) {
    const WeightFormat format = weight.format;
    const bool rounded =
        x.dtype == DType::f32 && (format == WeightFormat::f16 || format == WeightFormat::bf16);
    HostTensor bounds(DType::f32, x.rows, weight.values.rows);
    for (int64_t r = 0; r < x.rows; ++r) {
      std::vector<float> row;
      for (int64_t c = 0; c < x.cols; ++c) row.push_back(x.at(r, c));
      if (weight.rotated) hadamard(std::span(row));
      float largest = 0;
      double row_squared = 0;
      for (const float value : row) {
        largest = std::max(largest, std::abs(value));
        row_squared += double{value} * value;
      }
      for (int64_t o = 0; o < weight.values.rows; ++o) {
        const std::vector<float> weights = weight.row(o);
        double magnitudes = 0;
        double products_squared = 0;
        double weights_squared = 0;
        for (int64_t c = 0; c < x.cols; ++c) {
          const double w = weights[static_cast<size_t>(c)];
          const double term = row[static_cast<size_t>(c)] * w;
          magnitudes += std::abs(term);
          products_squared += term * term;
          weights_squared += w * w;
        }
        double bound = 4 * std::sqrt(static_cast<double>(x.cols)) * 0x1p-24 * magnitudes;
        if (rounded) {
          bound += 6 * unit_roundoff(stored_type(format)) * std::sqrt(products_squared / 3);
        } else if (is_integer(format) && weight.input_bits == 8) {
          bound += 6 * largest / 127.0 * std::sqrt(weights_squared / 12);
        } else if (format == WeightFormat::fp8) {
          // Of numbers up to 448 the smallest that differ do so by 2^-9.
          bound += 6 * 0x1p-4 * std::sqrt(products_squared / 3) +
                   6 * largest / 448 * 0x1p-9 * std::sqrt(weights_squared / 12);
        } else if (!is_float(format)) {
          bound += 6 * unit_roundoff(DType::bf16) * std::sqrt(2 * products_squared / 3);
        }
        if (weight.rotated) {
          bound += 6 * unit_roundoff(DType::bf16) *
                   std::sqrt(row_squared * weights_squared / static_cast<double>(x.cols));
        }
        bounds.set(r, o, static_cast<float>(bound + 1e-30));
      }
    }
    return bounds;
  }

  struct Heads {
    int64_t count = 1;
    int64_t copied = 0;  // of each, before those that are multiplied
    int64_t inputs = 1;
    int64_t outputs = 1;
  };

  void check_heads(WeightFormat format, const Heads& heads, int64_t rows) {
    const DType act = backend_->activation_dtype(format);
    const int64_t width = heads.copied + heads.outputs;
    const HostTensor x =
        random_tensor(random_, act, rows, heads.count * (heads.copied + heads.inputs), 8);
    HostWeight weight = random_weight(random_, format, heads.count * heads.outputs, heads.inputs);
    weight.rotated = false;
    const auto run = [&](Backend& backend, const HostTensor& like) {
      const DeviceTensor device_x(backend, x);
      const DeviceWeight device_weight(backend, weight);
      const DeviceTensor out(backend, like);
      backend.head_linear(device_x.matrix(), device_weight.weight(), heads.count, out.matrix());
      return out.fetch();
    };
    const HostTensor want = run(*reference_, HostTensor(DType::f32, rows, heads.count * width));
    // Both factors may become bf16, and the result is rounded to act.
    const double rounding = format == WeightFormat::f32 ? 1e-5 : 0.03;
    const auto bound = [&](int64_t r, int64_t c) {
      return c % width < heads.copied ? 0.0 : rounding * (1 + std::abs(want.at(r, c)));
    };
    for (const auto& backend : backends_) {
      expect_near(run(*backend, HostTensor(act, rows, heads.count * width, 8)), want, bound,
                  backend->description() + ": products of " + std::to_string(heads.count) +
                      " heads of " + std::to_string(heads.copied) + " + " +
                      std::to_string(heads.inputs) + " to " + std::to_string(heads.outputs) + ", " +
                      std::to_string(rows) + " rows, " + std::string(format_name(format)));
    }
  }

  void check_linear(DType x_type, WeightFormat format, DType out_type, int64_t rows, int64_t inputs,
                    int64_t outputs, bool with_bias, OutputMode mode, int64_t padding = 0,
                    int32_t input_bits = 8) {
    const HostTensor x = random_tensor(random_, x_type, rows, inputs, padding);
    HostWeight weight = random_weight(random_, format, outputs, inputs);
    if (input_bits == 16) weight.take_inputs_of_16_bits();
    const HostTensor bias = random_tensor(random_, DType::f32, 1, outputs);
    const HostTensor before = mode == OutputMode::add
                                  ? random_tensor(random_, out_type, rows, outputs, padding)
                                  : HostTensor(out_type, rows, outputs, padding);
    HostTensor reference_before(DType::f32, rows, outputs);
    if (mode == OutputMode::add) {
      reference_before = before.map(DType::f32, [](float v) { return v; });
    }
    const HostTensor* used_bias = with_bias ? &bias : nullptr;
    const HostTensor want = product(*reference_, x, weight, used_bias, mode, reference_before);
    const HostTensor bounds = product_bounds(x, weight);
    // The product may be rounded before bias and residual are added, and each sum again.
    const double rounding = unit_roundoff(out_type);
    for (const auto& backend : backends_) {
      expect_near(
          product(*backend, x, weight, used_bias, mode, before), want,
          [&](int64_t r, int64_t c) {
            double magnitude = 2 * std::abs(want.at(r, c));
            if (with_bias) magnitude += 2 * std::abs(bias.at(0, c));
            if (mode == OutputMode::add) magnitude += 2 * std::abs(reference_before.at(r, c));
            return bounds.at(r, c) + rounding * magnitude + 0x1p-24;
          },
          backend->description() + ": linear of " + std::to_string(rows) + " rows, " +
              std::to_string(inputs) + " to " + std::to_string(outputs) + ", x " +
              std::string(dtype_name(x_type)) + ", weights " + std::string(format_name(format)) +
              ", out " + std::string(dtype_name(out_type)));
    }
  }

  /// Bit for bit: a row of a product of so many rows, and of twice the most of these.
  void check_rows_alone(Backend& backend, WeightFormat format,
                        std::initializer_list<int64_t> row_counts, int32_t input_bits = 8) {
    const int64_t most_rows = 2 * std::max(row_counts);
    const DType act = backend.activation_dtype(format);
    std::vector<std::pair<int64_t, int64_t>> shapes = {
        {288, 80}, {64, 32}, {4096, 48}, {11008, 16}};
    // A GPU's blocks have all inputs of so many outputs, and of fewer a part; and long rows.
    if (on_gpu()) shapes.emplace_back(1104, 17008);
    if (on_gpu() && is_coded(format)) shapes.emplace_back(20512, 16);
    for (const auto& shape : shapes) {
      const int64_t inputs = shape.first;
      const int64_t outputs = shape.second;
      if (kSanitized && inputs > 1000) continue;
      const HostTensor x = random_tensor(random_, act, most_rows, inputs);
      const HostTensor before = random_tensor(random_, DType::f32, most_rows, outputs);
      const HostTensor bias = random_tensor(random_, DType::f32, 1, outputs);
      HostWeight weight = random_weight(random_, format, outputs, inputs);
      if (input_bits == 16) weight.take_inputs_of_16_bits();
      // Stored, stored in the activations' type with a bias, added with a bias, and gated.
      const auto results = [&](int64_t rows) {
        const HostTensor some = x.row_range(0, rows);
        return std::array{
            product(backend, some, weight, nullptr, OutputMode::store,
                    HostTensor(DType::f32, rows, outputs)),
            product(backend, some, weight, &bias, OutputMode::store,
                    HostTensor(act, rows, outputs)),
            product(backend, some, weight, &bias, OutputMode::add, before.row_range(0, rows)),
            gated_product(backend, some, weight, HostTensor(act, rows, outputs / 2))};
      };
      const auto all = results(most_rows);
      for (const int64_t rows : row_counts) {
        const auto some = results(rows);
        for (size_t i = 0; i < all.size(); ++i) {
          expect_equal(some[i], all[i].row_range(0, rows),
                       backend.description() + ": " + std::string(format_name(format)) + ", " +
                           std::to_string(inputs) + " to " + std::to_string(outputs) + ", result " +
                           std::to_string(i) + ", " + std::to_string(rows) + " rows");
        }
      }
    }
  }
};
TEST_P(BackendProducts, LinearAgreesForEveryNumberOfRows) {
  for (const WeightFormat format : kWeightFormats) {
    const DType act = backend_->activation_dtype(format);
    for (int64_t rows = 1; rows <= 20; ++rows) {
      if (!tries(format, static_cast<size_t>(rows))) continue;
      check_linear(act, format, DType::f32, rows, 288, 80, false, OutputMode::store);
    }
    for (const int64_t rows : {31, 32, 33, 64, 200}) {
      if (!tries(format, static_cast<size_t>(rows))) continue;
      check_linear(act, format, act, rows, 288, 80, false, OutputMode::store);
    }
  }
}

TEST_P(BackendProducts, LinearAgreesForOddAndLongShapes) {
  constexpr std::pair<int64_t, int64_t> kShapes[] = {
      {1, 1}, {2, 3}, {20, 7}, {48, 33}, {100, 65}, {1000, 16}, {4096, 48}, {11008, 17}};
  for (const WeightFormat format : kWeightFormats) {
    const DType act = backend_->activation_dtype(format);
    size_t i = 0;
    for (const auto& [inputs, outputs] : kShapes) {
      for (const int64_t rows : {1, 2, 5, 9, 17, 64}) {
        if (!tries(format, i++)) continue;
        check_linear(act, format, DType::f32, rows, inputs, outputs, false, OutputMode::store);
      }
    }
  }
}

// Bit for bit: a text does not depend on the batch it is in.
TEST_P(BackendProducts, ARowOfAProductDoesNotDependOnTheOthers) {
  const std::initializer_list<int64_t> row_counts = {1, 2, 5, 8, 9, 16, 17, 32, 33, 64, 100};
  for (const auto& backend : backends_) {
    for (const WeightFormat format : formats_summed_in_order(*backend)) {
      check_rows_alone(*backend, format, row_counts);
      if (format == WeightFormat::bf16)
        check_rows_alone(*backend, WeightFormat::int8, row_counts, 16);
    }
  }
}

// Bit for bit: as many as panels of floats have, one more, in two panels, and in two blocks.
TEST_P(BackendProducts, ARowOfAProductOfFloatsDoesNotDependOnHowManyRowsThereAreBesideMany) {
  for (const auto& backend : backends_) {
    if (backend->description().starts_with("CUDA")) continue;  // by a library
    for (const WeightFormat format : {WeightFormat::f32, WeightFormat::f16}) {
      check_rows_alone(*backend, format, {32, 33, 64, 65, 100, 256, 270});
    }
  }
}

TEST_P(BackendProducts, Int8WeightsTakeInputsOf16Bits) {
  const DType act = backend_->activation_dtype(WeightFormat::int8);
  for (const int64_t rows : {1, 4, 16, 17, 40, 300}) {
    for (const auto& [inputs, outputs] :
         {std::pair<int64_t, int64_t>{288, 80}, {1, 1}, {33, 7}, {1000, 66}, {4096, 48}}) {
      for (const OutputMode mode : {OutputMode::store, OutputMode::add}) {
        check_linear(act, WeightFormat::int8, DType::f32, rows, inputs, outputs, true, mode, 0, 16);
      }
    }
  }
}

TEST_P(BackendProducts, GatesOfInt8WeightsTakeInputsOf16Bits) {
  const DType act = backend_->activation_dtype(WeightFormat::int8);
  for (const int64_t rows : {1, 9, 40}) {
    const HostTensor x = random_tensor(random_, act, rows, 96);
    HostWeight weight = random_weight(random_, WeightFormat::int8, 2 * 48, 96);
    weight.take_inputs_of_16_bits();
    const HostTensor want = gated_product(*reference_, x, weight, HostTensor(DType::f32, rows, 48));
    for (const auto& backend : backends_) {
      expect_near(
          gated_product(*backend, x, weight, HostTensor(act, rows, 48)), want,
          [&](int64_t r, int64_t c) { return 0.04 + std::abs(want.at(r, c)) / 64; },
          backend->description() + ": gated");
    }
  }
}

// One large input leaves eight bits few steps for the others, and does not matter to 16.
TEST_P(BackendProducts, InputsOf16BitsKeepWhatEightBitsLose) {
  constexpr int64_t kRows = 20;
  HostTensor x = random_tensor(random_, backend_->activation_dtype(WeightFormat::int8), kRows, 256);
  for (int64_t r = 0; r < kRows; ++r) x.set(r, r, 100);
  HostWeight weight = random_weight(random_, WeightFormat::int8, 64, 256);
  weight.rotated = false;
  for (int64_t o = 0; o < 64; ++o) {
    for (int64_t r = 0; r < kRows; ++r) weight.values.set(o, r, 0);
  }
  const HostTensor like(DType::f32, kRows, 64);
  const HostTensor want = product(*reference_, x, weight, nullptr, OutputMode::store, like);
  for (const auto& backend : backends_) {
    const auto error = [&](int32_t input_bits) {
      weight.input_bits = input_bits;
      const HostTensor got = product(*backend, x, weight, nullptr, OutputMode::store, like);
      float largest = 0;
      for (int64_t r = 0; r < kRows; ++r) {
        for (int64_t o = 0; o < 64; ++o) {
          largest = std::max(largest, std::abs(got.at(r, o) - want.at(r, o)));
        }
      }
      return largest;
    };
    EXPECT_GT(error(8), 0.3F) << backend->description();
    EXPECT_LT(error(16), 0.03F) << backend->description();
  }
}

// A model that overflows is noticed by its logits, in the text that it overflows in alone.
TEST_P(BackendProducts, ARowThatIsNotFiniteStaysSoAndLeavesTheOthersAlone) {
  constexpr int64_t kInputs = 96;
  constexpr int64_t kOutputs = 64;
  const std::vector<std::pair<int64_t, float>> bad = {{1, INFINITY}, {2, -INFINITY}, {3, NAN}};
  for (const auto& backend : backends_) {
    for (const WeightFormat format : {WeightFormat::f32, WeightFormat::f16, WeightFormat::bf16}) {
      const HostWeight weight = random_weight(random_, format, kOutputs, kInputs);
      for (const int64_t rows : {4, 40}) {
        const HostTensor x = random_tensor(random_, DType::f32, rows, kInputs);
        HostTensor with_bad = x;
        for (const auto& [row, value] : bad) with_bad.set(row, 7 * row, value);
        const auto multiply = [&](const HostTensor& from) {
          return product(*backend, from, weight, nullptr, OutputMode::store,
                         HostTensor(DType::f32, rows, kOutputs));
        };
        const HostTensor want = multiply(x);
        const HostTensor got = multiply(with_bad);
        const std::string what = backend->description() + ", " + std::string(format_name(format)) +
                                 " weights, " + std::to_string(rows) + " rows, row ";
        for (int64_t r = 0; r < rows; ++r) {
          const bool is_bad = std::ranges::any_of(bad, [r](const auto& b) { return b.first == r; });
          for (int64_t c = 0; c < kOutputs; ++c) {
            if (is_bad) {
              EXPECT_FALSE(std::isfinite(got.at(r, c))) << what << r << ", column " << c;
            } else {
              EXPECT_EQ(got.at(r, c), want.at(r, c)) << what << r << ", column " << c;
            }
          }
        }
      }
    }
  }
}

// Bit for bit: a power of two more in a row's scales is one more in its results.
TEST_P(BackendProducts, PowersOfTwoMayBeLarge) {
  constexpr int64_t kInputs = 1056;
  constexpr int64_t kOutputs = 48;
  constexpr int kMore = 20;
  for (const auto& backend : backends_) {
    const DType act = backend->activation_dtype(WeightFormat::mxfp4);
    const HostWeight weight = random_weight(random_, WeightFormat::mxfp4, kOutputs, kInputs);
    HostWeight large = weight;
    const int64_t bytes = row_bytes(WeightFormat::mxfp4, kInputs);
    for (int64_t r = 0; r < kOutputs; r += 3) {
      for (int64_t at = 0; at < bytes; at += packed_block_bytes(WeightFormat::mxfp4)) {
        for (int64_t i = 0; i < described_bytes(WeightFormat::mxfp4); ++i) {
          std::byte& scale = large.values.bytes[static_cast<size_t>(r * bytes + at + i)];
          scale = static_cast<std::byte>(std::to_integer<int>(scale) + kMore);
        }
      }
    }
    for (const int64_t rows : {1, 3, 9, 40}) {
      const HostTensor x = random_tensor(random_, act, rows, kInputs);
      const HostTensor out(DType::f32, rows, kOutputs);
      HostTensor want = product(*backend, x, weight, nullptr, OutputMode::store, out);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t o = 0; o < kOutputs; o += 3) {
          want.set(r, o, std::ldexp(want.at(r, o), kMore));
        }
      }
      expect_equal(product(*backend, x, large, nullptr, OutputMode::store, out), want,
                   backend->description() + ": " + std::to_string(rows) + " rows");
    }
  }
}

// Bit for bit: a router's choice may turn at the last bit. A GPU takes another kernel for as many
// rows as all are.
TEST_P(BackendProducts, ARowOfARoutersProductDoesNotDependOnTheOthers) {
  const int64_t all_rows = on_gpu() ? 1030 : 130;
  for (const auto& backend : backends_) {
    const bool by_library = backend->description().starts_with("CUDA");  // of floats beside floats
    for (const DType act : activation_types()) {
      if (act == DType::f32 && by_library) continue;
      for (const auto& shape : {std::pair<int64_t, int64_t>{288, 8}, {1000, 128}, {64, 1}}) {
        const int64_t inputs = shape.first;
        const int64_t outputs = shape.second;
        const HostTensor x = random_tensor(random_, act, all_rows, inputs);
        const HostTensor bias = random_tensor(random_, DType::f32, 1, outputs);
        const HostWeight weight = random_weight(random_, WeightFormat::f32, outputs, inputs);
        const auto scores = [&](int64_t rows) {
          return product(*backend, x.row_range(0, rows), weight, &bias, OutputMode::store,
                         HostTensor(DType::f32, rows, outputs), Activation::none, true);
        };
        const HostTensor all = scores(all_rows);
        for (const int64_t rows : {1, 2, 7, 16, 33, 64, 100}) {
          expect_equal(scores(rows), all.row_range(0, rows),
                       backend->description() + ": " + std::to_string(inputs) + " to " +
                           std::to_string(outputs) + ", " + std::to_string(rows) + " rows");
        }
      }
    }
  }
}

// Bit for bit, where a GPU takes another kernel for many rows and outputs.
TEST_P(BackendProducts, ManyRowsOfAnInt8ProductAreThoseOfFew) {
  constexpr int64_t kRows = 390;
  constexpr int64_t kInputs = 96;
  constexpr int64_t kFew = 10;
  const DType act = backend_->activation_dtype(WeightFormat::int8);
  const HostTensor x = random_tensor(random_, act, kRows, kInputs);
  for (const bool gated : {false, true}) {
    const int64_t outputs = (gated ? 3312 : 6432) / (on_gpu() ? 1 : 8);
    const HostWeight weight =
        random_weight(random_, WeightFormat::int8, gated ? 2 * outputs : outputs, kInputs);
    const HostTensor bias = random_tensor(random_, DType::f32, 1, outputs);
    for (const DType out_type : {DType::f32, act}) {
      const HostTensor before = random_tensor(random_, out_type, kRows, outputs);
      const auto multiply = [&](const HostTensor& some, const HostTensor& some_before) {
        return gated ? gated_product(*backend_, some, weight, some_before)
                     : product(*backend_, some, weight, &bias, OutputMode::add, some_before);
      };
      const HostTensor all = multiply(x, before);
      for (const int64_t first : {int64_t{0}, int64_t{122}, kRows - kFew}) {
        expect_equal(multiply(x.row_range(first, kFew), before.row_range(first, kFew)),
                     all.row_range(first, kFew),
                     backend_->description() + ": rows from " + std::to_string(first));
      }
    }
  }
}

// Bit for bit: integers are exact in every order.
TEST_P(BackendProducts, InstructionSetsThatAddIntegersAgreeInEveryBit) {
  for (const int64_t rows : {1, 2, 3, 4, 7, 16, 17, 40, 200}) {
    for (const auto& [inputs, outputs] :
         {std::pair<int64_t, int64_t>{1, 1}, {31, 5}, {32, 4}, {33, 7}, {95, 34}, {1000, 130}}) {
      const HostTensor x =
          random_tensor(random_, backend_->activation_dtype(WeightFormat::int8), rows, inputs);
      HostWeight weight = random_weight(random_, WeightFormat::int8, outputs, inputs);
      weight.values.set(0, 0, -128);  // a damaged file's
      const HostTensor like(DType::f32, rows, outputs);
      const HostTensor want = product(*backend_, x, weight, nullptr, OutputMode::store, like);
      for (const auto& backend : backends_) {
        const std::vector<WeightFormat> formats = formats_summed_in_order(*backend);
        if (std::ranges::find(formats, WeightFormat::int8) == formats.end()) continue;
        expect_equal(product(*backend, x, weight, nullptr, OutputMode::store, like), want,
                     backend->description() + ": " + std::to_string(inputs) + " to " +
                         std::to_string(outputs) + ", " + std::to_string(rows) + " rows");
      }
    }
  }
}

TEST_P(BackendProducts, LinearAddsBiasAndResidual) {
  for (const WeightFormat format : kWeightFormats) {
    const DType act = backend_->activation_dtype(format);
    size_t i = 0;
    for (const int64_t rows : {1, 4, 12, 40}) {
      for (const int64_t inputs : {64, 20}) {
        for (const bool bias : {false, true}) {
          for (const DType out : {DType::f32, act}) {
            if (!tries(format, i++)) continue;
            check_linear(act, format, out, rows, inputs, 48, bias, OutputMode::store);
            check_linear(act, format, out, rows, inputs, 48, bias, OutputMode::add);
          }
        }
      }
    }
  }
}

TEST_P(BackendProducts, LinearReadsAndWritesMatricesWithGapsBetweenRows) {
  for (const WeightFormat format : kWeightFormats) {
    const DType act = backend_->activation_dtype(format);
    for (const int64_t rows : {1, 3, 16, 40}) {
      for (const int64_t padding : {1, 16}) {
        check_linear(act, format, act, rows, 128, 64, false, OutputMode::store, padding);
      }
    }
  }
}

TEST_P(BackendProducts, LinearTakesFloatActivationsAndWeightsOfAnotherType) {
  for (const WeightFormat format : kWeightFormats) {
    for (const DType act : {DType::f32, backend_->activation_dtype(WeightFormat::int8)}) {
      for (const int64_t rows : {1, 7, 40}) {
        check_linear(act, format, DType::f32, rows, 96, 50, false, OutputMode::store);
      }
    }
  }
}

TEST_P(BackendProducts, LinearOfZeroRowsInAQuantizedProductIsZero) {
  const HostTensor x(
      HostTensor(backend_->activation_dtype(WeightFormat::int8), 40, 64)
          .map(backend_->activation_dtype(WeightFormat::int8), [](float) { return 0.0F; }));
  const HostWeight weight = random_weight(random_, WeightFormat::int8, 32, 64);
  for (const auto& backend : backends_) {
    expect_equal(
        product(*backend, x, weight, nullptr, OutputMode::store, HostTensor(DType::f32, 40, 32)),
        HostTensor(DType::f32, 40, 32).map(DType::f32, [](float) { return 0.0F; }),
        backend->description() + ": linear of zeros");
  }
}

/// An activation's value, and a bound of its slope where it is within `error` of x.
struct Activated {
  double value;
  double slope;
};

Activated activated(Activation activation, double x, double error) {
  const double positive = std::max(x, 0.0);
  switch (activation) {
    case Activation::none:
      return {x, 1};
    case Activation::silu:
      return {x / (1 + std::exp(-x)), 1.2};
    case Activation::gelu:
      return {x / 2 * (1 + std::erf(x / std::sqrt(2.0))), 1.2};
    case Activation::gelu_tanh:
      return {x / 2 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x))),
              1.2};
    case Activation::relu:
      return {positive, 1};
    case Activation::relu_squared:
      return {positive * positive, 2 * (positive + error)};
    case Activation::tanh:
      return {std::tanh(x), 1};
    case Activation::sigmoid:
      return {1 / (1 + std::exp(-x)), 1};
    case Activation::softplus:
    case Activation::swiglu_clamped:
    case Activation::silu_clamped:
      break;
  }
  throw std::logic_error("unknown activation");
}

constexpr Activation kActivations[] = {
    Activation::none, Activation::silu,         Activation::gelu, Activation::gelu_tanh,
    Activation::relu, Activation::relu_squared, Activation::tanh, Activation::sigmoid};

// The same of a gate, and what it multiplies in the place of `up`.
std::pair<Activated, double> gated(const Gate& as, double gate, double error, double up) {
  if (!is_of_gates(as.activation)) return {activated(as.activation, gate, error), up};
  const double limit = as.limit;
  up = std::clamp(up, -limit, limit);
  if (as.activation == Activation::silu_clamped) {
    return {{std::min(gate / (1 + std::exp(-gate)), limit), 1.2}, up};
  }
  gate = std::min(gate, limit);
  return {{gate / (1 + std::exp(-1.702 * gate)), 1.2}, up + 1};
}

// Against the formulas, which the reference must fulfil too.
TEST_P(BackendProducts, LinearActivatesWhatItStores) {
  constexpr int64_t kInputs = 96;
  constexpr int64_t kOutputs = 50;
  for (const WeightFormat format : kWeightFormats) {
    const DType act = backend_->activation_dtype(format);
    size_t i = 0;
    for (const int64_t rows : {1, 5, 40}) {
      if (!tries(format, i++)) continue;
      // Large numbers too: five deviations of 4.
      const HostTensor x = random_tensor(random_, act, rows, kInputs, 0, 4);
      const HostWeight weight = random_weight(random_, format, kOutputs, kInputs);
      const HostTensor bias = random_tensor(random_, DType::f32, 1, kOutputs);
      const HostTensor bounds = product_bounds(x, weight);
      for (const HostTensor* used_bias : {static_cast<const HostTensor*>(nullptr), &bias}) {
        const HostTensor sums = product(*reference_, x, weight, used_bias, OutputMode::store,
                                        HostTensor(DType::f32, rows, kOutputs));
        for (const Activation activation : kActivations) {
          HostTensor want(DType::f32, rows, kOutputs);
          HostTensor limits(DType::f32, rows, kOutputs);
          for (int64_t r = 0; r < rows; ++r) {
            for (int64_t c = 0; c < kOutputs; ++c) {
              const double sum = sums.at(r, c);
              const double error = bounds.at(r, c) + 1e-6 * std::abs(sum);
              const auto [value, slope] = activated(activation, sum, error);
              want.set(r, c, static_cast<float>(value));
              limits.set(
                  r, c,
                  static_cast<float>(slope * error + unit_roundoff(act) * std::abs(value) + 1e-6));
            }
          }
          const auto check = [&](Backend& backend, DType out) {
            expect_near(
                product(backend, x, weight, used_bias, OutputMode::store,
                        HostTensor(out, rows, kOutputs, 3), activation),
                want, [&](int64_t r, int64_t c) { return limits.at(r, c); },
                backend.description() + ": linear with activation " +
                    std::to_string(static_cast<int>(activation)) + ", " + std::to_string(rows) +
                    " rows, " + std::string(format_name(format)));
          };
          check(*reference_, DType::f32);
          for (const auto& backend : backends_) check(*backend, act);
        }
      }
    }
  }
}

// Against the formulas, which the reference must fulfil too.
TEST_P(BackendProducts, GatedLinearTakesEveryActivationAndBiases) {
  constexpr int64_t kInputs = 96;
  constexpr int64_t kOutputs = 33;
  std::vector<Gate> gates(std::begin(kActivations), std::end(kActivations));
  for (const Activation of_gates : {Activation::swiglu_clamped, Activation::silu_clamped}) {
    for (const float limit : {1.5F, 7.0F}) gates.emplace_back(of_gates, limit);
  }
  for (const WeightFormat format : kWeightFormats) {
    const DType act = backend_->activation_dtype(format);
    const double rounding = unit_roundoff(act);
    size_t i = 0;
    for (const int64_t rows : {1, 5, 40}) {
      if (!tries(format, i++)) continue;
      const HostTensor x = random_tensor(random_, act, rows, kInputs, 0, 4);
      const HostWeight weight = random_weight(random_, format, 2 * kOutputs, kInputs);
      const HostTensor bias = random_tensor(random_, DType::f32, 1, 2 * kOutputs);
      const HostTensor bounds = product_bounds(x, weight);
      for (const HostTensor* used_bias : {static_cast<const HostTensor*>(nullptr), &bias}) {
        const HostTensor sums = product(*reference_, x, weight, used_bias, OutputMode::store,
                                        HostTensor(DType::f32, rows, 2 * kOutputs));
        for (const Gate& as : gates) {
          HostTensor want(DType::f32, rows, kOutputs);
          HostTensor limits(DType::f32, rows, kOutputs);
          for (int64_t r = 0; r < rows; ++r) {
            for (int64_t c = 0; c < kOutputs; ++c) {
              const double gate = sums.at(r, c);
              const double given_up = sums.at(r, c + kOutputs);
              const double gate_error = bounds.at(r, c) + (rounding + 1e-6) * std::abs(gate);
              const double up_error =
                  bounds.at(r, c + kOutputs) + (rounding + 1e-6) * std::abs(given_up);
              const auto [its, up] = gated(as, gate, gate_error, given_up);
              const auto [value, slope] = its;
              want.set(r, c, static_cast<float>(value * up));
              limits.set(r, c,
                         static_cast<float>(slope * gate_error * (std::abs(up) + up_error) +
                                            std::abs(value) * up_error +
                                            (rounding + 1e-6) * std::abs(value * up) + 1e-6));
            }
          }
          const auto check = [&](Backend& backend, DType out) {
            expect_near(
                gated_product(backend, x, weight, HostTensor(out, rows, kOutputs, 3), used_bias,
                              as),
                want, [&](int64_t r, int64_t c) { return limits.at(r, c); },
                backend.description() + ": gated_linear with activation " +
                    std::to_string(static_cast<int>(as.activation)) + ", limit " +
                    std::to_string(as.limit) + ", " + std::to_string(rows) + " rows, " +
                    std::string(format_name(format)));
          };
          check(*reference_, DType::f32);
          for (const auto& backend : backends_) check(*backend, act);
        }
      }
    }
  }
}

TEST_P(BackendProducts, GatedLinearAgreesWithTheReference) {
  constexpr std::pair<int64_t, int64_t> kShapes[] = {{20, 7}, {64, 33}, {288, 96}, {4096, 24}};
  for (const WeightFormat format : kWeightFormats) {
    const DType act = backend_->activation_dtype(format);
    const double rounding = unit_roundoff(act);
    size_t i = 0;
    for (const auto& shape : kShapes) {
      const int64_t inputs = shape.first;
      const int64_t n = shape.second;
      for (const int64_t rows : {1, 2, 8, 9, 16, 17, 33, 64, 200}) {
        if (!tries(format, i++)) continue;
        if (kSanitized && inputs > 1000 && rows > 9) continue;
        const HostTensor x = random_tensor(random_, act, rows, inputs);
        const HostWeight weight = random_weight(random_, format, 2 * n, inputs);
        const auto gated = [&](Backend& backend, DType out_type) {
          return gated_product(backend, x, weight, HostTensor(out_type, rows, n, 8));
        };
        const HostTensor want = gated(*reference_, DType::f32);
        const HostTensor products = product(*reference_, x, weight, nullptr, OutputMode::store,
                                            HostTensor(DType::f32, rows, 2 * n));
        const HostTensor bounds = product_bounds(x, weight);
        // d(silu(g) u) <= 1.1 |u| dg + |silu(g)| du, where products may be rounded to act on the
        // way.
        for (const auto& backend : backends_) {
          expect_near(
              gated(*backend, act), want,
              [&](int64_t r, int64_t c) {
                const double gate = products.at(r, c);
                const double up = products.at(r, c + n);
                const double gate_error = bounds.at(r, c) + rounding * std::abs(gate);
                const double up_error = bounds.at(r, c + n) + rounding * std::abs(up);
                const double silu = std::abs(gate / (1 + std::exp(-gate)));
                return 1.1 * std::abs(up) * gate_error + silu * up_error + gate_error * up_error +
                       (rounding + 1e-6) * std::abs(want.at(r, c)) + 1e-7;
              },
              backend->description() + ": gated_linear of " + std::to_string(rows) + " rows, " +
                  std::to_string(inputs) + " to " + std::to_string(n) + ", " +
                  std::string(format_name(format)));
        }
      }
    }
  }
}

TEST_P(BackendProducts, OfHeadsAgree) {
  for (const WeightFormat format : kWeightFormats) {
    size_t i = 0;
    for (const int64_t rows : {1, 2, 5, 33, 100}) {
      if (!tries(format, i++)) continue;
      check_heads(format, {5, 12, 18, 28}, rows);
      check_heads(format, {3, 7, 33, 1}, rows);
      check_heads(format, {1, 0, 40, 50}, rows);
      if (kSanitized) continue;
      check_heads(format, {16, 64, 128, 512}, rows);
      check_heads(format, {16, 0, 512, 128}, rows);
    }
  }
}

FASTSTREAM_INSTANTIATE_BACKENDS(BackendProducts);

}  // namespace
}  // namespace faststream
