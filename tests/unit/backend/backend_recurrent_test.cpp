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
constexpr int32_t kStates = 24;

struct RecurrenceShape {
  int32_t heads = 1;
  int32_t key_heads = 1;
  int32_t key_dim = 8;
  int32_t value_dim = 8;
  bool by_channel = false;
  float least_log_decay = 0;
  bool has_gates = true;
};

// What recur() reads, a row a token.
struct RecurInputs {
  RecurrenceShape shape;
  bool delta = false;
  HostTensor q;
  HostTensor k;
  HostTensor v;
  HostTensor gates;
  HostTensor rates;
  HostTensor steps;
  HostTensor skips;

  // Of the tokens [first, first + count).
  [[nodiscard]] RecurInputs rows(int64_t first, int64_t count) const {
    RecurInputs part = *this;
    for (HostTensor RecurInputs::*const m :
         {&RecurInputs::q, &RecurInputs::k, &RecurInputs::v, &RecurInputs::gates}) {
      part.*m = (this->*m).row_range(first, count);
    }
    return part;
  }
};

void recur(Backend& backend, DType act, const BatchView& view, const RecurInputs& inputs,
           const StateLayer& layer, const Matrix& out) {
  const auto same = [](float x) { return x; };
  const DeviceTensor q(backend, inputs.q.map(act, same));
  const DeviceTensor k(backend, inputs.k.map(act, same));
  const DeviceTensor v(backend, inputs.v.map(act, same));
  const DeviceTensor gates(backend, inputs.gates);
  const DeviceTensor rates(backend, inputs.rates);
  const DeviceTensor steps(backend, inputs.steps);
  const DeviceTensor skips(backend, inputs.skips);
  const auto numbers = [](const DeviceTensor& tensor) {
    return static_cast<const float*>(tensor.data());
  };
  Recurrence recurrence{.n_heads = inputs.shape.heads,
                        .n_key_heads = inputs.shape.key_heads,
                        .key_dim = inputs.shape.key_dim,
                        .value_dim = inputs.shape.value_dim,
                        .delta = inputs.delta,
                        .by_channel = inputs.shape.by_channel,
                        .rates = numbers(rates),
                        .steps = inputs.shape.has_gates ? numbers(steps) : nullptr,
                        .least_log_decay = inputs.shape.least_log_decay};
  if (inputs.delta) {
    recurrence.strength = 1.5F;
    recurrence.unit_eps = 1e-6F;
    recurrence.query_scale = 0.7F;
  } else {
    recurrence.skips = numbers(skips);
    recurrence.least_step = 0.1F;
    recurrence.most_step = 1.2F;
  }
  backend.recur(view, q.matrix(), k.matrix(), v.matrix(), gates.matrix(), recurrence, layer, out);
  backend.synchronize();
}

class BackendRecurrent : public BackendTest {
 protected:
  // Sequences with a text before them go on from a state of their own, and have one written at the
  // border if they come past one.
  Batch batch_with_states(const std::vector<TestSequence>& sequences = kSequences) {
    Batch batch = make_batch(random_, sequences, pages_of(sequences));
    int32_t next = 1;
    for (const TestSequence& sequence : sequences) {
      const int32_t before = sequence.kv_len - sequence.queries;
      batch.state_from.push_back(before > 0 ? next++ : 0);
      batch.state_to.push_back(next++);
      batch.state_border.push_back(border_of(sequence.kv_len) > before ? next++ : 0);
    }
    EXPECT_LE(next, kStates);
    return batch;
  }

  // Small numbers, but for the state of an empty text.
  HostTensor random_states(int64_t size, int64_t gap = 3) {
    HostTensor states = random_tensor(random_, DType::f32, kStates, size, gap, 0.5F);
    for (int64_t c = 0; c < size; ++c) states.set(0, c, 0);
    return states;
  }

  RecurInputs random_inputs(const RecurrenceShape& shape, bool delta, DType act, int64_t tokens) {
    const auto random = [&](int64_t cols, float deviation) {
      return random_tensor(random_, act, tokens, cols, 4, deviation);
    };
    RecurInputs inputs;
    inputs.shape = shape;
    inputs.delta = delta;
    inputs.q = random(int64_t{shape.key_heads} * shape.key_dim, 1);
    inputs.k = random(int64_t{shape.key_heads} * shape.key_dim, delta ? 1 : 0.2F);
    inputs.v = random(int64_t{shape.heads} * shape.value_dim, 1);
    const int64_t decays =
        shape.has_gates ? shape.heads * (shape.by_channel ? shape.key_dim : 1) : 0;
    inputs.gates =
        random_tensor(random_, DType::f32, tokens, decays + (delta ? shape.heads : 0), 1);
    inputs.rates = random_tensor(random_, DType::f32, 1, shape.heads).map(DType::f32, [](float x) {
      return -std::exp(x);
    });
    inputs.steps = random_tensor(random_, DType::f32, 1, std::max<int64_t>(decays, 1));
    inputs.skips = random_tensor(random_, DType::f32, 1, shape.heads);
    return inputs;
  }

  void compare_recur(const std::vector<TestSequence>& sequences, const RecurrenceShape& shape,
                     bool delta, DType act, int64_t padding, double of_largest) {
    const Batch batch = batch_with_states(sequences);
    const RecurInputs inputs = random_inputs(shape, delta, act, batch.n_tokens());
    const HostTensor states = random_states(int64_t{shape.heads} * shape.key_dim * shape.value_dim);
    compare(
        batch, states, inputs.v.cols, act, 1e-4,
        std::to_string(shape.heads) + " heads of " + std::to_string(shape.key_dim) + " by " +
            std::to_string(shape.value_dim) + (delta ? ", delta" : ""),
        [&](Backend& backend, DType type, const BatchView& view, const StateLayer& layer,
            const Matrix& out) { recur(backend, type, view, inputs, layer, out); },
        padding, of_largest);
  }

  static StateLayer layer_of(const DeviceTensor& states) {
    const Matrix m = states.matrix();
    return {.data = static_cast<float*>(m.data), .stride = m.stride, .n_states = kStates};
  }

  // Calls run(backend, batch, states, out) of the reference, which works on f32, and of all others.
  // Results may differ by the tolerance and by so much of the largest.
  template <typename Run>
  void compare(const Batch& batch, const HostTensor& states, int64_t columns, DType act,
               double tolerance, const std::string& what, const Run& run, int64_t padding = 5,
               double of_largest = 0) {
    const auto result = [&](Backend& backend, DType type) {
      const DeviceTensor device_states(backend, states);
      const DeviceTensor out(backend, HostTensor(type, batch.n_tokens(), columns, padding));
      run(backend, type, backend.upload(batch), layer_of(device_states), out.matrix());
      return std::pair(out.fetch(), device_states.fetch());
    };
    const auto want = result(*reference_, DType::f32);
    const auto bound = [&](const HostTensor& of, double rounding) {
      double largest = 0;
      for (int64_t r = 0; of_largest > 0 && r < of.rows; ++r) {
        for (int64_t c = 0; c < of.cols; ++c) {
          largest = std::max(largest, std::abs(double{of.at(r, c)}));
        }
      }
      const double constant = tolerance + of_largest * largest;
      return [&of, rounding, constant](int64_t r, int64_t c) {
        return rounding * std::abs(of.at(r, c)) + constant;
      };
    };
    for (const auto& backend : backends_) {
      const auto got = result(*backend, act);
      const std::string name = backend->description() + ": " + what;
      expect_near(got.first, want.first, bound(want.first, unit_roundoff(act)), name);
      expect_near(got.second, want.second, bound(want.second, 0), name + ", states");
    }
  }

  // Rows and states with gaps of so many elements.
  void compare_convolve(const std::vector<TestSequence>& sequences, int64_t channels, int32_t taps,
                        Activation activation, DType act, int64_t gap) {
    const Batch batch = batch_with_states(sequences);
    const HostTensor x = random_tensor(random_, act, batch.n_tokens(), channels, gap);
    const HostTensor weight = random_tensor(random_, DType::f32, taps, channels);
    const HostTensor bias = random_tensor(random_, DType::f32, 1, channels);
    const HostTensor states = random_states((taps - 1) * channels, gap);
    const bool has_bias = taps != 3;
    compare(
        batch, states, channels, act, 2e-6 * taps,
        std::to_string(taps) + " taps of " + std::to_string(channels),
        [&](Backend& backend, DType type, const BatchView& view, const StateLayer& layer,
            const Matrix& out) {
          const DeviceTensor device_x(backend, x.map(type, [](float v) { return v; }));
          const DeviceTensor device_weight(backend, weight);
          const DeviceNumbers device_bias(backend, has_bias ? &bias : nullptr);
          const Convolution convolution{.taps = taps,
                                        .weight = static_cast<const float*>(device_weight.data()),
                                        .bias = device_bias.data(),
                                        .activation = activation};
          backend.convolve(view, device_x.matrix(), convolution, layer, out);
          backend.synchronize();
        },
        gap);
  }
};

TEST_P(BackendRecurrent, ConvolveTakesTheLastElementsOfItsText) {
  for (const DType act : activation_types()) {
    for (const int64_t channels : {1, 20, 150}) {
      for (const int32_t taps : {2, 3, 4, 5}) {
        for (const Activation activation : {Activation::none, Activation::silu}) {
          compare_convolve(kSequences, channels, taps, activation, act, 7);
        }
      }
    }
  }
}

// A GPU then reads eight channels at a time, and in a long step runs of tokens one after the other.
TEST_P(BackendRecurrent, ConvolveTakesEightChannels) {
  constexpr int64_t kGap = 8;
  const std::vector<TestSequence> longer = {{1, 1},   {700, 760},   {2, 30}, {1, 7},
                                            {33, 65}, {1400, 1400}, {3, 3},  {1, 33}};
  for (const DType act : activation_types()) {
    for (const int32_t taps : {2, 3, 4}) {
      for (const int64_t channels : {8, 1048}) {
        compare_convolve(kSequences, channels, taps, Activation::silu, act, kGap);
      }
      compare_convolve(longer, 24, taps, Activation::none, act, kGap);
    }
  }
}

TEST_P(BackendRecurrent, RecurGoesOnFromTokenToToken) {
  constexpr RecurrenceShape kShapes[] = {{1, 1, 1, 1},     {3, 1, 5, 7},   {4, 2, 12, 20},
                                         {2, 2, 128, 128}, {4, 1, 64, 80}, {2, 1, 100, 33}};
  constexpr int64_t kOdd = 5;  // a GPU goes on token by token then
  for (const DType act : activation_types()) {
    for (const RecurrenceShape& shape : kShapes) {
      for (const bool delta : {true, false}) compare_recur(kSequences, shape, delta, act, kOdd, 0);
    }
  }
}

// Also where each sequence has one token, as in decode.
TEST_P(BackendRecurrent, RecurGoesOnWithEachChannelByItself) {
  const std::vector<TestSequence> decode = {{1, 1}, {1, 40}, {1, 64}, {1, 65}};
  constexpr RecurrenceShape kShapes[] = {{1, 1, 1, 1},    {3, 1, 5, 8},     {4, 2, 12, 20},
                                         {2, 2, 64, 64},  {2, 2, 128, 128}, {4, 1, 100, 33},
                                         {1, 1, 256, 132}};
  constexpr int64_t kEven = 6;
  for (const DType act : activation_types()) {
    for (RecurrenceShape shape : kShapes) {
      for (const auto& sequences : {kSequences, decode}) {
        compare_recur(sequences, shape, true, act, kEven, act == DType::f32 ? 0 : 0x1p-9);
        shape.by_channel = true;
        compare_recur(sequences, shape, true, act, kEven, 0);
        shape.least_log_decay = -5;
        compare_recur(sequences, shape, true, act, kEven, 0);
        shape.by_channel = false;
        compare_recur(sequences, shape, true, act, kEven, act == DType::f32 ? 0 : 0x1p-9);
        shape.least_log_decay = 0;
      }
    }
  }
}

TEST_P(BackendRecurrent, RecurGoesOnWithoutGates) {
  const std::vector<TestSequence> decode = {{1, 1}, {1, 40}, {1, 64}, {1, 65}};
  constexpr RecurrenceShape kShapes[] = {{3, 1, 5, 7}, {4, 2, 12, 20}, {2, 2, 64, 64}};
  constexpr int64_t kEven = 6;
  for (const DType act : activation_types()) {
    for (RecurrenceShape shape : kShapes) {
      shape.has_gates = false;
      for (const auto& sequences : {kSequences, decode}) {
        compare_recur(sequences, shape, false, act, kEven, act == DType::f32 ? 0 : 0x1p-9);
        compare_recur(sequences, shape, true, act, kEven, act == DType::f32 ? 0 : 0x1p-9);
      }
    }
  }
}

// What a GPU does with tensor cores, whose factors have 11 bits.
TEST_P(BackendRecurrent, RecurGoesOnOverWholePages) {
  constexpr RecurrenceShape kShapes[] = {{2, 2, 128, 128}, {4, 2, 64, 64}, {2, 1, 256, 48},
                                         {6, 1, 128, 80},  {1, 1, 16, 16}, {5, 1, 112, 32}};
  const std::vector<TestSequence> sequences = {{1, 1},    {100, 300}, {140, 140},
                                               {75, 140}, {5, 69},    {64, 96}};
  constexpr int64_t kEven = 6;
  constexpr double kOfLargest = 0x1p-9;
  for (const DType act : activation_types()) {
    for (const RecurrenceShape& shape : kShapes) {
      for (const bool delta : {true, false}) {
        compare_recur(sequences, shape, delta, act, kEven, act == DType::f32 ? 0 : kOfLargest);
      }
    }
  }
}

// Pieces of a prompt end at page borders or with it; a text may begin with a state within a page.
TEST_P(BackendRecurrent, RecurDoesNotDependOnPiecesAndCompany) {
  constexpr int32_t kBefore = 20;
  constexpr int32_t kTokens = 310;
  constexpr int32_t kStart = 1;  // states
  constexpr int32_t kBorder = 2;
  constexpr int32_t kEnds = 3;  // and the one after it, by turns
  constexpr RecurrenceShape kShape{4, 2, 128, 32};
  const HostTensor states =
      random_states(int64_t{kShape.heads} * kShape.key_dim * kShape.value_dim);
  for (const DType act : activation_types()) {
    for (const bool delta : {true, false}) {
      const RecurInputs inputs = random_inputs(kShape, delta, act, kTokens + 1);
      for (const auto& backend : backends_) {
        // Rows, then the states at the last border and at the end.
        const auto results = [&](const std::vector<int32_t>& ends, bool has_company) {
          const DeviceTensor device_states(*backend, states);
          std::vector<float> numbers;
          int32_t begin = 0;
          int32_t from = kStart;
          for (const int32_t end : ends) {
            const int32_t to = from == kEnds ? kEnds + 1 : kEnds;
            std::vector<TestSequence> sequences = {{end - begin, kBefore + end}};
            if (has_company) sequences.insert(sequences.begin(), {1, 1});
            Batch batch = make_batch(random_, sequences, pages_of(sequences));
            if (has_company) {
              batch.state_from = {0};
              batch.state_to = {kEnds + 2};
              batch.state_border = {0};
            }
            batch.state_from.push_back(from);
            batch.state_to.push_back(to);
            batch.state_border.push_back(border_of(kBefore + end) > kBefore + begin ? kBorder : 0);
            // The text's rows begin with the second, behind that of another one's only token.
            const int32_t first = has_company ? 1 : 0;
            const RecurInputs rows = inputs.rows(begin + 1 - first, batch.n_tokens());
            const DeviceTensor out(*backend, HostTensor(act, batch.n_tokens(), inputs.v.cols));
            recur(*backend, act, backend->upload(batch), rows, layer_of(device_states),
                  out.matrix());
            const HostTensor got = out.fetch();
            for (int64_t r = first; r < got.rows; ++r) {
              for (int64_t c = 0; c < got.cols; ++c) numbers.push_back(got.at(r, c));
            }
            begin = end;
            from = to;
          }
          const HostTensor got = device_states.fetch();
          for (const int32_t state : {kBorder, from}) {
            for (int64_t c = 0; c < got.cols; ++c) numbers.push_back(got.at(state, c));
          }
          return numbers;
        };
        const std::vector<float> whole = results({kTokens}, false);
        const std::string what =
            backend->description() + ", " + std::string(dtype_name(act)) + (delta ? ", delta" : "");
        EXPECT_TRUE(whole == results({kTokens}, true)) << what << ": company";
        EXPECT_TRUE(whole == results({12, 44, 236, 268, kTokens}, false)) << what << ": pieces";
        EXPECT_TRUE(whole == results({140, kTokens}, true)) << what << ": two, and company";
        EXPECT_TRUE(whole == results({1, 2, 6, 12, 301, 302, 309, kTokens}, true))
            << what << ": tokens one by one before and after pages";
      }
    }
  }
}

TEST_P(BackendRecurrent, ScanGoesOnFromTokenToToken) {
  struct Shape {
    int64_t channels;
    int32_t state_size;
  };
  constexpr Shape kShapes[] = {{1, 1}, {20, 16}, {150, 5}, {129, 33}, {64, 64}};
  for (const DType act : activation_types()) {
    for (const Shape& shape : kShapes) {
      const int64_t channels = shape.channels;
      const int32_t state_size = shape.state_size;
      const Batch batch = batch_with_states();
      const int64_t tokens = batch.n_tokens();
      const HostTensor x = random_tensor(random_, act, tokens, channels, 7);
      const HostTensor steps = random_tensor(random_, DType::f32, tokens, channels, 3);
      const HostTensor b = random_tensor(random_, DType::f32, tokens, state_size, 2);
      const HostTensor c = random_tensor(random_, DType::f32, tokens, state_size, 5);
      const HostTensor rates =
          random_tensor(random_, DType::f32, state_size, channels).map(DType::f32, [](float v) {
            return -std::exp(v);
          });
      const HostTensor added = random_tensor(random_, DType::f32, 1, channels, 0, 2);
      const HostTensor skips = random_tensor(random_, DType::f32, 1, channels);
      const HostTensor states = random_states(state_size * channels);
      compare(batch, states, channels, act, 1e-4,
              std::to_string(channels) + " channels of " + std::to_string(state_size),
              [&](Backend& backend, DType type, const BatchView& view, const StateLayer& layer,
                  const Matrix& out) {
                const DeviceTensor device_x(backend, x.map(type, [](float v) { return v; }));
                const DeviceTensor device_steps(backend, steps);
                const DeviceTensor device_b(backend, b);
                const DeviceTensor device_c(backend, c);
                const DeviceNumbers device_rates(backend, &rates);
                const DeviceNumbers device_added(backend, &added);
                const DeviceNumbers device_skips(backend, &skips);
                const SelectiveScan scan{.state_size = state_size,
                                         .rates = device_rates.data(),
                                         .steps = device_added.data(),
                                         .skips = device_skips.data()};
                backend.scan(view, device_x.matrix(), device_steps.matrix(), device_b.matrix(),
                             device_c.matrix(), scan, layer, out);
                backend.synchronize();
              });
    }
  }
}

FASTSTREAM_INSTANTIATE_BACKENDS(BackendRecurrent);

}  // namespace
}  // namespace faststream
