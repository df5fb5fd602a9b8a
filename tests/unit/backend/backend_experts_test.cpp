// Feed-forwards of which each token uses a few, compared with the plain float reference.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "unit/backend/backend_weights.h"
#include "unit/effort.h"

namespace faststream {
namespace {

struct ExpertsCase {
  int32_t n_experts = 8;
  int32_t identities = 0;  // further ones
  int64_t in = 96;
  int64_t middle = 48;
  int64_t hidden = 64;
  bool gated = true;
  bool biases = false;
  Activation activation = Activation::silu;
  float gate_limit = kUsualGateLimit;
  Router router = {.used = 2};
  OutputMode output = OutputMode::store;
};

class BackendExperts : public BackendTest {
 protected:
  /// What experts() works on, in host memory.
  struct Inputs {
    ExpertsCase shape;
    HostTensor x;
    HostTensor scores;
    HostTensor correction;
    HostTensor expert_scales;
    HostWeight up;
    HostTensor up_bias;
    HostWeight down;
    HostTensor down_bias;
    HostTensor before;

    /// The same for rows [first, first + count).
    [[nodiscard]] Inputs rows(int64_t first, int64_t count) const {
      Inputs part = *this;
      part.x = x.row_range(first, count);
      part.scores = scores.row_range(first, count);
      part.before = before.row_range(first, count);
      return part;
    }
  };

  Inputs random_inputs(const ExpertsCase& shape, WeightFormat format, int64_t tokens) {
    const int64_t n = shape.n_experts;
    const int64_t up_rows = n * (shape.gated ? 2 : 1) * shape.middle;
    Inputs inputs;
    inputs.shape = shape;
    inputs.x = random_tensor(random_, backend_->activation_dtype(format), tokens, shape.in, 8);
    const int64_t scored = n + shape.identities;
    inputs.scores = random_tensor(random_, DType::f32, tokens, scored, 0, 2);
    inputs.correction = random_tensor(random_, DType::f32, 1, scored, 0, 0.3F);
    inputs.expert_scales = random_tensor(random_, DType::f32, 1, scored);
    inputs.up = random_weight(random_, format, up_rows, shape.in);
    inputs.up_bias = random_tensor(random_, DType::f32, 1, up_rows);
    inputs.down = random_weight(random_, format, n * shape.hidden, shape.middle);
    inputs.down_bias = random_tensor(random_, DType::f32, 1, n * shape.hidden);
    inputs.before = random_tensor(random_, DType::f32, tokens, shape.hidden, 4);
    return inputs;
  }

  static HostTensor run(Backend& backend, const Inputs& inputs) {
    const ExpertsCase& shape = inputs.shape;
    const DeviceTensor x(backend, inputs.x);
    const DeviceTensor scores(backend, inputs.scores);
    const DeviceNumbers correction(
        backend, shape.router.correction != nullptr ? &inputs.correction : nullptr);
    const DeviceWeight up(backend, inputs.up);
    const DeviceNumbers up_bias(backend, shape.biases ? &inputs.up_bias : nullptr);
    const DeviceWeight down(backend, inputs.down);
    const DeviceNumbers down_bias(backend, shape.biases ? &inputs.down_bias : nullptr);
    const DeviceTensor out(backend, inputs.before);
    const DeviceNumbers expert_scales(
        backend, shape.router.expert_scales != nullptr ? &inputs.expert_scales : nullptr);
    Router router = shape.router;
    router.correction = correction.data();
    router.expert_scales = expert_scales.data();
    Input input{.x = x.matrix()};
    backend.experts(input, scores.matrix(), router,
                    {.n_experts = shape.n_experts,
                     .up = up.weight(),
                     .up_bias = up_bias.data(),
                     .down = down.weight(),
                     .down_bias = down_bias.data(),
                     .gated = shape.gated,
                     .activation = shape.activation,
                     .gate_limit = shape.gate_limit},
                    shape.output, out.matrix());
    return out.fetch();
  }

  /// Errors of roundings, relative to a row's largest result: a wrong expert, weight or bias is off
  /// by about the results themselves. Where inputs are weighed they are rounded first, and a far
  /// negative gate's SiLU may change by as much as it is: relative to the largest of all rows.
  static double tolerance(WeightFormat format) {
    switch (format) {
      case WeightFormat::f32:
        return 1e-5;
      case WeightFormat::f16:
        return 5e-3;
      case WeightFormat::int4:
        return 0.07;  // elements of a group may have a mean, beside which what they read is rounded
      default:
        return 0.05;
    }
  }

  void check(const ExpertsCase& shape, WeightFormat format, int64_t tokens) {
    check(random_inputs(shape, format, tokens), format);
  }

  void check(const Inputs& inputs, WeightFormat format) {
    const ExpertsCase& shape = inputs.shape;
    const int64_t tokens = inputs.x.rows;
    const HostTensor want = run(*reference_, inputs);
    std::vector<float> largest(static_cast<size_t>(want.rows));  // of a row
    for (int64_t r = 0; r < want.rows; ++r) {
      float& of_row = largest[static_cast<size_t>(r)];
      for (int64_t c = 0; c < want.cols; ++c) of_row = std::max(of_row, std::abs(want.at(r, c)));
    }
    if (shape.router.weighs_input) std::ranges::fill(largest, std::ranges::max(largest));
    for (const auto& backend : backends_) {
      expect_near(
          run(*backend, inputs), want,
          [&](int64_t r, int64_t) { return tolerance(format) * largest[static_cast<size_t>(r)]; },
          backend->description() + ": experts, " + std::to_string(tokens) + " tokens, " +
              std::to_string(shape.n_experts) + " experts of " + std::to_string(shape.in) + " to " +
              std::to_string(shape.middle) + " to " + std::to_string(shape.hidden) + ", " +
              std::string(format_name(format)));
    }
  }
};

const std::vector<WeightFormat> kFormats =
    kSanitized ? std::vector{WeightFormat::f32, WeightFormat::int8}
               : std::vector(kWeightFormats.begin(), kWeightFormats.end());

TEST_P(BackendExperts, AgreeForEveryNumberOfTokens) {
  for (const WeightFormat format : kFormats) {
    for (const int64_t tokens : {1, 2, 3, 8, 17, 40, 130}) {
      if (tries(format, static_cast<size_t>(tokens))) check({}, format, tokens);
    }
    check({.n_experts = 3, .router = {.used = 3}}, format, 70);  // all of them by all tokens
    check({.n_experts = 64, .router = {.used = 8}}, format, 1);
    check({.n_experts = 64, .router = {.used = 8}}, format, 20);
  }
}

// More than one block sorts.
TEST_P(BackendExperts, AgreeForManyTokens) {
  check({.n_experts = 70, .in = 32, .middle = 16, .hidden = 32, .router = {.used = 8}},
        WeightFormat::f32, 1100);
}

TEST_P(BackendExperts, AgreeForOddShapes) {
  for (const WeightFormat format : kFormats) {
    size_t i = 0;
    for (const int64_t tokens : {1, 5, 40}) {
      if (!tries(format, i++)) continue;
      check({.n_experts = 1, .in = 20, .middle = 7, .hidden = 33, .router = {.used = 1}}, format,
            tokens);
      check({.n_experts = 5, .in = 130, .middle = 66, .hidden = 50}, format, tokens);
      check({.n_experts = 4, .in = 288, .middle = 100, .hidden = 288}, format, tokens);
    }
  }
}

// Of four experts the first has all tokens, the second one, the third none.
TEST_P(BackendExperts, AgreeWhateverTheNumbersOfTheirRows) {
  for (const WeightFormat format : kFormats) {
    for (const int64_t tokens : kSanitized ? std::vector<int64_t>{70}
                                : on_gpu() ? std::vector<int64_t>{70, 257, 600}
                                           : std::vector<int64_t>{70, 257}) {
      size_t i = 0;
      for (const Activation activation :
           {Activation::silu, Activation::swiglu_clamped, Activation::silu_clamped}) {
        if (!tries(format, static_cast<size_t>(tokens) + i++)) continue;
        Inputs inputs = random_inputs({.n_experts = 4,
                                       .in = 160,
                                       .middle = 88,
                                       .hidden = 200,
                                       .biases = true,
                                       .activation = activation},
                                      format, tokens);
        for (int64_t token = 0; token < tokens; ++token) {
          const float of_second = token == 5 ? 5.0F : -5.0F;
          for (const auto& [expert, score] :
               {std::pair{0, 9.0F}, {1, of_second}, {2, -9.0F}, {3, 0.0F}}) {
            inputs.scores.set(token, expert, score);
          }
        }
        check(inputs, format);
      }
    }
  }
}

TEST_P(BackendExperts, TakeEveryActivationAndBiases) {
  for (const WeightFormat format : kFormats) {
    size_t i = 0;
    for (const int64_t tokens : {1, 20}) {
      for (const bool biases : {false, true}) {
        if (!tries(format, i++)) continue;
        for (const Activation activation : {Activation::silu, Activation::gelu,
                                            Activation::gelu_tanh, Activation::relu_squared}) {
          check({.gated = false, .biases = biases, .activation = activation}, format, tokens);
          check({.biases = biases, .activation = activation}, format, tokens);
        }
        for (const float limit : {1.5F, 7.0F}) {
          for (const Activation activation :
               {Activation::swiglu_clamped, Activation::silu_clamped}) {
            check({.biases = biases, .activation = activation, .gate_limit = limit}, format,
                  tokens);
          }
        }
      }
    }
  }
}

TEST_P(BackendExperts, AreChosenAndWeighedByTheRouter) {
  constexpr float kCorrected = 0;  // any: run() has its own
  constexpr float kScaled = 0;
  for (const auto score : {Router::Score::softmax, Router::Score::sigmoid, Router::Score::logit}) {
    for (const float* correction : {static_cast<const float*>(nullptr), &kCorrected}) {
      for (const bool normalized : {false, true}) {
        for (const int32_t groups_used : {1, 2, 4}) {
          for (const auto group_score :
               {Router::GroupScore::two_best, Router::GroupScore::largest}) {
            for (const int64_t tokens : {1, 30}) {
              check({.n_experts = 16,
                     .router = {.used = 3,
                                .score = score,
                                .correction = correction,
                                .groups = 4,
                                .groups_used = groups_used,
                                .group_score = group_score,
                                .normalized = normalized,
                                .scale = normalized ? 2.5F : 1.0F}},
                    WeightFormat::f32, tokens);
            }
          }
        }
      }
    }
    for (const bool normalized : {false, true}) {
      check({.n_experts = 40,
             .router = {.used = 3,
                        .score = score,
                        .normalized = normalized,
                        .scale = 2.5F,
                        .expert_scales = &kScaled}},
            WeightFormat::f32, 30);
    }
  }
}

TEST_P(BackendExperts, AreMixedSparsely) {
  for (const int32_t n_experts : {5, 40}) {
    for (const float margin : {0.02F, 0.5F}) {
      for (const int64_t tokens : {1, 30}) {
        check({.n_experts = n_experts,
               .router = {.used = 2, .score = Router::Score::sparse_mixer, .margin = margin}},
              WeightFormat::f32, tokens);
      }
    }
  }
}

TEST_P(BackendExperts, MayGiveWhatTheyRead) {
  constexpr float kCorrected = 0;  // any: run() has its own
  for (const WeightFormat format : kFormats) {
    for (const int64_t tokens : {1, 3, 40}) {
      for (const OutputMode output : {OutputMode::store, OutputMode::add}) {
        check({.n_experts = 5,
               .identities = 3,
               .in = 64,
               .router = {.used = 3, .correction = &kCorrected, .scale = 1.5F},
               .output = output},
              format, tokens);
      }
      check({.n_experts = 1, .identities = 30, .in = 64, .router = {.used = 2}}, format, tokens);
    }
  }
}

TEST_P(BackendExperts, ReadWhatTheRouterWeighs) {
  for (const WeightFormat format : kFormats) {
    for (const int64_t tokens : {1, 3, 40}) {
      const Router router{.used = 2, .score = Router::Score::sigmoid, .weighs_input = true};
      check({.router = router}, format, tokens);
      check({.n_experts = 5, .in = 20, .middle = 7, .hidden = 33, .router = router}, format,
            tokens);
    }
  }
}

TEST_P(BackendExperts, AreChosenFromMany) {
  for (const int32_t n_experts : {160, 544}) {
    for (const int32_t groups_used : {3, 8}) {
      for (const int64_t tokens : {1, 30}) {
        check({.n_experts = n_experts,
               .in = 16,
               .middle = 8,
               .hidden = 16,
               .router = {.used = 6, .groups = 8, .groups_used = groups_used}},
              WeightFormat::f32, tokens);
      }
    }
  }
}

TEST_P(BackendExperts, AddToWhatIsThere) {
  for (const WeightFormat format : kFormats) {
    for (const int64_t tokens : {1, 20}) check({.output = OutputMode::add}, format, tokens);
  }
}

TEST_P(BackendExperts, WithEqualScoresAreTheFirst) {
  for (const int64_t tokens : {1, 40}) {
    Inputs inputs = random_inputs({}, WeightFormat::f32, tokens);
    inputs.scores = inputs.scores.map(DType::f32, [](float) { return 1.0F; });
    const HostTensor equal = run(*reference_, inputs);
    for (const auto& backend : backends_) {
      expect_near(
          run(*backend, inputs), equal, [](int64_t, int64_t) { return 1e-5; },
          backend->description() + ": experts with equal scores");
    }
  }
}

// Bit for bit: a text does not depend on the batch it is in.
TEST_P(BackendExperts, ATokensResultDoesNotDependOnTheOthers) {
  constexpr int64_t kTokens = 200;
  const auto check_alone = [&](Backend& backend, WeightFormat format, bool gated,
                               Activation activation) {
    const bool is_long = on_gpu() && activation == Activation::silu;
    const Inputs all = random_inputs({.n_experts = 4,
                                      .in = is_long ? 2208 : 288,
                                      .middle = is_long ? 1120 : 80,
                                      .hidden = is_long ? 2208 : 288,
                                      .gated = gated,
                                      .biases = activation != Activation::silu,
                                      .activation = activation,
                                      .output = OutputMode::add},
                                     format, kTokens);
    const HostTensor together = run(backend, all);
    for (const auto& [first, count] :
         {std::pair<int64_t, int64_t>{0, 1}, {7, 1}, {50, 3}, {60, 20}, {100, 70}}) {
      expect_equal(run(backend, all.rows(first, count)), together.row_range(first, count),
                   backend.description() + ": " + std::string(format_name(format)) +
                       ", tokens from " + std::to_string(first) + ", " + std::to_string(count));
    }
  };
  for (const auto& backend : backends_) {
    for (const WeightFormat format : formats_summed_in_order(*backend)) {
      check_alone(*backend, format, false, Activation::silu);
      for (const Activation activation : {Activation::silu, Activation::gelu, Activation::gelu_tanh,
                                          Activation::swiglu_clamped, Activation::silu_clamped}) {
        check_alone(*backend, format, true, activation);
      }
    }
  }
}

FASTSTREAM_INSTANTIATE_BACKENDS(BackendExperts);

}  // namespace
}  // namespace faststream
