// What recurrent layers keep of a long text is what Transformers keeps (make_state_golden.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/forwarding_backend.h"
#include "engine/runner.h"
#include "golden_data.h"
#include "searches.h"
#include "unit/backend/test_backends.h"

namespace faststream {
namespace {

// Remembers where the layers' states are.
class ObservedBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  void convolve(const BatchView& batch, const Matrix& x, const Convolution& convolution,
                const StateLayer& states, const Matrix& out) override {
    layers_.push_back(states);
    ForwardingBackend::convolve(batch, x, convolution, states, out);
  }

  // Of the last step, in the order of the layers.
  [[nodiscard]] std::vector<StateLayer> take_layers() { return std::exchange(layers_, {}); }

 private:
  std::vector<StateLayer> layers_;
};

class StateGolden : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(StateGolden, IsThatOfTransformersAfterFourThousandTokens) {
  constexpr size_t kPiece = 512;
  constexpr size_t kSingle = 40;  // tokens at the end, one a step
  const auto& [device, family] = GetParam();
  std::unique_ptr<Backend> made = make_test_backend(device);
  FASTSTREAM_REQUIRE_BACKEND(made);
  ObservedBackend backend(std::move(made));
  const auto tokens = read_numbers<int32_t>(golden_root() / "states" / "tokens.i32");
  const auto expected = read_numbers<float>(golden_root() / "states" / (family + ".f32"));
  convert::ConvertOptions options;
  options.checkpoint = golden_root() / "families" / family;
  options.tokenizer = golden_root() / "gqa" / "tokenizer.model";
  options.format = WeightFormat::f32;
  const ConvertedCheckpoint converted(options);
  const ModelFile file = ModelFile::open(converted.path());
  const auto n_tokens = static_cast<int32_t>(tokens.size());
  Runner runner(file, backend,
                {.n_pages = pages_for(n_tokens) + 1,
                 .sequences = 1,
                 .batch = {.max_tokens = kPiece, .max_logits = 1}},
                nullptr);

  Sequence sequence = runner.begin(n_tokens);
  for (size_t n = 0; n < tokens.size();) {
    const size_t rest = tokens.size() - n;
    const size_t count = rest > kSingle ? std::min(kPiece, rest - kSingle) : 1;
    (void)backend.take_layers();
    runner.step({{{&sequence, std::span(tokens).subspan(n, count)}}});
    n += count;
  }
  const int32_t state = sequence.holds.back().from;
  size_t first = 0;
  size_t layer = 0;
  for (const StateLayer& states : backend.take_layers()) {
    SCOPED_TRACE("recurrent layer " + std::to_string(layer++));
    const RecurrentShape shape = *recurrent_shape(runner.config().layer(0),
                                                  runner.config().hidden);  // all are alike
    std::vector<float> actual(static_cast<size_t>(shape.state_size()));
    ASSERT_LE(first + actual.size(), expected.size());
    backend.copy_to_host(actual.data(), states.data + state * states.stride,
                         actual.size() * sizeof(float));
    float largest = 0;
    float difference = 0;
    for (size_t i = 0; i < actual.size(); ++i) {
      ASSERT_FALSE(std::isnan(actual[i]));
      largest = std::max(largest, std::abs(expected[first + i]));
      difference = std::max(difference, std::abs(actual[i] - expected[first + i]));
    }
    EXPECT_LT(difference, 1e-3 * largest);
    first += actual.size();
  }
  EXPECT_EQ(first, expected.size());
  runner.release(sequence);
}

INSTANTIATE_TEST_SUITE_P(
    Devices, StateGolden,
    testing::Combine(testing::Values("cpu", "cuda"),
                     testing::Values("qwen3_5", "mamba2", "mamba", "kimi_linear_saved")),
    [](const auto& test) { return std::get<0>(test.param) + "_" + std::get<1>(test.param); });

}  // namespace
}  // namespace faststream
