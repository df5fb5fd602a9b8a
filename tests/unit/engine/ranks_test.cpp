// Several ranks give what one device gives, up to rounding.
#include "engine/ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "bench/random_model.h"
#include "engine/engine.h"
#include "engine/load_weights.h"
#include "engine/runner.h"
#include "engine/source.h"
#include "models/shares.h"
#include "support/error.h"
#include "unit/engine/engine_model.h"
#include "unit/engine/logits_distance.h"
#include "unit/engine/mixed_requests.h"
#include "unit/engine/model_shapes.h"
#include "unit/models/descriptions.h"

namespace faststream {
namespace {

constexpr RunnerLimits kRankLimits{.n_pages = 20, .batch = {.max_tokens = 128, .max_logits = 128}};

std::vector<int32_t> tokens_for(int32_t count, int32_t salt, int64_t vocab) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>((i * 37 + salt * 11 + i * i) % vocab));
  }
  return tokens;
}

// Logits of all tokens of three texts, whose prompts come in pieces and together.
std::vector<float> logits_of(Runner& runner) {
  const int64_t vocab = runner.config().vocab;
  std::vector<std::vector<int32_t>> texts;
  std::vector<Sequence> sequences(3);
  for (int32_t s = 0; s < 3; ++s) texts.push_back(tokens_for(40 + 7 * s, s, vocab));
  std::vector<std::unique_ptr<Source>> sources;
  if (runner.config().encoder) {
    for (Sequence& sequence : sequences) {
      runner.caches().look_at(sequence, tokens_for(21, 5, runner.config().encoder->vocab));
    }
    Source* source = sequences[0].source.get();
    runner.read_sources(std::vector<Source*>{source});
  }
  std::vector<float> all;
  for (const auto& [first, count] : {std::pair{0, 33}, {33, 1}, {34, 2}, {36, 1}}) {
    std::vector<NewTokens> inputs;
    for (size_t s = 0; s < texts.size(); ++s) {
      inputs.push_back(
          {&sequences[s],
           std::span(texts[s]).subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
           NewTokens::Logits::all});
    }
    runner.step(inputs);
    const std::vector<float> logits = runner.logits();
    all.insert(all.end(), logits.begin(), logits.end());
  }
  for (Sequence& sequence : sequences) runner.release(sequence);
  return all;
}

struct Kind {
  std::string name;
  ModelConfig config;
};

ModelConfig one_kv_head() {
  ModelConfig config = odd_shape(WeightFormat::f32);
  config.layer_kinds[0].attention().n_kv_heads = 1;
  return config;
}

std::vector<Kind> kinds() {
  return {{"grouped queries", odd_shape(WeightFormat::f32)},
          {"one KV head", one_kv_head()},
          {"rich", rich_shape(WeightFormat::f32)},
          {"hybrid", hybrid_shape(WeightFormat::f32)},
          {"small hybrid", small_hybrid()},
          {"latents", latent_decoder()},
          {"translator", small_translator()}};
}

TEST(Ranks, GiveTheLogitsOfOneDevice) {
  for (Kind& kind : kinds()) {
    set_formats(kind.config, WeightFormat::f32, WeightFormat::f32, WeightFormat::f32);
    kind.config.formats.clear();
    const ModelImage image = bench::make_random_model(kind.config, 7);
    const ModelFile file = ModelFile::from_bytes(image.bytes(), "random");
    const ModelConfig config = read_config(file);
    const auto alone = make_reference_backend();
    Runner runner(file, *alone, kRankLimits, nullptr);
    const std::vector<float> expected = logits_of(runner);
    for (const size_t n : {2, 3, 4}) {
      RankThreads ranks(std::vector<std::string>(n, "cpu"), static_cast<int32_t>(n));
      const auto backend = make_cpu_backend(1);
      Runner ranked(lead_ranks(
          ranks.link(), file, config, *backend, "cpu", false,
          [](const ModelConfig&, const RankFigures&) { return kRankLimits; }, nullptr));
      EXPECT_LT(distance(logits_of(ranked), expected), 1e-4)
          << kind.name << " on " << n << " ranks";
    }
  }
}

// Of the kinds above, lest all be computed whole by every rank. The rich one has attention that
// normalizes all heads together, beside layers that read each other's keys.
TEST(Ranks, ShareWhatCanBeShared) {
  for (const Kind& kind : kinds()) {
    const ModelConfig share = share_of(kind.config, {0, 2});
    const bool any_mixer = std::ranges::any_of(share.layer_kinds, &LayerConfig::shares_mixers);
    EXPECT_EQ(any_mixer, kind.name != "rich") << kind.name;
    EXPECT_TRUE(std::ranges::any_of(share.layer_kinds, &LayerConfig::shares_feed_forward))
        << kind.name;
  }
}

std::vector<std::vector<std::vector<int32_t>>> texts_on(const std::filesystem::path& model,
                                                        const std::string& device) {
  Engine engine(model, {.device = device, .threads = 1, .slots = 6, .kv_tokens = 1024});
  std::vector<std::future<Result>> results;
  for (Request& request : requests_of_all_lengths()) {
    results.push_back(engine.submit(std::move(request)));
  }
  std::vector<std::vector<std::vector<int32_t>>> texts;
  for (std::future<Result>& result : results) texts.push_back(samples_of(result.get()));
  return texts;
}

// Greedy ones and drawn ones, in company, with common beginnings and preempted.
TEST(Ranks, GiveTheTextsOfOneDevice) {
  const std::filesystem::path model = engine_model_of(engine_shape(WeightFormat::f32), "ranks-f32");
  EXPECT_EQ(texts_on(model, "cpu,cpu"), texts_on(model, "cpu"));
  const std::filesystem::path hybrid =
      engine_model_of(hybrid_engine_shape(small_delta_net()), "ranks-hybrid");
  EXPECT_EQ(texts_on(hybrid, "cpu,cpu"), texts_on(hybrid, "cpu"));
}

TEST(Ranks, SayWhatDevicesMayBe) {
  const std::filesystem::path model = engine_model_of(engine_shape(WeightFormat::f32), "ranks-f32");
  for (const char* device : {"cpu,", ",cpu", "cpu,,cpu", "cpu,auto", "auto,auto", "cpu,cuda:0"}) {
    EXPECT_THROW(Engine(model, {.device = device}), UsageError) << device;
  }
  EXPECT_THROW(Engine(model, {.device = "cpu,cpu7"}), UsageError);
  EXPECT_EQ(device_names("cuda:0,1"), (std::vector<std::string>{"cuda:0", "cuda:1"}));
  EXPECT_EQ(device_names("cuda:2,cuda:5"), (std::vector<std::string>{"cuda:2", "cuda:5"}));
  EXPECT_EQ(device_names("cpu"), (std::vector<std::string>{"cpu"}));
}

}  // namespace
}  // namespace faststream
