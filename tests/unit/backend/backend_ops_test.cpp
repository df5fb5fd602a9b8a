// Every operation but products, rotation, attention and sampling, compared with the plain float
// reference.
#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "unit/backend/backend_fixture.h"

namespace faststream {
namespace {

using BackendOps = BackendTest;

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

TEST_P(BackendOps, EmbedTakesTokensThatWereChosenAndNobodyRead) {
  constexpr int64_t kHidden = 50;
  const HostTensor table = random_tensor(random_, DType::bf16, 100, kHidden);
  const HostTensor logits = random_tensor(random_, DType::f32, 3, 100);
  std::vector<SamplingRow> rules(3);
  rules[1] = {.temperature = 1, .seed = 7, .position = 2, .n_logprobs = 2};
  Batch batch = make_batch(random_, {{1, 30}, {1, 64}, {2, 2}}, 5);
  batch.tokens = {chosen_from(2), chosen_from(1), 5, chosen_from(0)};
  const auto check = [&](Backend& backend) {
    const DeviceTensor device_table(backend, table);
    const DeviceTensor device_logits(backend, logits);
    const DeviceTensor out(backend, HostTensor(DType::f32, 4, kHidden, 4));
    const std::unique_ptr<Choices> choices = backend.choose(device_logits.matrix(), rules);
    backend.embed(backend.upload(batch), {.table = device_table.weight()}, out.matrix());
    choices->wait();
    std::array<SampledToken, 3> chosen;
    for (size_t r = 0; r < chosen.size(); ++r) choices->read(r, chosen[r]);
    const HostTensor got = out.fetch();
    const std::array tokens = {chosen[2].token, chosen[1].token, 5, chosen[0].token};
    for (size_t t = 0; t < tokens.size(); ++t) {
      for (int64_t c = 0; c < kHidden; ++c) {
        ASSERT_EQ(got.at(static_cast<int64_t>(t), c), table.at(tokens[t], c))
            << backend.description() << ": token " << t << ", column " << c;
      }
    }
  };
  ASSERT_TRUE(reference_->keeps_choices());
  check(*reference_);
  for (const auto& backend : backends_) {
    ASSERT_TRUE(backend->keeps_choices());
    check(*backend);
  }
}

TEST_P(BackendOps, EmbedAddsTheRowOfEachSegmentOrTheFirst) {
  constexpr int64_t kHidden = 50;
  Batch batch = make_batch(random_, {{7, 7}, {1, 30}, {2, 64}}, 5);
  for (const WeightFormat format : kFloatFormats) {
    const HostTensor table = random_tensor(random_, stored_type(format), 100, kHidden);
    const HostTensor segments = random_tensor(random_, stored_type(format), 3, kHidden);
    for (const bool given : {false, true}) {
      batch.segments.clear();
      for (int32_t t = 0; given && t < batch.n_tokens(); ++t) batch.segments.push_back(t % 3);
      const auto check = [&](Backend& backend) {
        const DeviceTensor device_table(backend, table);
        const DeviceTensor device_segments(backend, segments);
        const DeviceTensor out(backend, HostTensor(DType::f32, batch.n_tokens(), kHidden, 4));
        backend.embed(backend.upload(batch),
                      {.table = device_table.weight(), .segments = device_segments.weight()},
                      out.matrix());
        HostTensor want(DType::f32, batch.n_tokens(), kHidden);
        for (int64_t t = 0; t < want.rows; ++t) {
          for (int64_t c = 0; c < kHidden; ++c) {
            want.set(t, c,
                     table.at(batch.tokens[static_cast<size_t>(t)], c) +
                         segments.at(given ? t % 3 : 0, c));
          }
        }
        expect_near(
            out.fetch(), want, [](int64_t, int64_t) { return 1e-6; },
            backend.description() + ": embed with segments");
      };
      check(*reference_);
      for (const auto& backend : backends_) check(*backend);
    }
  }
}

TEST_P(BackendOps, EmbedMultipliesRowsAndAddsPositions) {
  constexpr int64_t kHidden = 50;
  const Batch batch = make_batch(random_, {{7, 7}, {1, 30}, {2, 64}}, 5);
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    const HostTensor table = random_tensor(random_, type, 100, kHidden);
    const HostTensor positions = random_tensor(random_, type, 66, kHidden);
    for (const int32_t offset : {0, 2}) {
      const auto check = [&](Backend& backend) {
        const DeviceTensor device_table(backend, table);
        const DeviceTensor device_positions(backend, positions);
        const DeviceTensor out(backend, HostTensor(DType::f32, batch.n_tokens(), kHidden, 4));
        backend.embed(backend.upload(batch),
                      {.table = device_table.weight(),
                       .multiplier = 0.3F,
                       .positions = device_positions.weight(),
                       .offset = offset},
                      out.matrix());
        HostTensor want(DType::f32, batch.n_tokens(), kHidden);
        for (int64_t t = 0; t < want.rows; ++t) {
          const int64_t row = batch.positions[static_cast<size_t>(t)] + offset;
          for (int64_t c = 0; c < kHidden; ++c) {
            want.set(
                t, c,
                0.3F * table.at(batch.tokens[static_cast<size_t>(t)], c) + positions.at(row, c));
          }
        }
        expect_near(
            out.fetch(), want, [](int64_t, int64_t) { return 1e-6; },
            backend.description() + ": embed with positions");
      };
      check(*reference_);
      for (const auto& backend : backends_) check(*backend);
    }
  }
}

// Against the formulas, which the reference must fulfil too.
TEST_P(BackendOps, NormFulfilsItsFormulas) {
  constexpr float kEps = 1e-5F;
  for (const DType type : activation_types()) {
    for (const int64_t cols : {1, 20, 256, 288, 512, 1023, 1024, 1032, 5120}) {
      for (const int64_t rows : {1, 5}) {
        // Rows far from zero, whose deviations are less than their means.
        const HostTensor x =
            random_tensor(random_, DType::f32, rows, cols, 4, 3).map(DType::f32, [](float v) {
              return v + 10;
            });
        const HostTensor weight = random_tensor(random_, DType::f32, 1, cols);
        const HostTensor bias = random_tensor(random_, DType::f32, 1, cols);
        for (const NormKind kind : {NormKind::none, NormKind::rms, NormKind::layer}) {
          for (const bool has_bias : {false, true}) {
            if (has_bias && kind != NormKind::layer) continue;
            HostTensor want(DType::f32, rows, cols);
            for (int64_t r = 0; r < rows; ++r) {
              double mean = 0;
              double squares = 0;
              for (int64_t c = 0; c < cols; ++c) mean += x.at(r, c) / static_cast<double>(cols);
              if (kind != NormKind::layer) mean = 0;
              for (int64_t c = 0; c < cols; ++c) squares += std::pow(x.at(r, c) - mean, 2);
              const double divisor = std::sqrt(squares / static_cast<double>(cols) + kEps);
              for (int64_t c = 0; c < cols; ++c) {
                const double normal = (x.at(r, c) - mean) / divisor * weight.at(0, c);
                want.set(r, c,
                         kind == NormKind::none ? x.at(r, c)
                         : has_bias             ? static_cast<float>(normal + bias.at(0, c))
                                                : static_cast<float>(normal));
              }
            }
            const auto check = [&](Backend& backend, DType out_type) {
              const DeviceTensor device_x(backend, x);
              const DeviceTensor device_weight(backend, weight);
              const DeviceNumbers device_bias(backend, has_bias ? &bias : nullptr);
              const DeviceTensor out(backend, HostTensor(out_type, rows, cols, 8));
              backend.norm(
                  device_x.matrix(),
                  {kind, static_cast<const float*>(device_weight.data()), device_bias.data(), kEps},
                  OutputMode::store, out.matrix());
              expect_near(
                  out.fetch(), want,
                  [&](int64_t r, int64_t c) {
                    return (unit_roundoff(out_type) + 2e-6) * std::abs(want.at(r, c)) + 1e-5;
                  },
                  backend.description() + ": norm " + std::to_string(static_cast<int>(kind)) +
                      " of " + std::to_string(rows) + " rows of " + std::to_string(cols));
            };
            check(*reference_, DType::f32);
            for (const auto& backend : backends_) check(*backend, type);
          }
        }
      }
    }
  }
}

TEST_P(BackendOps, NormAddsItsResultsAndWorksInPlace) {
  for (const DType type : activation_types()) {
    for (const NormKind kind : {NormKind::none, NormKind::rms, NormKind::layer}) {
      for (const int64_t cols : {20, 777, 4096}) {
        constexpr int64_t kRows = 5;
        const HostTensor x = random_tensor(random_, type, kRows, cols, 4);
        const HostTensor before = random_tensor(random_, DType::f32, kRows, cols, 8);
        const HostTensor weight = random_tensor(random_, DType::f32, 1, cols);
        const auto normalize = [&](Backend& backend, OutputMode output, bool in_place) {
          const DeviceTensor device_x(backend, x);
          const DeviceTensor device_weight(backend, weight);
          const DeviceTensor out(backend, before);
          backend.norm(device_x.matrix(),
                       {kind, static_cast<const float*>(device_weight.data()), nullptr, 1e-6F},
                       output, in_place ? device_x.matrix() : out.matrix());
          return in_place ? device_x.fetch() : out.fetch();
        };
        const HostTensor result = normalize(*reference_, OutputMode::store, false);
        for (const auto& backend : backends_) {
          const std::string what = backend->description() + ": norm of " + std::to_string(cols);
          expect_near(
              normalize(*backend, OutputMode::store, true), result,
              [&](int64_t r, int64_t c) {
                return (unit_roundoff(type) + 2e-6) * std::abs(result.at(r, c)) + 2e-6;
              },
              what + " in place");
          expect_near(
              normalize(*backend, OutputMode::add, false),
              [&] {
                HostTensor sum(DType::f32, kRows, cols);
                for (int64_t r = 0; r < kRows; ++r) {
                  for (int64_t c = 0; c < cols; ++c) {
                    sum.set(r, c, before.at(r, c) + result.at(r, c));
                  }
                }
                return sum;
              }(),
              [&](int64_t r, int64_t c) { return 4e-6 * (1 + std::abs(result.at(r, c))); },
              what + ", added");
        }
      }
    }
  }
}

TEST_P(BackendOps, NormAddsOneRowToAllRows) {
  for (const int64_t rows : {1, 5}) {
    for (const int64_t cols : {20, 777, 4096}) {
      const HostTensor before = random_tensor(random_, DType::f32, rows, cols);
      const HostTensor bias = random_tensor(random_, DType::f32, 1, cols);
      for (const auto& backend : backends_) {
        const DeviceTensor device_bias(*backend, bias);
        const DeviceTensor out(*backend, before);
        backend->norm(Matrix::repeated(static_cast<const float*>(device_bias.data()), rows, cols),
                      {}, OutputMode::add, out.matrix());
        const HostTensor sum = out.fetch();
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < cols; ++c) {
            ASSERT_EQ(sum.at(r, c), before.at(r, c) + bias.at(0, c))
                << backend->description() << ' ' << r << ' ' << c;
          }
        }
      }
    }
  }
}

TEST_P(BackendOps, NormOfTheStreamIsNormAndACopy) {
  for (const DType type : activation_types()) {
    for (const NormKind kind : {NormKind::rms, NormKind::layer}) {
      for (const int64_t cols : {20, 256, 512, 1000, 1024, 4096}) {
        constexpr int64_t kRows = 7;
        const HostTensor x = random_tensor(random_, DType::f32, kRows, cols, 4);
        const DeviceTensor weight(*backend_, random_tensor(random_, DType::f32, 1, cols));
        const Norm norm{kind, static_cast<const float*>(weight.data()), nullptr, 1e-6F};
        const DeviceTensor stream(*backend_, x);
        const DeviceTensor copy(*backend_, HostTensor(type, kRows, cols, 8));
        backend_->norm_stream(stream.matrix(), norm, copy.matrix());

        const DeviceTensor apart(*backend_, x);
        const DeviceTensor converted(*backend_, HostTensor(type, kRows, cols, 8));
        backend_->norm(apart.matrix(), norm, OutputMode::store, apart.matrix());
        backend_->norm(apart.matrix(), {}, OutputMode::store, converted.matrix());
        const std::string what = "rows of " + std::to_string(cols);
        expect_equal(stream.fetch(), apart.fetch(), what);
        expect_equal(copy.fetch(), converted.fetch(), what + ", copied");
      }
    }
  }
}

TEST_P(BackendOps, ScaleTakesFactorsOfElementsRowsColumnsGroupsOrAll) {
  const auto check = [&](Backend& backend, Activation activation, const HostTensor& factors,
                         const HostTensor& m) {
    const DeviceTensor device_factors(backend, factors);
    const DeviceTensor device_m(backend, m);
    backend.scale(device_factors.matrix(), activation, device_m.matrix());
    HostTensor want(DType::f32, m.rows, m.cols);
    for (int64_t r = 0; r < m.rows; ++r) {
      for (int64_t c = 0; c < m.cols; ++c) {
        const double x = factors.at(factors.rows == 1 ? 0 : r, c / (m.cols / factors.cols));
        const double sigmoid = 1 / (1 + std::exp(-x));
        const double factor = activation == Activation::none       ? x
                              : activation == Activation::sigmoid  ? sigmoid
                              : activation == Activation::softplus ? std::log1p(std::exp(x))
                                                                   : x * sigmoid;
        want.set(r, c, static_cast<float>(m.at(r, c) * factor));
      }
    }
    expect_near(
        device_m.fetch(), want,
        [&](int64_t r, int64_t c) {
          return (unit_roundoff(m.dtype) + 1e-6) * std::abs(want.at(r, c)) + 1e-7;
        },
        backend.description() + ": scale");
  };
  for (const DType type : activation_types()) {
    for (const int64_t rows : {1, 7, 200}) {
      for (const int64_t cols : {1, 20, 2049}) {
        const HostTensor m = random_tensor(random_, type, rows, cols, 3);
        const HostTensor by_row = random_tensor(random_, DType::f32, rows, 1, 0, 4);
        const HostTensor by_element = random_tensor(random_, type, rows, cols, 5, 4);
        const HostTensor by_column = random_tensor(random_, type, 1, cols, 0, 4);
        const HostTensor one = random_tensor(random_, DType::f32, 1, 1, 0, 4);
        const int64_t groups = cols % 5 == 0 ? 5 : cols % 3 == 0 ? 3 : 1;
        const HostTensor by_group = random_tensor(random_, DType::f32, rows, groups, 2, 4);
        for (const Activation activation :
             {Activation::none, Activation::sigmoid, Activation::softplus, Activation::silu}) {
          for (const HostTensor* factors : {&by_row, &by_element, &by_column, &one, &by_group}) {
            check(*reference_, activation, *factors, m);
            for (const auto& backend : backends_) check(*backend, activation, *factors, m);
          }
        }
      }
    }
  }
}

TEST_P(BackendOps, KeepLargestLeavesWhatIsAboveItsCutoff) {
  const auto check = [&](Backend& backend, float deviations, const HostTensor& m) {
    const DeviceTensor device(backend, m);
    backend.keep_largest(deviations, device.matrix());
    HostTensor want(DType::f32, m.rows, m.cols);
    for (int64_t r = 0; r < m.rows; ++r) {
      double sum = 0;
      double squares = 0;
      for (int64_t c = 0; c < m.cols; ++c) sum += m.at(r, c);
      const double mean = sum / static_cast<double>(m.cols);
      for (int64_t c = 0; c < m.cols; ++c) squares += std::pow(m.at(r, c) - mean, 2);
      const double cutoff = mean + deviations * std::sqrt(squares / static_cast<double>(m.cols));
      for (int64_t c = 0; c < m.cols; ++c) {
        want.set(r, c, static_cast<float>(std::max(m.at(r, c) - cutoff, 0.0)));
      }
    }
    expect_near(
        device.fetch(), want,
        [&](int64_t r, int64_t c) { return unit_roundoff(m.dtype) * want.at(r, c) + 2e-5; },
        backend.description() + ": keep_largest");
  };
  for (const DType type : activation_types()) {
    for (const int64_t cols : {1, 20, 259, 3000}) {
      const HostTensor m = random_tensor(random_, type, 3, cols, 5, 4);
      for (const float deviations : {-0.5F, 0.0F, 1.6F}) {
        check(*reference_, deviations, m);
        for (const auto& backend : backends_) check(*backend, deviations, m);
      }
    }
  }
}

TEST_P(BackendOps, CombineMakesEachPartASumOfAll) {
  const auto check = [&](Backend& backend, int32_t parts, const HostTensor& weights,
                         const HostTensor& m) {
    const DeviceTensor device_weights(backend, weights);
    const DeviceTensor device(backend, m);
    backend.combine(device_weights.matrix(), parts, device.matrix());
    const int64_t n = m.cols / parts;
    HostTensor want(DType::f32, m.rows, m.cols);
    for (int64_t row = 0; row < m.rows; ++row) {
      for (int64_t c = 0; c < m.cols; ++c) {
        double sum = 0;
        for (int64_t r = 0; r < parts; ++r) {
          sum += weights.at(row, c / n * parts + r) * m.at(row, r * n + c % n);
        }
        want.set(row, c, static_cast<float>(sum));
      }
    }
    expect_near(
        device.fetch(), want, [](int64_t, int64_t) { return 1e-4; },
        backend.description() + ": combine");
  };
  for (const int32_t parts : {1, 2, 5, kMostParts}) {
    for (const int64_t n : {1, 20, 1500}) {
      const HostTensor weights = random_tensor(random_, DType::f32, 7, parts * parts, 3);
      const HostTensor m = random_tensor(random_, DType::f32, 7, parts * n, 5);
      check(*reference_, parts, weights, m);
      for (const auto& backend : backends_) check(*backend, parts, weights, m);
    }
  }
}

TEST_P(BackendOps, MatchLengthsMakesRowsAsLargeAsOthers) {
  const auto mean_square = [](const HostTensor& of, int64_t r) {
    double sum = 0;
    for (int64_t c = 0; c < of.cols; ++c) sum += double{of.at(r, c)} * of.at(r, c);
    return sum / static_cast<double>(of.cols);
  };
  const auto check = [&](Backend& backend, const HostTensor& like, const HostTensor& m) {
    const DeviceTensor device_like(backend, like);
    const DeviceTensor device(backend, m);
    backend.match_lengths(device_like.matrix(), device.matrix());
    HostTensor want(DType::f32, m.rows, m.cols);
    for (int64_t r = 0; r < m.rows; ++r) {
      const double factor =
          std::sqrt(mean_square(like, r) / std::max(mean_square(m, r), kLeastMeanSquare));
      for (int64_t c = 0; c < m.cols; ++c) {
        want.set(r, c, static_cast<float>(m.at(r, c) * factor));
      }
    }
    expect_near(
        device.fetch(), want,
        [&](int64_t r, int64_t c) {
          return (unit_roundoff(m.dtype) + 1e-5) * std::abs(want.at(r, c)) + 1e-7;
        },
        backend.description() + ": match_lengths");
  };
  for (const DType type : activation_types()) {
    for (const int64_t cols : {1, 20, 259, 3000}) {
      const HostTensor like = random_tensor(random_, DType::f32, 4, cols, 5);
      HostTensor m = random_tensor(random_, type, 4, cols, 3, 4);
      for (int64_t c = 0; c < cols; ++c) m.set(2, c, 0);      // nothing to match
      for (int64_t c = 0; c < cols; ++c) m.set(3, c, 1e-4F);  // less than the least
      check(*reference_, like, m);
      for (const auto& backend : backends_) check(*backend, like, m);
    }
  }
}

TEST_P(BackendOps, ActivateGivesWhatProductsAreFollowedBy) {
  for (const DType type : activation_types()) {
    for (const int64_t cols : {1, 20, 259}) {
      const HostTensor m = random_tensor(random_, type, 3, cols, 5, 4);
      for (const Activation activation :
           {Activation::none, Activation::silu, Activation::gelu, Activation::gelu_tanh,
            Activation::relu, Activation::relu_squared, Activation::tanh, Activation::sigmoid,
            Activation::softplus}) {
        const DeviceTensor wanted(*reference_, m);
        reference_->activate(activation, wanted.matrix());
        const HostTensor want = wanted.fetch();
        for (const auto& backend : backends_) {
          const DeviceTensor device(*backend, m);
          backend->activate(activation, device.matrix());
          expect_near(
              device.fetch(), want,
              [&](int64_t r, int64_t c) {
                // Both are rounded.
                return (2 * unit_roundoff(type) + 2e-6) * std::abs(want.at(r, c)) + 2e-6;
              },
              backend->description() + ": activate");
        }
      }
    }
  }
}

TEST_P(BackendOps, XieluFulfilsItsFormula) {
  HostTensor numbers(DType::f32, 1, kXieluNumbers);
  for (int64_t i = 0; i < kXieluNumbers; ++i)
    numbers.set(0, i, 0.7F - 0.5F * static_cast<float>(i));
  const auto softplus = [](double x) { return std::log(1 + std::exp(x)); };
  const double above = softplus(numbers.at(0, 0));
  const double beta = numbers.at(0, 2);
  const double below = softplus(numbers.at(0, 1)) + beta;
  for (const DType type : activation_types()) {
    for (const int64_t cols : {1, 20, 259, 3000}) {
      HostTensor m = random_tensor(random_, type, 3, cols, 5, 4);
      m.set(0, 0, 0);
      m.set(1, 0, -1e-4F);
      m.set(2, 0, -100);
      const auto check = [&](Backend& backend) {
        const DeviceTensor device_numbers(backend, numbers);
        const DeviceTensor device(backend, m);
        backend.xielu(static_cast<const float*>(device_numbers.data()), device.matrix());
        const HostTensor want = m.map(DType::f32, [&](float v) {
          const double x = v;
          return static_cast<float>(beta * x +
                                    (x > 0 ? above * x * x : below * (std::expm1(x) - x)));
        });
        expect_near(
            device.fetch(), want,
            [&](int64_t r, int64_t c) {
              return (unit_roundoff(type) + 1e-6) *
                     (std::abs(want.at(r, c)) + std::abs(m.at(r, c)));
            },
            backend.description() + ": xielu");
      };
      check(*reference_);
      for (const auto& backend : backends_) check(*backend);
    }
  }
}

TEST_P(BackendOps, SoftCapKeepsLogitsBelowTheCap) {
  const double cap = 30;
  for (const int64_t cols : {1, 20, 32003}) {
    HostTensor logits = random_tensor(random_, DType::f32, 3, cols, 5, 40);
    logits.set(0, 0, 1e30F);
    logits.set(1, 0, -1e30F);
    logits.set(2, 0, 1e-6F);
    const auto check = [&](Backend& backend) {
      const DeviceTensor device(backend, logits);
      backend.soft_cap(static_cast<float>(cap), device.matrix());
      const HostTensor want = logits.map(
          DType::f32, [cap](float v) { return static_cast<float>(cap * std::tanh(v / cap)); });
      expect_near(
          device.fetch(), want,
          [&](int64_t r, int64_t c) { return 1e-6 * std::abs(want.at(r, c)) + 1e-12; },
          backend.description() + ": soft_cap");
    };
    check(*reference_);
    for (const auto& backend : backends_) check(*backend);
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
    HostTensor want(DType::f32, batch.n_logits(), cols);
    for (int64_t r = 0; r < want.rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        want.set(r, c, x.at(batch.logit_rows[static_cast<size_t>(r)], c));
      }
    }
    expect_equal(out.fetch(), want, "gather_rows");
  }
}

TEST_P(BackendOps, CopyPagesCopiesWholePagesInAllLayersAndNothingElse) {
  constexpr int32_t kPages = 300;
  constexpr int32_t kHeads = 3;
  constexpr int32_t kDim = 10;
  constexpr int32_t kValueDim = 6;
  const DType type = backend_->kv_dtype(WeightFormat::bf16);
  std::vector<PageCopy> copies;
  for (int32_t i = 0; i < 140; ++i) copies.push_back({i, kPages - 1 - i});
  std::vector<HostTensor> before;
  std::vector<DeviceTensor> device;
  for (int i = 0; i < 4; ++i) {
    before.push_back(random_tensor(random_, type, kPages,
                                   kHeads * kPageTokens * (i % 2 == 0 ? kDim : kValueDim)));
    device.emplace_back(*backend_, before.back());
  }
  std::vector<KvLayer> layers;
  for (size_t i = 0; i < 4; i += 2) {
    layers.push_back(
        {device[i].data(), device[i + 1].data(), type, kPages, kHeads, kDim, kValueDim});
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

TEST_P(BackendOps, PoolMakesOneRowOfEachSequence) {
  const Batch batch = make_batch(random_, {{1, 1}, {7, 7}, {300, 300}, {2, 2}, {33, 33}}, 20);
  for (const int64_t cols : {1, 20, 257, 1024}) {
    const HostTensor x = random_tensor(random_, DType::f32, batch.n_tokens(), cols, 4);
    for (const Pooling pooling : {Pooling::first, Pooling::last, Pooling::largest, Pooling::mean,
                                  Pooling::mean_by_root, Pooling::weighted_mean}) {
      const auto pool = [&](Backend& backend) {
        const DeviceTensor device_x(backend, x);
        const DeviceTensor out(backend, HostTensor(DType::f32, batch.n_sequences(), cols, 4));
        backend.pool(backend.upload(batch), device_x.matrix(), pooling, out.matrix());
        return out.fetch();
      };
      const HostTensor want = pool(*reference_);
      for (const auto& backend : backends_) {
        expect_near(
            pool(*backend), want, [](int64_t, int64_t) { return 2e-5; },
            backend->description() + ": pool " + std::to_string(static_cast<int>(pooling)));
      }
    }
  }
}

// By hand: a sequence of 4, and one of 2 and 8.
TEST_P(BackendOps, PoolFulfilsItsFormulas) {
  const Batch batch = make_batch(random_, {{1, 1}, {2, 2}}, 4);
  HostTensor x(DType::f32, 3, 1);
  for (int64_t t = 0; t < 3; ++t) x.set(t, 0, std::array{4.0F, 2.0F, 8.0F}[static_cast<size_t>(t)]);
  const auto check = [&](Backend& backend) {
    for (const auto& [pooling, want] :
         {std::pair(Pooling::first, 2.0F), std::pair(Pooling::last, 8.0F),
          std::pair(Pooling::largest, 8.0F), std::pair(Pooling::mean, 5.0F),
          std::pair(Pooling::mean_by_root, 10.0F / std::sqrt(2.0F)),
          std::pair(Pooling::weighted_mean, 6.0F)}) {
      const DeviceTensor device_x(backend, x);
      const DeviceTensor out(backend, HostTensor(DType::f32, 2, 1));
      backend.pool(backend.upload(batch), device_x.matrix(), pooling, out.matrix());
      EXPECT_EQ(out.fetch().at(0, 0), 4.0F);
      EXPECT_FLOAT_EQ(out.fetch().at(1, 0), want) << backend.description();
    }
  };
  check(*reference_);
  for (const auto& backend : backends_) check(*backend);
}

FASTSTREAM_INSTANTIATE_BACKENDS(BackendOps);

}  // namespace
}  // namespace faststream
