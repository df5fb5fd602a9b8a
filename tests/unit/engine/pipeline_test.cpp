// Stages, each of which has some layers of a model, give what one device gives: to the last bit
// where each is of one rank.
#include "engine/pipeline_executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "bench/random_model.h"
#include "engine/device.h"
#include "engine/engine.h"
#include "engine/kv_groups.h"
#include "engine/load_weights.h"
#include "engine/ranks.h"
#include "engine/runner.h"
#include "models/shares.h"
#include "models/tensor_plan.h"
#include "support/error.h"
#include "unit/engine/engine_model.h"
#include "unit/engine/logits_distance.h"
#include "unit/engine/mixed_requests.h"
#include "unit/engine/model_shapes.h"
#include "unit/engine/repeating_requests.h"
#include "unit/models/descriptions.h"

namespace faststream {
namespace {

constexpr RunnerLimits kStageLimits{.n_pages = 20, .batch = {.max_tokens = 128, .max_logits = 128}};

// As Ranks would have it, were CUDA not in use by then.
const int kKernelsAreLoadedAtOnceInStages = setenv("CUDA_MODULE_LOADING", "EAGER", 0);

std::string cpus(int count) {
  std::string names = "cpu";
  while (--count > 0) names += ",cpu";
  return names;
}

std::vector<int32_t> some_tokens(int32_t count, int32_t salt, int64_t vocab) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>((i * 29 + salt * 13 + i * i) % vocab));
  }
  return tokens;
}

// GPUs of so many ranks, by turns, or one that all share.
std::string gpus(int count, int n_gpus) {
  std::string names = "cuda:0";
  for (int rank = 1; rank < count; ++rank) names += ",cuda:" + std::to_string(rank % n_gpus);
  return names;
}

// A model on so many ranks, in so many stages.
struct StagedRunner {
  StagedRunner(const ModelFile& file, const std::string& devices, int32_t stages)
      : ranks(devices, static_cast<int32_t>(device_names(devices).size()), nullptr, stages),
        backend(choose_backend(ranks.device().device, 1, 0)),
        runner(ranks.load(
            file, read_config(file), *backend, false,
            [](const ModelConfig&, const RankFigures&) { return kStageLimits; }, nullptr)) {}

  Ranks ranks;
  std::unique_ptr<Backend> backend;
  Runner runner;
};

// Of two texts together, then of one, whose page is copied meanwhile; of all tokens and of some.
std::vector<float> logits_of_steps(Runner& runner) {
  const int64_t vocab = runner.config().vocab;
  std::vector<std::vector<int32_t>> texts;
  std::vector<Sequence> sequences(2);
  for (int32_t s = 0; s < 2; ++s) texts.push_back(some_tokens(40 + 5 * s, s, vocab));
  std::vector<float> all;
  using Logits = NewTokens::Logits;
  const auto step = [&](size_t first, size_t count, Logits wanted, size_t n_sequences) {
    std::vector<NewTokens> inputs;
    for (size_t s = 0; s < n_sequences; ++s) {
      inputs.push_back({&sequences[s], std::span(texts[s]).subspan(first, count), wanted});
    }
    runner.step(inputs);
    const std::vector<float> logits = runner.logits();
    all.insert(all.end(), logits.begin(), logits.end());
  };
  step(0, 20, Logits::none, 2);
  step(20, 13, Logits::all, 2);
  step(33, 2, Logits::last, 2);
  step(35, 1, Logits::last, 1);
  for (Sequence& sequence : sequences) runner.release(sequence);
  return all;
}

struct StagedKind {
  std::string name;
  ModelConfig config;
};

std::vector<StagedKind> kinds_in_stages() {
  return {{"grouped queries", odd_shape(WeightFormat::f32)},
          {"hybrid", even_hybrid_shape()},
          {"states in one stage", hybrid_engine_shape(small_delta_net())},
          {"latents", latent_decoder()},
          {"exchanging", exchanging_shape()},
          {"windows", engine_shape(WeightFormat::f32, 40)}};
}

ModelImage image_of(ModelConfig config) {
  set_formats(config, WeightFormat::f32, WeightFormat::f32, WeightFormat::f32);
  config.formats.clear();
  return bench::make_random_model(config, 7);
}

using DevicesOf = std::function<std::string(int count)>;

// of: as many devices. most: ranks that may share stages.
void expect_logits_in_stages(const DevicesOf& of, int most = 4) {
  for (const StagedKind& kind : kinds_in_stages()) {
    const ModelImage image = image_of(kind.config);
    const ModelFile file = ModelFile::from_bytes(image.bytes(), "random");
    StagedRunner alone(file, of(1), 1);
    const std::vector<float> expected = logits_of_steps(alone.runner);
    ASSERT_FALSE(expected.empty());
    for (const int32_t stages : {2, 3}) {
      if (stages > kind.config.n_layers()) continue;
      StagedRunner staged(file, of(stages), stages);
      EXPECT_EQ(logits_of_steps(staged.runner), expected) << kind.name << ", " << stages;
    }
    if (most < 4) continue;
    StagedRunner shared(file, of(4), 2);
    EXPECT_LT(distance(logits_of_steps(shared.runner), expected), 1e-4) << kind.name;
  }
}

TEST(Stages, GivesTheLogitsOfOneDevice) { expect_logits_in_stages(cpus); }

// On one GPU, and on several where there are as many.
TEST(StagesCuda, GivesTheLogitsOfOneDevice) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
  expect_logits_in_stages([](int count) { return gpus(count, 1); });
  if (cuda_device_count() > 1) {
    const int n_gpus = std::min(4, cuda_device_count());
    expect_logits_in_stages([n_gpus](int count) { return gpus(count, n_gpus); }, n_gpus);
  }
}

// Steps are under way together, and their choices may be waited for in any order, or not at all.
void expect_several_steps_under_way(const DevicesOf& of) {
  const ModelImage image = image_of(odd_shape(WeightFormat::f32));
  const ModelFile file = ModelFile::from_bytes(image.bytes(), "random");
  const auto tokens_of_both = [&](int32_t stages, const std::vector<size_t>& order) {
    StagedRunner staged(file, of(stages), stages);
    Runner& runner = staged.runner;
    const std::vector<SamplingRow> rules(1);
    std::vector<std::vector<int32_t>> texts;
    std::vector<Sequence> sequences(3);
    std::vector<std::unique_ptr<Choices>> choices;
    for (int32_t s = 0; s < 3; ++s) texts.push_back(some_tokens(9, s, runner.config().vocab));
    for (size_t s = 0; s < 3; ++s) {
      const NewTokens input{&sequences[s], texts[s], NewTokens::Logits::last};
      runner.begin_step({&input, 1});
      runner.compute({&input, 1});
      choices.push_back(runner.choose(rules));
      if (stages == 1) choices.back()->wait();
    }
    std::vector<int32_t> chosen(3, -1);
    for (const size_t s : order) {
      choices[s]->wait();
      SampledToken token;
      choices[s]->read(0, token);
      chosen[s] = token.token;
    }
    for (Sequence& sequence : sequences) runner.release(sequence);
    return chosen;
  };
  const std::vector<int32_t> alone = tokens_of_both(1, {0, 1, 2});
  EXPECT_EQ(tokens_of_both(2, {0, 1, 2}), alone);
  EXPECT_EQ(tokens_of_both(3, {2, 0, 1}), alone);
  EXPECT_EQ(tokens_of_both(2, {0, 2}), (std::vector{alone[0], -1, alone[2]}));
}

TEST(Stages, HasSeveralStepsUnderWay) { expect_several_steps_under_way(cpus); }

TEST(StagesCuda, HasSeveralStepsUnderWay) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
  for (const int n_gpus : {1, std::min(2, cuda_device_count())}) {
    expect_several_steps_under_way([n_gpus](int count) { return gpus(count, n_gpus); });
  }
}

std::vector<std::vector<std::vector<int32_t>>> texts_in_stages_on(
    const std::string& devices, const std::filesystem::path& model, int32_t stages,
    int64_t kv_tokens) {
  Engine engine(
      model,
      {.device = devices, .threads = stages, .stages = stages, .slots = 6, .kv_tokens = kv_tokens});
  return run_together(engine, requests_of_all_lengths(), samples_of);
}

std::vector<std::vector<std::vector<int32_t>>> texts_in_stages(const std::filesystem::path& model,
                                                               int32_t stages, int64_t kv_tokens) {
  return texts_in_stages_on(cpus(stages), model, stages, kv_tokens);
}

TEST(StagesCuda, GivesTheTextsOfOneDevice) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
  const std::filesystem::path model =
      engine_model_of(engine_shape(WeightFormat::f32, 40), "stages-f32");
  const auto expected = texts_in_stages_on("cuda:0", model, 1, 1024);
  EXPECT_EQ(texts_in_stages_on("cuda:0,0", model, 2, 1024), expected);
  if (cuda_device_count() > 1) {
    EXPECT_EQ(texts_in_stages_on("cuda:0,1", model, 2, 1024), expected);
  }
}

// Greedy ones and drawn ones, in company, with common beginnings and preempted.
TEST(Stages, GivesTheTextsOfOneDevice) {
  const std::filesystem::path model =
      engine_model_of(engine_shape(WeightFormat::f32, 40), "stages-f32");
  const auto expected = texts_in_stages(model, 1, 1024);
  EXPECT_EQ(texts_in_stages(model, 2, 1024), expected);
  EXPECT_EQ(texts_in_stages(model, 2, 0), expected);
  const std::filesystem::path hybrid =
      engine_model_of(hybrid_engine_shape(small_delta_net()), "stages-hybrid");
  EXPECT_EQ(texts_in_stages(hybrid, 2, 1024), texts_in_stages(hybrid, 1, 1024));
}

TEST(Stages, ScoreTokensAsOneDeviceDoes) {
  const std::filesystem::path model =
      engine_model_of(engine_shape(WeightFormat::f32, 40), "stages-f32");
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 100; ++i) tokens.push_back(3 + (i * 37) % 200);
  const auto scores = [&](int32_t stages) {
    Engine engine(model, {.device = cpus(stages), .threads = stages, .stages = stages, .slots = 6});
    return engine.score(tokens);
  };
  const std::vector<float> expected = scores(1);
  const std::vector<float> got = scores(2);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-5) << i;
}

// What is proposed for a text is so while a step of others is under way.
TEST(Stages, GivesTheTextsOfOneDeviceWithProposals) {
  std::vector<Request> all = requests_that_repeat();
  all.resize(10);
  const std::filesystem::path model = engine_model();
  const auto texts = [&](const std::string& devices, int32_t stages, const std::string& how) {
    EngineOptions options = speculating(how, 6);
    options.device = devices;
    options.stages = stages;
    Engine engine(model, options);
    Answers answers = run_together(engine, all, answer_of);
    EXPECT_EQ(engine.stats().proposed_tokens > 0, how != "off") << how;
    return answers;
  };
  const Answers expected = texts("cpu", 1, "off");
  for (const std::string& how :
       {std::string("lookup"), std::string("auto"), "draft=" + model.string()}) {
    expect_same_answers(texts("cpu,cpu", 2, how), expected, how);
  }
}

// Whose layers are alike, but for those that others need something of.
ModelConfig twelve_layers() {
  return plain_decoder({.n_layers = 12,
                        .hidden = 64,
                        .n_heads = 2,
                        .n_kv_heads = 1,
                        .head_dim = 32,
                        .ffn_hidden = 128,
                        .vocab = 600,
                        .max_context = 64});
}

std::vector<int64_t> ends_of(const ModelConfig& config, int32_t stages) {
  std::vector<int64_t> ends;
  for (const LayerRange& stage : stages_of(config, stages)) {
    EXPECT_EQ(stage.first, ends.empty() ? 0 : ends.back());
    ends.push_back(stage.end);
  }
  return ends;
}

TEST(Stages, HasStagesOfEqualSize) {
  ModelConfig config = twelve_layers();
  EXPECT_EQ(ends_of(config, 1), (std::vector<int64_t>{12}));
  // The embedding and the output matrix take as much as two layers, and are the first one's.
  EXPECT_EQ(ends_of(config, 2), (std::vector<int64_t>{5, 12}));
  EXPECT_EQ(ends_of(config, 3), (std::vector<int64_t>{2, 7, 12}));
  std::vector<int64_t> all(12);
  for (size_t n = 0; n < 12; ++n) all[n] = static_cast<int64_t>(n) + 1;
  EXPECT_EQ(ends_of(config, 12), all);
  EXPECT_THROW(stages_of(config, 13), UsageError);
}

TEST(Stages, KeepsTogetherWhatReadsEachOther) {
  ModelConfig config = twelve_layers();
  config.layer_kinds.push_back(config.layer_kinds.front());
  config.layer_kinds.back().attention().kv_of = 2;
  for (size_t n = 3; n < 9; ++n) config.layers[n] = 1;
  EXPECT_EQ(ends_of(config, 2), (std::vector<int64_t>{2, 12}));
  EXPECT_EQ(ends_of(config, 6), (std::vector<int64_t>{1, 2, 9, 10, 11, 12}));
  EXPECT_THROW(stages_of(config, 7), UsageError);
}

TEST(Stages, RefusesWhatDoesNotRunInStages) {
  for (const ModelConfig& config : {small_translator(), small_encoder()}) {
    EXPECT_THROW(stages_of(config, 2), UsageError);
  }
  ModelConfig inputs = twelve_layers();
  inputs.layer_inputs.size = 8;
  EXPECT_THROW(stages_of(inputs, 2), UsageError);
  ModelConfig streams = twelve_layers();
  streams.altup.streams = 4;
  EXPECT_THROW(stages_of(streams, 2), UsageError);
  ModelConfig aside = twelve_layers();
  aside.layer_kinds.front().aside.emplace();
  EXPECT_THROW(stages_of(aside, 2), UsageError);

  const std::filesystem::path model =
      engine_model_of(engine_shape(WeightFormat::f32, 40), "stages-f32");
  EXPECT_THROW(Engine(model, {.device = "cpu", .stages = 2}), UsageError);
  EXPECT_THROW(Engine(model, {.device = "cpu,cpu,cpu", .stages = 2}), UsageError);
  EXPECT_THROW(Engine(model, {.device = "cpu,cpu,cpu", .stages = 3}), UsageError);  // two layers
  EXPECT_THROW(Engine(model, {.device = "cpu,cpu", .stages = 0}), UsageError);
  EXPECT_THROW(Engine(model, {.device = "cuda:0,1,0,1", .stages = 2}), UsageError);  // all wait
}

// Each tensor is one stage's, and groups of layers are the same for all, as pages go by them.
TEST(Stages, DividesTensorsAndKeepsGroups) {
  const ModelConfig config = engine_shape(WeightFormat::f32, 40);
  const KvType kv{DType::f32, KvFormat::plain};
  const std::vector<KvGroup> groups = kv_groups(config, kv);
  std::map<TensorId, int> seen;
  size_t n_kv = 0;
  for (int32_t stage = 0; stage < 2; ++stage) {
    const ModelConfig share = share_of(config, {.stage = stage, .stages = 2});
    for (const TensorPlan& plan : tensor_plan(share)) {
      ++seen[plan.id];
      if (!is_of_layers(plan.id.kind)) {
        EXPECT_EQ(stage, 0) << plan.name;
      }
    }
    const std::vector<KvGroup> own = kv_groups(share, kv);
    ASSERT_EQ(own.size(), groups.size());
    for (size_t g = 0; g < groups.size(); ++g) {
      EXPECT_EQ(own[g].window, groups[g].window);
      n_kv += own[g].layers.size();
    }
  }
  EXPECT_GT(groups.size(), 1U);
  EXPECT_EQ(n_kv, kv_layers(config).size());
  for (const TensorPlan& plan : tensor_plan(config)) EXPECT_EQ(seen[plan.id], 1) << plan.name;
}

}  // namespace
}  // namespace faststream
