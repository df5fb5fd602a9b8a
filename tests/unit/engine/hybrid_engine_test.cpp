// Texts of models whose layers keep states of fixed size: what holds for pages holds for them.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "engine/engine.h"
#include "unit/backend/test_backends.h"
#include "unit/engine/engine_model.h"
#include "unit/engine/mixed_requests.h"

namespace faststream {
namespace {

// A layer with a delta net, a convolution, a scan or a state space before those with attention;
// state spaces alone, and one that has attention beside it.
ModelConfig shape_of(const std::string& name) {
  if (name == "delta_net") return hybrid_engine_shape(small_delta_net());
  if (name == "convolution") {
    return hybrid_engine_shape(ShortConvolutionConfig{.convolution = {.taps = 3}});
  }
  if (name == "delta_net_by_channel") {
    DeltaNetConfig mixer = std::get<DeltaNetConfig>(small_delta_net());
    mixer.decays_by_channel = true;
    return hybrid_engine_shape(mixer);
  }
  if (name == "linear_attention") {
    return hybrid_engine_shape(LinearAttentionConfig{.n_heads = 3, .head_dim = 12, .norm = {}});
  }
  if (name == "scan") {
    return hybrid_engine_shape(
        SelectiveScanConfig{.channels = 48,
                            .state_size = 6,
                            .step_rank = 4,
                            .convolution = {.taps = 4, .activation = Activation::silu},
                            .norm = {}});
  }
  const StateSpaceConfig mixer{.n_heads = 4,
                               .head_dim = 8,
                               .n_groups = 2,
                               .state_size = 12,
                               .convolution = {.taps = 4, .activation = Activation::silu},
                               .norm = {.kind = NormKind::rms, .eps = 1e-6F}};
  ModelConfig config = hybrid_engine_shape(mixer);
  if (name == "state_spaces_alone") config.layers = {1, 1};
  if (name == "side_by_side") {
    config.layer_kinds[1].mixers = {config.layer_kinds[0].mixers[0], mixer};
  }
  if (name == "block") {
    const LayerConfig& plain = config.layer_kinds[0];
    config.layer_kinds[1].aside = {.norm = plain.mixer_norms.before,
                                   .attention = plain.attention(),
                                   .ffn_norm = plain.ffn_norms.before,
                                   .ffn = plain.ffn};
  }
  return config;
}

using HybridParameters = std::tuple<std::string, std::string>;  // device, shape

class HybridEngine : public testing::TestWithParam<HybridParameters> {
 protected:
  void SetUp() override {
    if (device() == "cuda" && cuda_device_count() == 0) {
      GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
    }
  }
  [[nodiscard]] static std::string device() { return std::get<0>(GetParam()); }
  [[nodiscard]] static std::filesystem::path model() {
    const std::string& name = std::get<1>(GetParam());
    return engine_model_of(shape_of(name), name);
  }
  static EngineOptions options(int32_t slots, int64_t kv_tokens = 0) {
    return {.device = device(), .threads = 2, .slots = slots, .kv_tokens = kv_tokens};
  }
};

using Texts = std::vector<std::vector<std::vector<int32_t>>>;

void expect_same(const Texts& got, const Texts& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i], want[i]) << what << ", request " << i;
}

TEST_P(HybridEngine, ATextDependsNeitherOnCompanyNorOnPiecesNorOnPreemption) {
  const std::vector<Request> all = requests_of_all_lengths();
  EngineOptions plain = options(1);
  plain.prefix_sharing = false;
  Engine alone(model(), plain);
  const auto expected = run_alone(alone, all, samples_of);

  Engine engine(model(), options(8));
  expect_same(run_together(engine, all, samples_of), expected, "together");
  expect_same(run_alone(engine, all, samples_of), expected, "from the cache");
  EXPECT_GT(engine.stats().cached_tokens, 500);
  EXPECT_EQ(engine.stats().free_tokens, engine.info().kv_tokens);

  EngineOptions pieces = options(8);
  pieces.chunk = 4;
  Engine in_pieces(model(), pieces);
  expect_same(run_together(in_pieces, all, samples_of), expected, "in pieces");

  std::vector<Request> scored = all;
  for (Request& request : scored) request.prompt_logprobs = 0;
  Engine scoring(model(), options(8));
  expect_same(run_together(scoring, scored, samples_of), expected, "after their scores");
  EXPECT_EQ(scoring.stats().free_tokens, scoring.info().kv_tokens);

  EngineOptions tight = options(8, 320);
  tight.context = 320;
  Engine scoring_tightly(model(), tight);
  expect_same(run_together(scoring_tightly, scored, samples_of), expected, "scored and preempted");
  Engine preempting(model(), tight);
  expect_same(run_together(preempting, all, samples_of), expected, "preempted");
  EXPECT_GT(preempting.stats().preemptions, 0);
}

// Each turn says again all that was said, and a little more.
TEST_P(HybridEngine, AChatComputesAtMostAPageBesideWhatIsNew) {
  std::mt19937 random(29);
  Engine engine(model(), options(2));
  std::vector<int32_t> conversation{1};
  append(conversation, random_tokens(random, 44));
  int64_t processed = 0;
  for (int turn = 0; turn < 20; ++turn) {
    Request request;
    request.prompt = conversation;
    request.max_tokens = 7 + turn;
    request.ignore_eos = true;
    const Result result = engine.submit(request).get();
    const int64_t computed = engine.stats().prompt_tokens - processed;
    processed = engine.stats().prompt_tokens;
    if (turn > 0) {
      EXPECT_LE(computed, 14 + kPageTokens) << "turn " << turn;
    }
    append(conversation, result.outputs[0].tokens);
    append(conversation, random_tokens(random, 13));

    // Somebody else says something in between.
    Request other;
    std::vector<int32_t> prompt{1};
    append(prompt, random_tokens(random, 90));
    other.prompt = prompt;
    other.max_tokens = 3;
    (void)engine.submit(other).get();
    processed = engine.stats().prompt_tokens;
  }
}

// From where a second text leaves the first one, a third one goes on.
TEST_P(HybridEngine, TextsWithACommonBeginningComputeItTwice) {
  std::mt19937 random(23);
  const std::vector<int32_t> common = random_tokens(random, 319);
  Engine engine(model(), options(4));
  std::vector<Request> all;
  for (int i = 0; i < 12; ++i) {
    std::vector<int32_t> prompt{1};
    append(prompt, common);
    append(prompt, random_tokens(random, 20));
    Request request;
    request.prompt = prompt;
    request.max_tokens = 4;
    request.sampling.temperature = 0;
    all.push_back(request);
  }
  const auto together = run_together(engine, all, samples_of);
  EXPECT_LE(engine.stats().prompt_tokens, 2 * 320 + 12 * (20 + kPageTokens));
  EngineOptions plain = options(1);
  plain.prefix_sharing = false;
  Engine alone(model(), plain);
  expect_same(run_alone(alone, all, samples_of), together, "alone");
}

const auto kShapes =
    testing::Values("delta_net", "convolution", "state_space", "delta_net_by_channel",
                    "linear_attention", "scan", "state_spaces_alone", "side_by_side", "block");
std::string name_of_shape(const testing::TestParamInfo<HybridParameters>& info) {
  return std::get<1>(info.param);
}
INSTANTIATE_TEST_SUITE_P(Cpu, HybridEngine, testing::Combine(testing::Values("cpu"), kShapes),
                         name_of_shape);
INSTANTIATE_TEST_SUITE_P(Cuda, HybridEngine, testing::Combine(testing::Values("cuda"), kShapes),
                         name_of_shape);

}  // namespace
}  // namespace faststream
