// Operations of a token one after the other, as a layer has them: the same bits as by themselves.
// On some GPUs those of a token alone are one program's.
#include <algorithm>
#include <array>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "unit/backend/backend_weights.h"

namespace faststream {
namespace {

class BackendSteps : public BackendTest {
 protected:
  using Operations = std::vector<std::function<void()>>;

  // Runs the operations one after the other; `alone`: each when the one before it is done.
  static void run(Backend& backend, const Operations& operations, bool alone) {
    for (const std::function<void()>& operation : operations) {
      operation();
      if (alone) backend.synchronize();
    }
    backend.synchronize();
  }

  // The types of activations and weights for which rows' bits do not depend on others.
  static std::vector<WeightFormat> formats(const Backend& backend) {
    std::vector<WeightFormat> all = formats_summed_in_order(backend);
    if (all.empty()) all.push_back(WeightFormat::f32);
    return all;
  }
};

const float* numbers(const DeviceTensor& tensor) {
  return static_cast<const float*>(tensor.data());
}

struct MixerShape {
  int32_t heads = 1;
  int32_t key_heads = 1;
  int32_t key_dim = 8;
  int32_t value_dim = 8;
  int32_t taps = 4;
  bool delta = true;
};

// A layer of a delta net, or one with a state space's recurrence, over some tokens.
class MixerStep {
 public:
  static constexpr int64_t kHidden = 96;

  MixerStep(Random& random, Backend& backend, WeightFormat format, const MixerShape& shape)
      : backend_(backend),
        shape_(shape),
        k_dim_(int64_t{shape.key_heads} * shape.key_dim),
        v_dim_(int64_t{shape.heads} * shape.value_dim),
        channels_(2 * k_dim_ + v_dim_),
        gates_(shape.heads * (shape.delta ? 2 : 1)),
        act_(backend.activation_dtype(format)),
        in_(backend, random_weight(random, format, channels_ + v_dim_, kHidden)),
        gates_weight_(backend, random_weight(random, format, gates_, kHidden)),
        out_(backend, random_weight(random, format, kHidden, v_dim_)),
        norm_weights_(backend, random_tensor(random, DType::f32, 1, kHidden)),
        head_norm_weights_(backend, random_tensor(random, DType::f32, 1, shape.value_dim)),
        taps_(backend, random_tensor(random, DType::f32, shape.taps, channels_)),
        bias_(backend, random_tensor(random, DType::f32, 1, channels_)),
        rates_(backend, random_tensor(random, DType::f32, 1, shape.heads)
                            .map(DType::f32, [](float x) { return -std::exp(x); })),
        steps_(backend, random_tensor(random, DType::f32, 1, shape.heads)),
        skips_(backend, random_tensor(random, DType::f32, 1, shape.heads)),
        stream_(random_tensor(random, DType::f32, 1, kHidden)),
        states_(
            HostTensor(DType::f32, 3, tail() + v_dim_ * shape.key_dim).map(DType::f32, [](float) {
              return 0.0F;
            })) {}

  /// What the tokens leave: the stream, what mixers made last, and the states.
  std::vector<HostTensor> results(bool alone) {
    const DeviceTensor stream(backend_, stream_);
    const DeviceTensor normed(backend_, HostTensor(act_, 1, kHidden));
    const DeviceTensor projected(backend_, HostTensor(act_, 1, channels_ + v_dim_));
    const DeviceTensor gates(backend_, HostTensor(DType::f32, 1, gates_));
    const DeviceTensor convolved(backend_, HostTensor(act_, 1, channels_));
    const DeviceTensor sums(backend_, HostTensor(act_, 1, v_dim_));
    const DeviceTensor states(backend_, states_);
    StateLayer layer{.data = static_cast<float*>(states.data()),
                     .stride = states.matrix().stride,
                     .n_states = 3};
    const Norm norm{.kind = NormKind::rms, .weight = numbers(norm_weights_), .eps = 1e-5F};
    const Norm head_norm{
        .kind = NormKind::rms, .weight = numbers(head_norm_weights_), .eps = 1e-6F};
    const Convolution convolution{.taps = shape_.taps,
                                  .weight = numbers(taps_),
                                  .bias = shape_.taps == 3 ? nullptr : numbers(bias_),
                                  .activation = Activation::silu};
    Recurrence recurrence{.n_heads = shape_.heads,
                          .n_key_heads = shape_.key_heads,
                          .key_dim = shape_.key_dim,
                          .value_dim = shape_.value_dim,
                          .delta = shape_.delta,
                          .rates = numbers(rates_),
                          .steps = numbers(steps_)};
    if (shape_.delta) {
      recurrence.unit_eps = 1e-6F;
      recurrence.query_scale = 0.3F;
    } else {
      recurrence.skips = numbers(skips_);
      recurrence.least_step = 0.1F;
    }
    Batch batch;
    batch.tokens = batch.positions = batch.sequence_of = batch.logit_rows = {0};
    batch.query_start = {0, 1};
    batch.page_table = {0};
    batch.max_pages = 1;
    for (int32_t token = 0; token < 4; ++token) {
      batch.positions = {token};
      batch.kv_len = {token + 1};
      batch.state_from = {token == 0 ? 0 : 1 + token % 2};
      batch.state_to = {2 - token % 2};
      batch.state_border = {0};
      const BatchView view = backend_.upload(batch);
      const Matrix of_projection = projected.matrix();
      const Matrix qkv = convolved.matrix();
      const Matrix by_head(sums.data(), act_, shape_.heads, shape_.value_dim);
      Input input{.x = stream.matrix(), .norm = norm, .normed = normed.matrix()};
      Input of_sums{.x = sums.matrix()};
      const auto steps = std::to_array<std::function<void()>>({
          [&] { backend_.linear(input, in_.weight(), {}, of_projection); },
          [&] { backend_.linear(input, gates_weight_.weight(), {}, gates.matrix()); },
          [&] {
            backend_.convolve(view, of_projection.columns(0, channels_), convolution, layer, qkv);
          },
          [&] {
            backend_.recur(view, qkv.columns(0, k_dim_), qkv.columns(k_dim_, k_dim_),
                           qkv.columns(2 * k_dim_, v_dim_), gates.matrix(), recurrence,
                           layer.from(tail()), sums.matrix());
          },
          [&] { backend_.norm(by_head, head_norm, OutputMode::store, by_head); },
          [&] {
            backend_.scale(of_projection.columns(channels_, v_dim_), Activation::silu,
                           sums.matrix());
          },
          [&] {
            backend_.linear(of_sums, out_.weight(), {.output = OutputMode::add}, stream.matrix());
          },
      });
      for (const std::function<void()>& step : steps) {
        step();
        if (alone) backend_.synchronize();
      }
    }
    return {stream.fetch(), sums.fetch(), convolved.fetch(), states.fetch()};
  }

 private:
  // Floats of a state before the matrices, which begin at a multiple of 16 bytes.
  [[nodiscard]] int64_t tail() const { return ((shape_.taps - 1) * channels_ + 3) / 4 * 4; }

  Backend& backend_;
  MixerShape shape_;
  int64_t k_dim_;
  int64_t v_dim_;
  int64_t channels_;
  int64_t gates_;
  DType act_;
  DeviceWeight in_;
  DeviceWeight gates_weight_;
  DeviceWeight out_;
  DeviceTensor norm_weights_;
  DeviceTensor head_norm_weights_;
  DeviceTensor taps_;
  DeviceTensor bias_;
  DeviceTensor rates_;
  DeviceTensor steps_;
  DeviceTensor skips_;
  HostTensor stream_;
  HostTensor states_;
};

TEST_P(BackendSteps, ConvolutionsAndRecurrencesHaveTheBitsOfThoseAlone) {
  constexpr MixerShape kShapes[] = {
      {.heads = 4, .key_heads = 2, .key_dim = 128, .value_dim = 128},
      {.heads = 3, .key_heads = 1, .key_dim = 12, .value_dim = 24, .taps = 3},
      {.heads = 2, .key_heads = 2, .key_dim = 100, .value_dim = 72, .taps = 2},
      {.heads = 6, .key_heads = 2, .key_dim = 128, .value_dim = 64, .delta = false},
      {.heads = 160, .key_heads = 1, .key_dim = 16, .value_dim = 32, .delta = false},
      {.heads = 2, .key_heads = 1, .key_dim = 256, .value_dim = 32},  // of these some are
      {.heads = 4, .key_heads = 1, .key_dim = 9, .value_dim = 20},    // kernels of their own
      {.heads = 4, .key_heads = 4, .key_dim = 10, .value_dim = 10, .taps = 5, .delta = false},
  };
  for (const auto& backend : backends_) {
    for (const WeightFormat format : formats(*backend)) {
      for (const MixerShape& shape : kShapes) {
        MixerStep step(random_, *backend, format, shape);
        const std::vector<HostTensor> want = step.results(true);
        const std::vector<HostTensor> got = step.results(false);
        for (size_t i = 0; i < want.size(); ++i) {
          expect_equal(got[i], want[i],
                       backend->description() + ": result " + std::to_string(i) + ", " +
                           std::to_string(shape.heads) + " heads of " +
                           std::to_string(shape.key_dim) + " x " + std::to_string(shape.value_dim) +
                           ", " + std::string(format_name(format)));
        }
      }
    }
  }
}

// A branch with norms around it, factors of one and of elements; and the next layer's product.
TEST_P(BackendSteps, NormsAndFactorsHaveTheBitsOfThoseAlone) {
  for (const auto& backend : backends_) {
    for (const WeightFormat format : formats(*backend)) {
      const DType act = backend->activation_dtype(format);
      for (const int64_t hidden : {20, 64, 264, 1032, 2816, 5120, 8200}) {
        for (const NormKind kind : {NormKind::rms, NormKind::layer}) {
          constexpr int64_t kSmall = 64;
          const DeviceWeight widening(*backend, random_weight(random_, format, hidden, kSmall));
          const DeviceWeight narrowing(*backend, random_weight(random_, format, kSmall, hidden));
          const DeviceTensor first(*backend, random_tensor(random_, act, 1, kSmall));
          const DeviceTensor norm_weights(*backend, random_tensor(random_, DType::f32, 1, hidden));
          const DeviceTensor biases(*backend, random_tensor(random_, DType::f32, 1, hidden));
          const DeviceTensor one(*backend, random_tensor(random_, DType::f32, 1, 1));
          const HostTensor begin = random_tensor(random_, DType::f32, 1, hidden);
          const DeviceTensor outside(*backend, random_tensor(random_, act, 1, hidden));
          Norm norm{.kind = kind, .weight = numbers(norm_weights), .eps = 1e-5F};
          if (kind == NormKind::layer) norm.bias = numbers(biases);
          const Matrix factor(one.data(), DType::f32, 1, 1);

          const auto results = [&](bool alone) {
            const DeviceTensor stream(*backend, begin);
            const DeviceTensor branch(*backend, HostTensor(DType::f32, 1, hidden));
            const DeviceTensor part(*backend, HostTensor(DType::f32, 1, hidden));
            const DeviceTensor middle(*backend, HostTensor(act, 1, hidden));
            const DeviceTensor rounded(*backend, HostTensor(act, 1, hidden));
            const DeviceTensor small(*backend, HostTensor(DType::f32, 1, kSmall));
            Input input{.x = first.matrix()};
            Input of_stream{.x = stream.matrix(), .norm = norm, .normed = rounded.matrix()};
            Input of_middle{.x = middle.matrix()};
            run(*backend,
                {
                    [&] { backend->linear(input, widening.weight(), {}, part.matrix()); },
                    [&] { backend->norm(part.matrix(), norm, OutputMode::store, branch.matrix()); },
                    [&] { backend->norm(part.matrix(), norm, OutputMode::add, branch.matrix()); },
                    [&] { backend->norm(branch.matrix(), norm, OutputMode::add, stream.matrix()); },
                    [&] { backend->scale(factor, Activation::none, stream.matrix()); },
                    [&] { backend->linear(of_stream, narrowing.weight(), {}, small.matrix()); },
                    [&] {
                      backend->linear(input, widening.weight(), {.activation = Activation::silu},
                                      middle.matrix());
                    },
                    [&] { backend->scale(branch.matrix(), Activation::sigmoid, middle.matrix()); },
                    [&] { backend->scale(outside.matrix(), Activation::gelu, middle.matrix()); },
                    [&] {
                      backend->norm(middle.matrix(), norm, OutputMode::store, middle.matrix());
                    },
                    [&] { backend->scale(outside.matrix(), Activation::none, middle.matrix()); },
                    [&] {
                      backend->linear(of_middle, narrowing.weight(), {.output = OutputMode::add},
                                      small.matrix());
                    },
                    [&] {
                      backend->norm(stream.matrix(), {}, OutputMode::store, rounded.matrix());
                    },
                },
                alone);
            return std::array{stream.fetch(), branch.fetch(), middle.fetch(), rounded.fetch(),
                              small.fetch()};
          };
          const auto want = results(true);
          const auto got = results(false);
          for (size_t i = 0; i < want.size(); ++i) {
            expect_equal(got[i], want[i],
                         backend->description() + ": result " + std::to_string(i) + " of " +
                             std::to_string(hidden) + ", norm " +
                             std::to_string(static_cast<int>(kind)) + ", " +
                             std::string(format_name(format)));
          }
        }
      }
    }
  }
}

// Gates of heads beside queries, of which two are a word, and floats.
TEST_P(BackendSteps, FactorsOfPartsOfARowHaveTheBitsOfThoseAlone) {
  constexpr int64_t kHidden = 64;
  for (const auto& backend : backends_) {
    for (const WeightFormat format : formats(*backend)) {
      const DType act = backend->activation_dtype(format);
      for (const auto& shape :
           {std::pair<int64_t, int64_t>{2, 8}, {3, 64}, {6, 128}, {20, 264}, {4, 1032}}) {
        const int64_t parts = shape.first;
        const int64_t each = shape.second;
        const int64_t n = parts * each;
        const int64_t n_gates = (parts + 3) / 4 * 4;
        const DeviceWeight widening(*backend, random_weight(random_, format, n, kHidden));
        const DeviceWeight joined(*backend, random_weight(random_, format, 32 + n_gates, kHidden));
        const DeviceWeight narrowing(*backend, random_weight(random_, format, kHidden, n));
        const DeviceTensor first(*backend, random_tensor(random_, act, 1, kHidden));
        const auto results = [&](bool alone) {
          const DeviceTensor beside(*backend, HostTensor(act, 1, 32 + n_gates));
          const DeviceTensor floats(*backend, HostTensor(DType::f32, 1, 32 + n_gates));
          const DeviceTensor middle(*backend, HostTensor(act, 1, n));
          const DeviceTensor small(*backend, HostTensor(DType::f32, 1, kHidden));
          Input input{.x = first.matrix()};
          Input of_middle{.x = middle.matrix()};
          run(*backend,
              {
                  [&] { backend->linear(input, joined.weight(), {}, beside.matrix()); },
                  [&] { backend->linear(input, joined.weight(), {}, floats.matrix()); },
                  [&] { backend->linear(input, widening.weight(), {}, middle.matrix()); },
                  [&] {
                    backend->scale(beside.matrix().columns(32, parts), Activation::sigmoid,
                                   middle.matrix());
                  },
                  [&] {
                    backend->scale(floats.matrix().columns(32, parts), Activation::softplus,
                                   middle.matrix());
                  },
                  [&] { backend->linear(of_middle, narrowing.weight(), {}, small.matrix()); },
              },
              alone);
          return std::array{middle.fetch(), small.fetch()};
        };
        const auto want = results(true);
        const auto got = results(false);
        for (size_t i = 0; i < want.size(); ++i) {
          expect_equal(got[i], want[i],
                       backend->description() + ": result " + std::to_string(i) + ", " +
                           std::to_string(parts) + " parts of " + std::to_string(each) + ", " +
                           std::string(format_name(format)));
        }
      }
    }
  }
}

// Rows of parts of a row, as of the inputs of all layers, of which one is used.
TEST_P(BackendSteps, PartsOfRowsHaveTheBitsOfThoseAlone) {
  constexpr int64_t kParts = 37;
  constexpr int64_t kSize = 64;
  constexpr int64_t kHidden = 96;
  for (const auto& backend : backends_) {
    for (const WeightFormat format : formats(*backend)) {
      const DType act = backend->activation_dtype(format);
      const DeviceWeight weight(*backend, random_weight(random_, format, kParts * kSize, kHidden));
      const DeviceWeight gate(*backend, random_weight(random_, format, kSize, kHidden));
      const DeviceTensor stream(*backend, random_tensor(random_, DType::f32, 1, kHidden));
      const DeviceTensor norm_weights(*backend, random_tensor(random_, DType::f32, 1, kSize));
      const HostTensor begin = random_tensor(random_, DType::f32, 1, kParts * kSize);
      const Norm norm{.kind = NormKind::rms, .weight = numbers(norm_weights), .eps = 1e-5F};
      const auto results = [&](bool alone) {
        const DeviceTensor all(*backend, begin);
        const DeviceTensor projected(*backend, HostTensor(act, 1, kParts * kSize));
        const DeviceTensor gates(*backend, HostTensor(act, 1, kSize));
        const DeviceTensor rounded(*backend, HostTensor(act, 1, kHidden));
        Input input{.x = stream.matrix(), .normed = rounded.matrix()};
        const Matrix by_part(all.data(), DType::f32, kParts, kSize);
        run(*backend,
            {
                [&] { backend->linear(input, weight.weight(), {}, projected.matrix()); },
                [&] {
                  backend->norm({projected.data(), act, kParts, kSize}, norm, OutputMode::add,
                                by_part);
                },
                [&] {
                  backend->linear(input, gate.weight(), {.activation = Activation::gelu_tanh},
                                  gates.matrix());
                },
                [&] {
                  backend->scale(all.matrix().columns(5 * kSize, kSize), Activation::none,
                                 gates.matrix());
                },
            },
            alone);
        return std::array{all.fetch(), gates.fetch()};
      };
      const auto want = results(true);
      const auto got = results(false);
      for (size_t i = 0; i < want.size(); ++i) {
        expect_equal(got[i], want[i], backend->description() + ": result " + std::to_string(i));
      }
    }
  }
}

// As of short convolutions: a part of a product's row is multiplied where it is by another.
TEST_P(BackendSteps, RowsThatAreChangedInPartHaveTheBitsOfThoseAlone) {
  constexpr int64_t kHidden = 96;
  for (const auto& backend : backends_) {
    for (const WeightFormat format : formats(*backend)) {
      const DType act = backend->activation_dtype(format);
      const DeviceWeight weight(*backend, random_weight(random_, format, 3 * kHidden, kHidden));
      const DeviceWeight next(*backend, random_weight(random_, format, kHidden, kHidden));
      const DeviceTensor first(*backend, random_tensor(random_, act, 1, kHidden));
      const auto results = [&](bool alone) {
        const DeviceTensor projected(*backend, HostTensor(act, 1, 3 * kHidden));
        const DeviceTensor out(*backend, HostTensor(DType::f32, 1, kHidden));
        const Matrix middle = projected.matrix().columns(kHidden, kHidden);
        const Matrix last = projected.matrix().columns(2 * kHidden, kHidden);
        Input input{.x = first.matrix()};
        Input of_middle{.x = middle};
        run(*backend,
            {
                [&] { backend->linear(input, weight.weight(), {}, projected.matrix()); },
                [&] {
                  backend->scale(projected.matrix().columns(0, kHidden), Activation::none, middle);
                },
                [&] { backend->linear(of_middle, next.weight(), {}, out.matrix()); },
                [&] { backend->scale(middle, Activation::silu, last); },
            },
            alone);
        return std::array{projected.fetch(), out.fetch()};
      };
      const auto want = results(true);
      const auto got = results(false);
      for (size_t i = 0; i < want.size(); ++i) {
        expect_equal(got[i], want[i], backend->description() + ": result " + std::to_string(i));
      }
    }
  }
}

// As in decode: products of a row for each sequence's token, of which each reads what the one
// before it makes.
TEST_P(BackendSteps, RowsOfSeveralTokensHaveTheBitsOfThoseAlone) {
  constexpr int64_t kTokens = 9;
  constexpr int64_t kOutputs = 68;
  for (const auto& backend : backends_) {
    const std::span<const int32_t> borders = backend->row_borders();
    const int64_t most = borders.empty() ? kTokens : std::min<int64_t>(kTokens, borders.front());
    for (const WeightFormat format : formats(*backend)) {
      const DType act = backend->activation_dtype(format);
      for (const auto& sizes : {std::array<int64_t, 2>{32, 48}, {1104, 96}, {96, 1040}}) {
        const int64_t hidden = sizes[0];
        const int64_t width = sizes[1];
        const DeviceWeight in(*backend, random_weight(random_, format, width, hidden));
        const DeviceWeight gate_up(*backend, random_weight(random_, format, 2 * width, width));
        const DeviceWeight down(*backend, random_weight(random_, format, hidden, width));
        const DeviceWeight output(*backend, random_weight(random_, format, kOutputs, hidden));
        const DeviceTensor norm_weights(*backend, random_tensor(random_, DType::f32, 1, hidden));
        const DeviceTensor biases(*backend, random_tensor(random_, DType::f32, 1, width));
        const HostTensor begin = random_tensor(random_, DType::f32, kTokens, hidden);
        const Norm norm{.kind = NormKind::rms, .weight = numbers(norm_weights), .eps = 1e-5F};

        const auto results = [&](int64_t together) {
          const DeviceTensor stream(*backend, begin);
          const DeviceTensor normed(*backend, HostTensor(act, kTokens, hidden));
          const DeviceTensor both(*backend, HostTensor(act, kTokens, 2 * width));
          const DeviceTensor logits(*backend, HostTensor(DType::f32, kTokens, kOutputs));
          for (int64_t first = 0; first < kTokens; first += together) {
            const int64_t count = std::min(together, kTokens - first);
            Batch batch;
            batch.page_table.assign(static_cast<size_t>(count), 0);
            batch.max_pages = 1;
            for (int64_t i = 0; i < count; ++i) batch.add_sequence(std::array{0}, 0);
            backend->upload(batch);
            const auto rows = [&](const DeviceTensor& tensor) {
              return tensor.matrix().row_range(first, count);
            };
            const Matrix left = rows(both).columns(0, width);
            const Matrix right = rows(both).columns(width, width);
            Input input{.x = rows(stream), .norm = norm, .normed = rows(normed)};
            Input of_left{.x = left};
            Input of_right{.x = right};
            Input of_sum = input;
            backend->linear(input, in.weight(), {.bias = numbers(biases)}, left);
            backend->gated_linear(of_left, gate_up.weight(), nullptr, Activation::silu, right);
            backend->linear(of_right, down.weight(), {.output = OutputMode::add}, rows(stream));
            backend->linear(of_sum, output.weight(), {}, rows(logits));
            backend->synchronize();
          }
          return std::array{stream.fetch(), both.fetch(), logits.fetch()};
        };
        const auto want = results(1);
        for (int64_t together = 2; together <= most; ++together) {
          const auto got = results(together);
          for (size_t i = 0; i < want.size(); ++i) {
            expect_equal(got[i], want[i],
                         backend->description() + ": result " + std::to_string(i) + " of " +
                             std::to_string(together) + " rows of " + std::to_string(hidden) +
                             " and " + std::to_string(width) + ", " +
                             std::string(format_name(format)));
          }
        }
      }
    }
  }
}

FASTSTREAM_INSTANTIATE_BACKENDS(BackendSteps);

}  // namespace
}  // namespace faststream
