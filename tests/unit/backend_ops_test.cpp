// Every operation but attention and sampling, compared with the plain float reference.
#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "unit/backend_fixture.h"

namespace faststream {
namespace {

class BackendOps : public BackendTest {
 protected:
  struct WeightCase {
    HostTensor values;
    HostTensor scales;  // i8 only
  };

  WeightCase random_weight(DType dtype, int64_t outputs, int64_t inputs) {
    const float deviation = 1.0F / std::sqrt(static_cast<float>(inputs));
    WeightCase weight;
    weight.values = random_tensor(random_, dtype, outputs, inputs, 0, deviation);
    if (dtype == DType::i8) {
      weight.scales = HostTensor(DType::f32, 1, outputs);
      std::uniform_real_distribution<float> factor(0.5F, 1.5F);
      for (int64_t o = 0; o < outputs; ++o) {
        weight.scales.set(0, o, factor(random_) * deviation / 73);
      }
    }
    return weight;
  }

  /// x Wᵀ (+ bias, + before) by `backend`.
  static HostTensor product(Backend& backend, const HostTensor& x, const WeightCase& weight,
                            const HostTensor* bias, Output mode, const HostTensor& before) {
    const DeviceTensor device_x(backend, x);
    const DeviceTensor values(backend, weight.values);
    const DeviceTensor scales(backend, weight.scales);
    const DeviceTensor device_bias(backend, bias != nullptr ? *bias : HostTensor());
    const DeviceTensor out(backend, before);
    backend.linear(
        device_x.matrix(), values.weight(weight.values.dtype == DType::i8 ? &scales : nullptr),
        {.bias = bias != nullptr ? static_cast<const float*>(device_bias.data()) : nullptr,
         .output = mode},
        out.matrix());
    return out.fetch();
  }

  /// silu(x Gᵀ) * x Uᵀ by `backend`, of the type and shape of `like`.
  static HostTensor gated_product(Backend& backend, const HostTensor& x, const WeightCase& gate_up,
                                  const HostTensor& like) {
    const DeviceTensor device_x(backend, x);
    const DeviceTensor values(backend, gate_up.values);
    const DeviceTensor scales(backend, gate_up.scales);
    const DeviceTensor out(backend, like);
    backend.gated_linear(device_x.matrix(),
                         values.weight(gate_up.values.dtype == DType::i8 ? &scales : nullptr),
                         nullptr, Activation::silu, out.matrix());
    return out.fetch();
  }

  /// The weights beside which a row's result has the same bits whatever the number of rows. For
  /// 16-bit ones this holds on tensor cores and tiles, which round activations; float sums are so
  /// exact that their order does not matter to a text. For i8 it holds where integers are added.
  static std::vector<DType> types_summed_in_order(const Backend& backend) {
    const std::string device = backend.description();
    const auto has = [&](const char* name) { return device.find(name) != std::string::npos; };
    if (has("CUDA")) return {DType::i8, DType::bf16, DType::f16};
    if (has("AMX") || has("BF16")) return {DType::i8, DType::bf16};
    if (has("VNNI") || has("AVX2")) return {DType::i8};
    return {};
  }

  /// Bounds of a product's error, [rows, outputs]. Independent roundings add up like a random walk:
  /// - float32 sums: four deviations, of the sum of magnitudes;
  /// - f32 x beside 16-bit weights, which a backend may round to their type: six deviations of
  ///   relative errors that are uniform within the unit roundoff;
  /// - x beside i8 weights, which a backend may quantize by row to eight bits: six deviations of
  ///   errors uniform within half a step.
  static HostTensor product_bounds(const HostTensor& x, const WeightCase& weight) {
    const DType type = weight.values.dtype;
    const bool rounded = x.dtype == DType::f32 && (type == DType::f16 || type == DType::bf16);
    HostTensor bounds(DType::f32, x.rows, weight.values.rows);
    for (int64_t r = 0; r < x.rows; ++r) {
      float largest = 0;
      for (int64_t c = 0; c < x.cols; ++c) largest = std::max(largest, std::abs(x.at(r, c)));
      for (int64_t o = 0; o < weight.values.rows; ++o) {
        double magnitudes = 0;
        double products_squared = 0;
        double weights_squared = 0;
        for (int64_t c = 0; c < x.cols; ++c) {
          const double w = weight.values.at(o, c);
          const double term = x.at(r, c) * w;
          magnitudes += std::abs(term);
          products_squared += term * term;
          weights_squared += w * w;
        }
        double bound = 4 * std::sqrt(static_cast<double>(x.cols)) * 0x1p-24 * magnitudes;
        if (rounded) bound += 6 * unit_roundoff(type) * std::sqrt(products_squared / 3);
        if (type == DType::i8) {
          const double step = largest / 127.0;
          bound += 6 * step * std::sqrt(weights_squared / 12);
          bound *= weight.scales.at(0, o);
        }
        bounds.set(r, o, static_cast<float>(bound + 1e-30));
      }
    }
    return bounds;
  }

  void check_linear(DType x_type, DType weight_type, DType out_type, int64_t rows, int64_t inputs,
                    int64_t outputs, bool with_bias, Output mode, int64_t padding = 0) {
    const HostTensor x = random_tensor(random_, x_type, rows, inputs, padding);
    const WeightCase weight = random_weight(weight_type, outputs, inputs);
    const HostTensor bias = random_tensor(random_, DType::f32, 1, outputs);
    const HostTensor before = mode == Output::add
                                  ? random_tensor(random_, out_type, rows, outputs, padding)
                                  : HostTensor(out_type, rows, outputs, padding);
    HostTensor reference_before(DType::f32, rows, outputs);
    if (mode == Output::add) {
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
            if (mode == Output::add) magnitude += 2 * std::abs(reference_before.at(r, c));
            return bounds.at(r, c) + rounding * magnitude + 0x1p-24;
          },
          backend->description() + ": linear of " + std::to_string(rows) + " rows, " +
              std::to_string(inputs) + " to " + std::to_string(outputs) + ", x " +
              std::string(dtype_name(x_type)) + ", weights " +
              std::string(dtype_name(weight_type)) + ", out " + std::string(dtype_name(out_type)));
    }
  }

  /// Bit for bit: a row of a product alone, with others, and with many.
  void check_rows_alone(Backend& backend, DType type) {
    constexpr int64_t kRows = 200;
    const DType act = backend.activation_dtype(type);
    for (const auto& shape : {std::pair{288, 80}, {64, 32}, {4096, 48}, {11008, 16}}) {
      const int64_t inputs = shape.first;
      const int64_t outputs = shape.second;
      const HostTensor x = random_tensor(random_, act, kRows, inputs);
      const HostTensor before = random_tensor(random_, DType::f32, kRows, outputs);
      const HostTensor bias = random_tensor(random_, DType::f32, 1, outputs);
      const WeightCase weight = random_weight(type, outputs, inputs);
      const auto first_rows = [](const HostTensor& all, int64_t rows) {
        HostTensor part(all.dtype, rows, all.cols);
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < all.cols; ++c) part.set(r, c, all.at(r, c));
        }
        return part;
      };
      // Stored, stored in the activations' type with a bias, added with a bias, and gated.
      const auto results = [&](int64_t rows) {
        const HostTensor some = first_rows(x, rows);
        return std::array{
            product(backend, some, weight, nullptr, Output::store,
                    HostTensor(DType::f32, rows, outputs)),
            product(backend, some, weight, &bias, Output::store, HostTensor(act, rows, outputs)),
            product(backend, some, weight, &bias, Output::add, first_rows(before, rows)),
            gated_product(backend, some, weight, HostTensor(act, rows, outputs / 2))};
      };
      const auto all = results(kRows);
      for (const int64_t rows : {1, 2, 5, 8, 9, 16, 17, 32, 33, 64, 100}) {
        const auto some = results(rows);
        for (size_t i = 0; i < all.size(); ++i) {
          for (int64_t r = 0; r < rows; ++r) {
            for (int64_t c = 0; c < all[i].cols; ++c) {
              ASSERT_EQ(some[i].at(r, c), all[i].at(r, c))
                  << dtype_name(type) << ", " << inputs << " to " << outputs << ", result " << i
                  << ", row " << r << " of " << rows << ", output " << c;
            }
          }
        }
      }
    }
  }
};

TEST_P(BackendOps, EmbedCopiesRowsOfTheTable) {
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    for (const int64_t hidden : {2, 20, 257, 1024}) {
      const HostTensor table = random_tensor(random_, type, 100, hidden);
      const Batch batch = make_batch(random_, {{7, 7}, {1, 3}}, 2);
      for (const auto& backend : backends_) {
        const DeviceTensor device_table(*backend, table);
        const DeviceTensor out(*backend, HostTensor(DType::f32, 8, hidden, 4));
        backend->embed(backend->upload(batch), {.table = device_table.weight()}, out.matrix());
        const HostTensor got = out.fetch();
        for (int64_t t = 0; t < 8; ++t) {
          for (int64_t c = 0; c < hidden; ++c) {
            ASSERT_EQ(got.at(t, c), table.at(batch.tokens[static_cast<size_t>(t)], c))
                << backend->description() << ": token " << t << ", column " << c;
          }
        }
      }
    }
  }
}

TEST_P(BackendOps, RmsNormAgreesWithTheReference) {
  for (const DType type : activation_types()) {
    for (const int64_t cols : {1, 20, 288, 1023, 4096, 5120}) {
      for (const int64_t rows : {1, 3, 33}) {
        const HostTensor x = random_tensor(random_, DType::f32, rows, cols, 4, 3);
        const HostTensor weight = random_tensor(random_, DType::f32, 1, cols);
        const auto normalize = [&](Backend& backend, DType out_type) {
          const DeviceTensor device_x(backend, x);
          const DeviceTensor device_weight(backend, weight);
          const DeviceTensor out(backend, HostTensor(out_type, rows, cols, 8));
          backend.norm(
              device_x.matrix(),
              {NormKind::rms, static_cast<const float*>(device_weight.data()), nullptr, 1e-5F},
              Output::store, out.matrix());
          return out.fetch();
        };
        const HostTensor want = normalize(*reference_, DType::f32);
        for (const auto& backend : backends_) {
          expect_near(
              normalize(*backend, type), want,
              [&](int64_t r, int64_t c) {
                return (unit_roundoff(type) + 2e-6) * std::abs(want.at(r, c)) + 1e-7;
              },
              backend->description() + ": rms_norm of " + std::to_string(rows) + " rows of " +
                  std::to_string(cols));
        }
      }
    }
  }
}

TEST_P(BackendOps, LinearAgreesForEveryNumberOfRows) {
  for (const DType weight : {DType::f32, DType::f16, DType::bf16, DType::i8}) {
    const DType act = backend_->activation_dtype(weight);
    for (int64_t rows = 1; rows <= 20; ++rows) {
      check_linear(act, weight, DType::f32, rows, 288, 80, false, Output::store);
    }
    for (const int64_t rows : {31, 32, 33, 64, 200}) {
      check_linear(act, weight, act, rows, 288, 80, false, Output::store);
    }
  }
}

TEST_P(BackendOps, LinearAgreesForOddAndLongShapes) {
  constexpr std::pair<int64_t, int64_t> kShapes[] = {
      {1, 1}, {2, 3}, {20, 7}, {48, 33}, {100, 65}, {1000, 16}, {4096, 48}, {11008, 17}};
  for (const DType weight : {DType::f32, DType::f16, DType::bf16, DType::i8}) {
    const DType act = backend_->activation_dtype(weight);
    for (const auto& [inputs, outputs] : kShapes) {
      for (const int64_t rows : {1, 2, 5, 9, 17, 64}) {
        check_linear(act, weight, DType::f32, rows, inputs, outputs, false, Output::store);
      }
    }
  }
}

// Bit for bit: a text does not depend on its company.
TEST_P(BackendOps, ARowOfAProductDoesNotDependOnTheOthers) {
  for (const auto& backend : backends_) {
    for (const DType type : types_summed_in_order(*backend)) check_rows_alone(*backend, type);
  }
}

// Bit for bit, where a GPU takes another kernel for many rows and outputs.
TEST_P(BackendOps, ManyRowsOfAnInt8ProductAreThoseOfFew) {
  constexpr int64_t kRows = 390;
  constexpr int64_t kInputs = 96;
  constexpr int64_t kFew = 10;
  const DType act = backend_->activation_dtype(DType::i8);
  const HostTensor x = random_tensor(random_, act, kRows, kInputs);
  for (const bool gated : {false, true}) {
    const int64_t outputs = gated ? 3312 : 6432;
    const WeightCase weight = random_weight(DType::i8, gated ? 2 * outputs : outputs, kInputs);
    const HostTensor bias = random_tensor(random_, DType::f32, 1, outputs);
    for (const DType out_type : {DType::f32, act}) {
      const HostTensor before = random_tensor(random_, out_type, kRows, outputs);
      const auto rows_of = [](const HostTensor& all, int64_t first) {
        HostTensor some(all.dtype, kFew, all.cols);
        for (int64_t r = 0; r < kFew; ++r) {
          for (int64_t c = 0; c < all.cols; ++c) some.set(r, c, all.at(first + r, c));
        }
        return some;
      };
      const auto multiply = [&](const HostTensor& some, const HostTensor& some_before) {
        return gated ? gated_product(*backend_, some, weight, some_before)
                     : product(*backend_, some, weight, &bias, Output::add, some_before);
      };
      const HostTensor all = multiply(x, before);
      for (const int64_t first : {int64_t{0}, int64_t{122}, kRows - kFew}) {
        const HostTensor few = multiply(rows_of(x, first), rows_of(before, first));
        for (int64_t r = 0; r < kFew; ++r) {
          for (int64_t c = 0; c < outputs; ++c) {
            ASSERT_EQ(all.at(first + r, c), few.at(r, c))
                << backend_->description() << ", row " << first + r << ", output " << c;
          }
        }
      }
    }
  }
}

// Bit for bit: integers are exact in every order.
TEST_P(BackendOps, InstructionSetsThatAddIntegersAgreeInEveryBit) {
  for (const int64_t rows : {1, 2, 3, 4, 7, 16, 17, 40, 200}) {
    for (const auto& [inputs, outputs] :
         {std::pair<int64_t, int64_t>{1, 1}, {31, 5}, {32, 4}, {33, 7}, {95, 34}, {1000, 130}}) {
      const HostTensor x =
          random_tensor(random_, backend_->activation_dtype(DType::i8), rows, inputs);
      WeightCase weight = random_weight(DType::i8, outputs, inputs);
      weight.values.set(0, 0, -128);  // a damaged file's
      const HostTensor like(DType::f32, rows, outputs);
      const HostTensor want = product(*backend_, x, weight, nullptr, Output::store, like);
      for (const auto& backend : backends_) {
        const std::vector<DType> types = types_summed_in_order(*backend);
        if (std::find(types.begin(), types.end(), DType::i8) == types.end()) continue;
        const HostTensor got = product(*backend, x, weight, nullptr, Output::store, like);
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < outputs; ++c) {
            ASSERT_EQ(got.at(r, c), want.at(r, c))
                << backend->description() << ", " << inputs << " to " << outputs << ", row " << r
                << " of " << rows << ", output " << c;
          }
        }
      }
    }
  }
}

TEST_P(BackendOps, LinearAddsBiasAndResidual) {
  for (const DType weight : {DType::f32, DType::f16, DType::bf16, DType::i8}) {
    const DType act = backend_->activation_dtype(weight);
    for (const int64_t rows : {1, 4, 12, 40}) {
      for (const int64_t inputs : {64, 20}) {
        for (const bool bias : {false, true}) {
          for (const DType out : {DType::f32, act}) {
            check_linear(act, weight, out, rows, inputs, 48, bias, Output::store);
            check_linear(act, weight, out, rows, inputs, 48, bias, Output::add);
          }
        }
      }
    }
  }
}

TEST_P(BackendOps, LinearReadsAndWritesMatricesWithGapsBetweenRows) {
  for (const DType weight : {DType::f32, DType::f16, DType::bf16, DType::i8}) {
    const DType act = backend_->activation_dtype(weight);
    for (const int64_t rows : {1, 3, 16, 40}) {
      for (const int64_t padding : {1, 16}) {
        check_linear(act, weight, act, rows, 128, 64, false, Output::store, padding);
      }
    }
  }
}

TEST_P(BackendOps, LinearTakesFloatActivationsAndWeightsOfAnotherType) {
  for (const DType weight : {DType::f32, DType::f16, DType::bf16, DType::i8}) {
    for (const DType act : {DType::f32, backend_->activation_dtype(DType::i8)}) {
      for (const int64_t rows : {1, 7, 40}) {
        check_linear(act, weight, DType::f32, rows, 96, 50, false, Output::store);
      }
    }
  }
}

TEST_P(BackendOps, LinearOfZeroRowsInAQuantizedProductIsZero) {
  const HostTensor x(HostTensor(backend_->activation_dtype(DType::i8), 40, 64)
                         .map(backend_->activation_dtype(DType::i8), [](float) { return 0.0F; }));
  const WeightCase weight = random_weight(DType::i8, 32, 64);
  for (const auto& backend : backends_) {
    expect_near(
        product(*backend, x, weight, nullptr, Output::store, HostTensor(DType::f32, 40, 32)),
        HostTensor(DType::f32, 40, 32).map(DType::f32, [](float) { return 0.0F; }),
        [](int64_t, int64_t) { return 0.0; }, backend->description() + ": linear of zeros");
  }
}

TEST_P(BackendOps, GatedLinearAgreesWithTheReference) {
  constexpr std::pair<int64_t, int64_t> kShapes[] = {{20, 7}, {64, 33}, {288, 96}, {4096, 24}};
  for (const DType weight_type : {DType::f32, DType::f16, DType::bf16, DType::i8}) {
    const DType act = backend_->activation_dtype(weight_type);
    const double rounding = unit_roundoff(act);
    for (const auto& shape : kShapes) {
      const int64_t inputs = shape.first;
      const int64_t n = shape.second;
      for (const int64_t rows : {1, 2, 8, 9, 16, 17, 33, 64, 200}) {
        const HostTensor x = random_tensor(random_, act, rows, inputs);
        const WeightCase weight = random_weight(weight_type, 2 * n, inputs);
        const auto gated = [&](Backend& backend, DType out_type) {
          return gated_product(backend, x, weight, HostTensor(out_type, rows, n, 8));
        };
        const HostTensor want = gated(*reference_, DType::f32);
        const HostTensor products = product(*reference_, x, weight, nullptr, Output::store,
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
                  std::string(dtype_name(weight_type)));
        }
      }
    }
  }
}

TEST_P(BackendOps, RopeTableAgreesFarIntoTheContext) {
  const Batch batch = make_batch(random_, {{5, 5}, {1, 131072}, {40, 4096}}, 4225);
  for (const int64_t dim : {2, 20, 128, 256}) {
    HostTensor inv_freq(DType::f32, 1, dim / 2);
    for (int64_t i = 0; i < dim / 2; ++i) {
      inv_freq.set(0, i,
                   std::pow(10000.0F, -2.0F * static_cast<float>(i) / static_cast<float>(dim)));
    }
    const auto table = [&](Backend& backend) {
      const DeviceTensor device_freq(backend, inv_freq);
      const DeviceTensor out(backend, HostTensor(DType::f32, batch.n_tokens(), dim));
      backend.rope_table(backend.upload(batch), static_cast<const float*>(device_freq.data()), 1,
                         out.matrix());
      return out.fetch();
    };
    expect_near(
        table(*backend_), table(*reference_), [](int64_t, int64_t) { return 3e-7; },
        "rope_table of head_dim " + std::to_string(dim));
  }
}

TEST_P(BackendOps, GatherRowsCopiesTheWantedRows) {
  Batch batch = make_batch(random_, {{9, 9}, {1, 40}, {33, 64}}, 5);
  batch.logit_rows = {42, 0, 9, 9};
  for (const int64_t cols : {1, 20, 1000}) {
    const HostTensor x = random_tensor(random_, DType::f32, batch.n_tokens(), cols, 3);
    const DeviceTensor device_x(*backend_, x);
    const DeviceTensor out(*backend_, HostTensor(DType::f32, batch.n_logits(), cols, 5));
    backend_->gather_rows(backend_->upload(batch), device_x.matrix(), out.matrix());
    expect_near(
        out.fetch(),
        [&] {
          HostTensor want(DType::f32, batch.n_logits(), cols);
          for (int64_t r = 0; r < want.rows; ++r) {
            for (int64_t c = 0; c < cols; ++c) {
              want.set(r, c, x.at(batch.logit_rows[static_cast<size_t>(r)], c));
            }
          }
          return want;
        }(),
        [](int64_t, int64_t) { return 0.0; }, "gather_rows");
  }
}

TEST_P(BackendOps, CopyPagesCopiesWholePagesInAllLayersAndNothingElse) {
  constexpr int32_t kPages = 300;
  constexpr int32_t kHeads = 3;
  constexpr int32_t kDim = 10;
  const DType type = backend_->kv_dtype(DType::bf16);
  std::vector<PageCopy> copies;
  for (int32_t i = 0; i < 140; ++i) copies.push_back({i, kPages - 1 - i});
  std::vector<HostTensor> before;
  std::vector<DeviceTensor> device;
  for (int i = 0; i < 4; ++i) {
    before.push_back(random_tensor(random_, type, kPages, kHeads * kPageTokens * kDim));
    device.emplace_back(*backend_, before.back());
  }
  std::vector<KvLayer> layers;
  for (size_t i = 0; i < 4; i += 2) {
    layers.push_back({device[i].data(), device[i + 1].data(), type, kPages, kHeads, kDim});
  }
  backend_->copy_pages(layers, copies);
  for (size_t i = 0; i < 4; ++i) {
    HostTensor want = before[i];
    const size_t page_bytes = want.bytes.size() / kPages;
    for (const PageCopy& copy : copies) {
      std::copy_n(before[i].bytes.begin() + static_cast<std::ptrdiff_t>(copy.from * page_bytes),
                  page_bytes,
                  want.bytes.begin() + static_cast<std::ptrdiff_t>(copy.to * page_bytes));
    }
    EXPECT_EQ(device[i].fetch().bytes, want.bytes) << "cache " << i;
  }
}

FASTSTREAM_INSTANTIATE_BACKENDS(BackendOps);

}  // namespace
}  // namespace faststream
