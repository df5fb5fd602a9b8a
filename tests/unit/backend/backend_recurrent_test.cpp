// Convolutions and recurrences over states, compared with the plain float reference.
#include <limits>
#include <string>
#include <vector>

#include "unit/backend/backend_fixture.h"

namespace faststream {
namespace {

// One token, pieces within a page and over several, with and without a state before.
const std::vector<TestSequence> kSequences = {{1, 1},   {1, 40}, {40, 40},
                                              {33, 65}, {5, 69}, {70, 100}};
constexpr int32_t kStates = 20;

class BackendRecurrent : public BackendTest {
 protected:
  // Sequences with a text before them go on from a state of their own, and have one written at the
  // border if they come past one.
  Batch batch_with_states() {
    Batch batch = make_batch(random_, kSequences, pages_of(kSequences));
    int32_t next = 1;
    for (const TestSequence& sequence : kSequences) {
      const int32_t before = sequence.kv_len - sequence.queries;
      batch.state_from.push_back(before > 0 ? next++ : 0);
      batch.state_to.push_back(next++);
      batch.state_border.push_back(border_of(sequence.kv_len) > before ? next++ : 0);
    }
    EXPECT_LE(next, kStates);
    return batch;
  }

  // Small numbers, but for the state of an empty text.
  HostTensor random_states(int64_t size) {
    constexpr int64_t kGap = 3;
    HostTensor states = random_tensor(random_, DType::f32, kStates, size, kGap, 0.5F);
    for (int64_t c = 0; c < size; ++c) states.set(0, c, 0);
    return states;
  }

  static StateLayer layer_of(const DeviceTensor& states) {
    const Matrix m = states.matrix();
    return {.data = static_cast<float*>(m.data), .stride = m.stride, .n_states = kStates};
  }

  // Calls run(backend, batch, states, out) of the reference, which works on f32, and of all others.
  template <typename Run>
  void compare(const Batch& batch, const HostTensor& states, int64_t columns, DType act,
               double tolerance, const std::string& what, const Run& run) {
    const auto result = [&](Backend& backend, DType type) {
      const DeviceTensor device_states(backend, states);
      const DeviceTensor out(backend, HostTensor(type, batch.n_tokens(), columns, 5));
      run(backend, type, backend.upload(batch), layer_of(device_states), out.matrix());
      return std::pair(out.fetch(), device_states.fetch());
    };
    const auto want = result(*reference_, DType::f32);
    const auto bound = [&](const HostTensor& of, double rounding) {
      return [&of, rounding, tolerance](int64_t r, int64_t c) {
        return rounding * std::abs(of.at(r, c)) + tolerance;
      };
    };
    for (const auto& backend : backends_) {
      const auto got = result(*backend, act);
      const std::string name = backend->description() + ": " + what;
      expect_near(got.first, want.first, bound(want.first, unit_roundoff(act)), name);
      expect_near(got.second, want.second, bound(want.second, 0), name + ", states");
    }
  }
};

TEST_P(BackendRecurrent, ConvolveTakesTheLastElementsOfItsText) {
  for (const DType act : activation_types()) {
    for (const int64_t channels : {1, 20, 150}) {
      for (const int32_t taps : {2, 3, 4}) {
        for (const Activation activation : {Activation::none, Activation::silu}) {
          const Batch batch = batch_with_states();
          const HostTensor x = random_tensor(random_, act, batch.n_tokens(), channels, 7);
          const HostTensor weight = random_tensor(random_, DType::f32, taps, channels);
          const HostTensor bias = random_tensor(random_, DType::f32, 1, channels);
          const HostTensor states = random_states((taps - 1) * channels);
          const bool has_bias = taps != 3;
          compare(batch, states, channels, act, 2e-6 * taps,
                  std::to_string(taps) + " taps of " + std::to_string(channels),
                  [&](Backend& backend, DType type, const BatchView& view, const StateLayer& layer,
                      const Matrix& out) {
                    const DeviceTensor device_x(backend, x.map(type, [](float v) { return v; }));
                    const DeviceTensor device_weight(backend, weight);
                    const DeviceNumbers device_bias(backend, has_bias ? &bias : nullptr);
                    const Convolution convolution{
                        .taps = taps,
                        .weight = static_cast<const float*>(device_weight.data()),
                        .bias = device_bias.data(),
                        .activation = activation};
                    backend.convolve(view, device_x.matrix(), convolution, layer, out);
                    backend.synchronize();
                  });
        }
      }
    }
  }
}

struct RecurrenceShape {
  int32_t heads = 1;
  int32_t key_heads = 1;
  int32_t key_dim = 8;
  int32_t value_dim = 8;
};

TEST_P(BackendRecurrent, RecurGoesOnFromTokenToToken) {
  constexpr RecurrenceShape kShapes[] = {{1, 1, 1, 1},     {3, 1, 5, 7},   {4, 2, 12, 20},
                                         {2, 2, 128, 128}, {4, 1, 64, 80}, {2, 1, 100, 33}};
  for (const DType act : activation_types()) {
    for (const RecurrenceShape& shape : kShapes) {
      for (const bool delta : {true, false}) {
        const Batch batch = batch_with_states();
        const int64_t tokens = batch.n_tokens();
        const auto random = [&](int64_t cols, float deviation) {
          return random_tensor(random_, act, tokens, cols, 4, deviation);
        };
        const HostTensor q = random(int64_t{shape.key_heads} * shape.key_dim, 1);
        const HostTensor k = random(int64_t{shape.key_heads} * shape.key_dim, delta ? 1 : 0.2F);
        const HostTensor v = random(int64_t{shape.heads} * shape.value_dim, 1);
        const HostTensor gates =
            random_tensor(random_, DType::f32, tokens, shape.heads * (delta ? 2 : 1), 1);
        const HostTensor rates =
            random_tensor(random_, DType::f32, 1, shape.heads).map(DType::f32, [](float x) {
              return -std::exp(x);
            });
        const HostTensor steps = random_tensor(random_, DType::f32, 1, shape.heads);
        const HostTensor skips = random_tensor(random_, DType::f32, 1, shape.heads);
        const HostTensor states =
            random_states(int64_t{shape.heads} * shape.key_dim * shape.value_dim);
        compare(batch, states, v.cols, act, 1e-4,
                std::to_string(shape.heads) + " heads of " + std::to_string(shape.key_dim) +
                    " by " + std::to_string(shape.value_dim) + (delta ? ", delta" : ""),
                [&](Backend& backend, DType type, const BatchView& view, const StateLayer& layer,
                    const Matrix& out) {
                  const auto same = [](float x) { return x; };
                  const DeviceTensor device_q(backend, q.map(type, same));
                  const DeviceTensor device_k(backend, k.map(type, same));
                  const DeviceTensor device_v(backend, v.map(type, same));
                  const DeviceTensor device_gates(backend, gates);
                  const DeviceTensor device_rates(backend, rates);
                  const DeviceTensor device_steps(backend, steps);
                  const DeviceTensor device_skips(backend, skips);
                  const auto numbers = [](const DeviceTensor& tensor) {
                    return static_cast<const float*>(tensor.data());
                  };
                  Recurrence recurrence{.n_heads = shape.heads,
                                        .n_key_heads = shape.key_heads,
                                        .key_dim = shape.key_dim,
                                        .value_dim = shape.value_dim,
                                        .delta = delta,
                                        .rates = numbers(device_rates),
                                        .steps = numbers(device_steps)};
                  if (delta) {
                    recurrence.strength = 1.5F;
                    recurrence.unit_eps = 1e-6F;
                    recurrence.query_scale = 0.7F;
                  } else {
                    recurrence.skips = numbers(device_skips);
                    recurrence.least_step = 0.1F;
                    recurrence.most_step = 1.2F;
                  }
                  backend.recur(view, device_q.matrix(), device_k.matrix(), device_v.matrix(),
                                device_gates.matrix(), recurrence, layer, out);
                  backend.synchronize();
                });
      }
    }
  }
}

FASTSTREAM_INSTANTIATE_BACKENDS(BackendRecurrent);

}  // namespace
}  // namespace faststream
