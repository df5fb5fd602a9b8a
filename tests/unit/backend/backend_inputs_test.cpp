// Products that normalize their inputs: the same bits as of rows that were normalized before.
#include <string>
#include <vector>

#include "unit/backend/backend_weights.h"

namespace faststream {
namespace {

struct InputCase {
  WeightFormat weights = WeightFormat::f32;
  NormKind norm = NormKind::rms;
  int64_t rows = 1;
  int64_t inputs = 64;
};

class BackendInputs : public BackendTest {
 protected:
  static constexpr int64_t kOutputs = 48;
  static constexpr int32_t kExperts = 6;

  /// A router's product, a plain and a gated one, and experts, of the same rows one after the
  /// other.
  void check(Backend& backend, const InputCase& shape) {
    const DType act = backend.activation_dtype(shape.weights);
    const HostTensor rows = random_tensor(random_, DType::f32, shape.rows, shape.inputs, 4);
    const DeviceTensor x(backend, rows);
    const DeviceTensor norm_weight(backend, random_tensor(random_, DType::f32, 1, shape.inputs));
    const DeviceTensor norm_bias(backend, random_tensor(random_, DType::f32, 1, shape.inputs));
    const DeviceTensor normed(backend, HostTensor(act, shape.rows, shape.inputs));
    const DeviceWeight router(backend,
                              random_weight(random_, WeightFormat::f32, kExperts, shape.inputs));
    const DeviceWeight weight(
        backend, random_weight(random_, shape.weights, kExperts * kOutputs, shape.inputs));
    const DeviceWeight down(
        backend, random_weight(random_, shape.weights, kExperts * shape.inputs, kOutputs / 2));
    Norm norm{.kind = shape.norm, .eps = 1e-5F};
    if (shape.norm != NormKind::none) norm.weight = static_cast<const float*>(norm_weight.data());
    if (shape.norm == NormKind::layer) norm.bias = static_cast<const float*>(norm_bias.data());
    const Input unread{.x = x.matrix(), .norm = norm, .normed = normed.matrix()};

    const auto results = [&](Input input, size_t first) {
      std::vector<HostTensor> all(4);
      const auto run = [&](size_t product) {
        const DeviceTensor plain(backend, HostTensor(act, shape.rows, kExperts * kOutputs));
        const DeviceTensor gated(backend, HostTensor(act, shape.rows, kExperts * kOutputs / 2));
        const DeviceTensor scores(backend, HostTensor(DType::f32, shape.rows, kExperts));
        const DeviceTensor out(backend, HostTensor(DType::f32, shape.rows, shape.inputs));
        switch (product) {
          case 0:
            backend.linear(input, weight.weight(), {}, plain.matrix());
            all[product] = plain.fetch();
            break;
          case 1:
            backend.gated_linear(input, weight.weight(), nullptr, Activation::silu, gated.matrix());
            all[product] = gated.fetch();
            break;
          case 2:
            backend.linear(input, router.weight(), {}, scores.matrix());
            all[product] = scores.fetch();
            break;
          default:
            backend.linear(input, router.weight(), {}, scores.matrix());
            backend.experts(input, scores.matrix(), {.used = 2},
                            {.n_experts = kExperts, .up = weight.weight(), .down = down.weight()},
                            OutputMode::store, out.matrix());
            all[product] = out.fetch();
        }
      };
      for (size_t i = 0; i < all.size(); ++i) run((first + i) % all.size());
      return all;
    };
    Input ready = unread;
    normalize(backend, ready);
    ASSERT_TRUE(ready.is_ready());
    const std::vector<HostTensor> want = results(ready, 0);
    for (size_t first = 0; first < want.size(); ++first) {
      const std::vector<HostTensor> got = results(unread, first);
      for (size_t i = 0; i < want.size(); ++i) {
        expect_equal(got[i], want[i],
                     backend.description() + ": product " + std::to_string(i) + " from product " +
                         std::to_string(first) + " on, norm " +
                         std::to_string(static_cast<int>(shape.norm)) + ", " +
                         std::to_string(shape.rows) + " rows of " + std::to_string(shape.inputs) +
                         ", " + std::string(format_name(shape.weights)));
      }
    }
  }
};

TEST_P(BackendInputs, AreNormalizedAsByNormForEveryNumberOfRows) {
  for (const auto& backend : backends_) {
    for (const WeightFormat weights : kWeightFormats) {
      for (const int64_t rows : {1, 2, 3, 4, 5, 8, 9, 16, 17, 70}) {
        if (!tries(weights, static_cast<size_t>(rows))) continue;
        check(*backend, {weights, NormKind::rms, rows, 288});
      }
    }
  }
}

TEST_P(BackendInputs, AreNormalizedAsByNormForEveryKindAndShape) {
  for (const auto& backend : backends_) {
    for (const WeightFormat weights : kWeightFormats) {
      if (kSanitized && weights != WeightFormat::bf16 && weights != WeightFormat::int8) continue;
      size_t i = 0;
      for (const NormKind norm : {NormKind::none, NormKind::rms, NormKind::layer}) {
        for (const int64_t rows : {1, 6}) {
          for (const int64_t inputs : {20, 144, 1040}) {
            if (!tries(weights, i++)) continue;
            check(*backend, {weights, norm, rows, inputs});
          }
        }
      }
    }
    check(*backend, {WeightFormat::int8, NormKind::rms, 1, 8208});
    check(*backend, {WeightFormat::bf16, NormKind::rms, 1, 8208});
    // A GPU has them in registers, or not.
    for (const int64_t inputs : {4112, 8208, 16400, 28672}) {
      if (kSanitized && inputs > 8208) break;
      check(*backend, {WeightFormat::int8, NormKind::rms, 2, inputs});
    }
  }
}

FASTSTREAM_INSTANTIATE_BACKENDS(BackendInputs);

}  // namespace
}  // namespace faststream
