// Adapters beside a model: what they give, who has which, and which files are refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/forwarding_backend.h"
#include "bench/random_model.h"
#include "engine/engine.h"
#include "engine/loaded_model.h"
#include "engine/runner.h"
#include "kernels/cpu/isa/isa.h"
#include "unit/backend/test_backends.h"
#include "unit/engine/adapter_files.h"
#include "unit/engine/engine_model.h"
#include "unit/engine/logits_distance.h"
#include "unit/engine/mixed_requests.h"
#include "unit/engine/model_shapes.h"
#include "unit/support/file_helpers.h"

namespace faststream {
namespace {

namespace fs = std::filesystem;

// The model with what an adapter adds to each matrix, all in f32.
ModelImage merged(const ModelFile& model, const ModelFile& adapter) {
  const ModelConfig config = read_config(model);
  std::vector<TensorSpec> specs;
  for (const TensorPlan& plan : tensor_plan(config)) {
    specs.push_back({plan.name, plan.stored_as(), plan.stored_shape()});
  }
  ModelImage image({{"model", config_to_json(config)}}, specs);
  const auto floats = [](const ModelFile& file, const std::string& name) {
    return reinterpret_cast<const float*>(file.bytes(*file.find(name)).data());
  };
  for (const TensorPlan& plan : tensor_plan(config)) {
    std::ranges::copy(model.bytes(*model.find(plan.name)), image.tensor(plan.name).begin());
    if (!takes_adapter(plan)) continue;
    auto* weights = reinterpret_cast<float*>(image.tensor(plan.name).data());
    const float* a = floats(adapter, plan.name + ".a");
    const float* b = floats(adapter, plan.name + ".b");
    for (int64_t i = 0; i < plan.shape[0] * plan.shape[1]; ++i) {
      for (int64_t k = 0; k < kAdapterRankStep; ++k) {
        weights[i] +=
            b[i / plan.shape[1] * kAdapterRankStep + k] * a[k * plan.shape[1] + i % plan.shape[1]];
      }
    }
  }
  return image;
}

std::vector<float> logits_of(const ModelFiles& files, Backend& backend, int32_t adapter) {
  Runner runner(files, backend, {.n_pages = 8, .batch = {.max_tokens = 40, .max_logits = 40}},
                nullptr);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 40; ++i) tokens.push_back(i * 37 % 131);
  Sequence sequence = runner.begin(40, adapter);
  runner.step({{{&sequence, std::span(tokens).first(35), NewTokens::Logits::all}}});
  std::vector<float> all = runner.logits();
  for (int32_t i = 35; i < 40; ++i) {
    runner.step({{{&sequence, std::span(tokens).subspan(static_cast<size_t>(i), 1)}}});
    const std::vector<float> logits = runner.logits();
    all.insert(all.end(), logits.begin(), logits.end());
  }
  runner.release(sequence);
  return all;
}

TEST(AdapterProducts, AreAddedToEveryMatrixThatTakesThem) {
  const TemporaryFolder folder;
  for (const ModelConfig& config : {odd_shape(WeightFormat::f32), rich_shape(WeightFormat::f32),
                                    hybrid_shape(WeightFormat::f32)}) {
    const ModelImage image = bench::make_random_model(config, 7);
    const ModelFile model = ModelFile::from_bytes(image.bytes(), "model");
    write_adapter_file(folder / "a.bin", model, 100);
    const ModelFile adapter = ModelFile::open(folder / "a.bin");
    const ModelImage merged_image = merged(model, adapter);
    const ModelFile other = ModelFile::from_bytes(merged_image.bytes(), "merged");
    for (const char* name : {"reference", "cpu"}) {
      const auto backend = make_test_backend(name);
      const std::vector<float> beside = logits_of({model, {&adapter, 1}}, *backend, 1);
      EXPECT_LT(distance(beside, logits_of(other, *backend, 0)), 1e-4) << name;
      EXPECT_GT(distance(beside, logits_of(model, *backend, 0)), 0.01) << name;
    }
  }
}

class AdapterEngine : public testing::Test {
 protected:
  // "one" and "two" beside the model of that format.
  void write_adapters(WeightFormat format) {
    path_ = engine_model(format);
    const ModelFile model = ModelFile::open(path_);
    write_adapter_file(folder_ / "one.bin", model, 100);
    write_adapter_file(folder_ / "two.bin", model, 300);
  }
  [[nodiscard]] EngineOptions options() const {
    return {.device = "cpu",
            .threads = 2,
            .slots = 8,
            .adapters = {{"one", folder_ / "one.bin"}, {"two", folder_ / "two.bin"}}};
  }
  static Request request(const std::vector<int32_t>& prompt, std::optional<std::string> adapter) {
    return {.prompt = prompt,
            .max_tokens = 12,
            .sampling = {.temperature = 0},
            .adapter = std::move(adapter),
            .ignore_eos = true,
            .logprobs = 0};
  }
  // Of several lengths, by turns with each adapter and without.
  static std::vector<Request> requests() {
    std::mt19937 random(5);
    std::vector<Request> all;
    const std::vector<int32_t> common = random_tokens(random, 70);
    for (int i = 0; i < 12; ++i) {
      std::vector<int32_t> prompt = i % 2 == 0 ? common : std::vector<int32_t>{};
      append(prompt, random_tokens(random, 1 + random() % 40));
      for (const char* adapter : {"two", "", "one"}) all.push_back(request(prompt, adapter));
    }
    return all;
  }
  // Tokens and, to the last bit, how likely they were.
  static std::vector<std::pair<int32_t, float>> text_of(const Result& result) {
    std::vector<std::pair<int32_t, float>> text;
    for (const PositionLogprobs& position : result.outputs.at(0).logprobs) {
      text.emplace_back(position.chosen.token, position.chosen.logprob);
    }
    return text;
  }
  [[nodiscard]] std::string error(const std::string& file) const {
    EngineOptions given = options();
    given.adapters = {{"one", folder_ / file}};
    return error_of([&] { const Engine engine(path_, given); });
  }

  TemporaryFolder folder_;
  fs::path path_;
};

// To the last bit where products with bf16, as which adapters are, have one order.
TEST_F(AdapterEngine, GivesTheSameBesideOthersAsAlone) {
  if (!cpu_supports(CpuIsa::avx512_bf16)) GTEST_SKIP() << "no products with bf16 in one order";
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::int8, WeightFormat::int4}) {
    write_adapters(format);
    EngineOptions unshared = options();
    unshared.prefix_sharing = false;
    Engine alone(path_, unshared);
    const auto expected = run_alone(alone, requests(), text_of);
    EXPECT_NE(expected[0], expected[1]);
    EXPECT_NE(expected[0], expected[2]);
    Engine together(path_, options());
    EXPECT_EQ(run_together(together, requests(), text_of), expected) << format_name(format);
  }
}

TEST_F(AdapterEngine, KeepsAdaptersApartWhenRoomRunsOut) {
  write_adapters(WeightFormat::f32);
  Engine engine(path_, options());
  std::vector<Request> all = requests();
  for (Request& request : all) request.max_tokens = 60;
  const auto expected = run_alone(engine, all, samples_of);
  EngineOptions small = options();
  small.context = 180;
  small.kv_tokens = 400;
  Engine crowded(path_, small);
  EXPECT_EQ(run_together(crowded, all, samples_of), expected);
  EXPECT_GT(crowded.stats().preemptions, 0);
}

TEST_F(AdapterEngine, SharesPrefixesOfOneAdapterAlone) {
  write_adapters(WeightFormat::f32);
  Engine engine(path_, options());
  std::mt19937 random(7);
  const std::vector<int32_t> prompt = random_tokens(random, 100);
  const auto cached = [&](const std::optional<std::string>& adapter) {
    return engine.submit(request(prompt, adapter)).get().cached_tokens;
  };
  EXPECT_EQ(cached("one"), 0);
  EXPECT_EQ(cached("two"), 0);
  EXPECT_EQ(cached(""), 0);
  for (const char* adapter : {"one", "two", ""}) EXPECT_GE(cached(adapter), 96) << adapter;
  EXPECT_GE(cached(std::nullopt), 96) << "the first one's";
}

TEST_F(AdapterEngine, TakesTheFirstUnlessAnotherIsChosen) {
  write_adapters(WeightFormat::f32);
  Engine engine(path_, options());
  EXPECT_EQ(engine.info().adapters, (std::vector<std::string>{"one", "two"}));
  const auto text = [&](Engine& of, const std::optional<std::string>& adapter) {
    return text_of(of.submit(request({5, 6, 7, 8}, adapter)).get());
  };
  EXPECT_EQ(text(engine, std::nullopt), text(engine, "one"));
  EXPECT_NE(text(engine, std::nullopt), text(engine, "two"));
  Engine plain(path_, {.device = "cpu", .threads = 2});
  EXPECT_EQ(text(engine, ""), text(plain, std::nullopt));
  EXPECT_EQ(text(plain, ""), text(plain, std::nullopt));
  EXPECT_TRUE(says(error_of([&] { text(engine, "three"); }), "\"three\"", "one, two"));
  EXPECT_TRUE(says(error_of([&] { text(plain, "one"); }), "\"one\"", "--adapter NAME=FILE"));
  const std::vector<int32_t> tokens = {5, 6, 7, 8, 9};
  EXPECT_NE(engine.score(tokens), plain.score(tokens));
}

TEST_F(AdapterEngine, HasThemInSamplesBeamsAndSpeculation) {
  write_adapters(WeightFormat::f32);
  Engine engine(path_, options());
  EngineOptions bold = options();
  bold.speculate = "lookup";
  bold.always_speculate = true;
  Engine speculating(path_, bold);
  std::vector<Request> all;
  for (const char* adapter : {"one", "two", ""}) {
    Request repeating = request({7, 8, 9, 7, 8, 9, 7, 8, 9, 7, 8}, adapter);
    repeating.max_tokens = 40;
    all.push_back(repeating);
    repeating.n = 3;
    repeating.sampling = {.temperature = 1, .seed = 3};
    all.push_back(repeating);
    Request beams = request({7, 8, 9, 10}, adapter);
    beams.search.beams = 3;
    beams.n = 3;
    all.push_back(beams);
  }
  const auto expected = run_alone(engine, all, samples_of);
  EXPECT_EQ(run_together(engine, all, samples_of), expected);
  EXPECT_EQ(run_together(speculating, all, samples_of), expected);
  for (size_t i = 0; i < 3; ++i) EXPECT_NE(expected[i], expected[i + 3]);
}

TEST_F(AdapterEngine, IsSharedByRanks) {
  write_adapters(WeightFormat::f32);
  Engine engine(path_, options());
  EngineOptions two = options();
  two.device = "cpu,cpu";
  Engine ranks(path_, two);
  const std::vector<int32_t> tokens = {5, 9, 77, 8, 90, 120, 3, 4};
  const std::vector<float> expected = engine.score(tokens);
  const std::vector<float> scores = ranks.score(tokens);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(scores[i], expected[i], 1e-4);
}

// Counts operations.
class CountingBackend final : public ForwardingBackend {
 public:
  CountingBackend(std::unique_ptr<Backend> backend, int64_t& count)
      : ForwardingBackend(std::move(backend)), count_(count) {}

 private:
  void before(std::string_view) override { ++count_; }
  int64_t& count_;
};

TEST_F(AdapterEngine, CostsNothingWithoutThem) {
  write_adapters(WeightFormat::int8);
  const auto operations = [&](EngineOptions given, const std::vector<std::string>& adapters) {
    int64_t count = 0;
    given.speculate = "off";
    given.wrap_backend = [&count](std::unique_ptr<Backend> backend) {
      return std::make_unique<CountingBackend>(std::move(backend), count);
    };
    Engine engine(path_, given);
    for (const std::string& adapter : adapters) {
      static_cast<void>(engine.submit(request({5, 6, 7, 8}, adapter)).get());
    }
    return count;
  };
  const int64_t plain = operations({.device = "cpu", .threads = 2}, {"", ""});
  EXPECT_EQ(operations(options(), {"", ""}), plain);
  EXPECT_GT(operations(options(), {"", "one"}), plain);
}

TEST_F(AdapterEngine, RefusesFilesThatDoNotBelongToTheModel) {
  write_adapters(WeightFormat::f32);
  const ModelFile model = ModelFile::open(path_);
  const auto changed = [&](const std::function<void(AdapterContents&)>& change) {
    write_adapter_file(folder_ / "bad.bin", model, 100, change);
    return error("bad.bin");
  };
  EXPECT_EQ(error("one.bin"), "");
  EXPECT_TRUE(says(error("none.bin"), "none.bin"));
  EXPECT_TRUE(says(changed([](AdapterContents& c) { c.header["adapter"]["model"] = "12"; }),
                   "bad.bin", "other weights", path_.string(), "--adapter-for"));
  EXPECT_TRUE(says(changed([](AdapterContents& c) { c.header["adapter"] = 3; }), "bad.bin"));
  EXPECT_TRUE(says(changed([](AdapterContents& c) { c.header.erase("adapter"); }), "is no adapter",
                   "--adapter-for"));
  EXPECT_TRUE(says(changed([](AdapterContents& c) { c.specs[0].name = "output.a"; }), "bad.bin",
                   "\"output.a\"", "belongs to no matrix"));
  EXPECT_TRUE(says(changed([](AdapterContents& c) { c.specs[0].name = "layers.9.ffn_down.a"; }),
                   "\"layers.9.ffn_down.a\"", "belongs to no matrix"));
  EXPECT_TRUE(
      says(changed([](AdapterContents& c) { std::swap(c.specs[0].shape[0], c.specs[0].shape[1]); }),
           "bad.bin", "\"layers.0.attention_qkv.a\""));
  EXPECT_TRUE(says(changed([](AdapterContents& c) {
                     c.specs[0].shape = {8, c.specs[0].shape[1] * 2};
                   }),
                   "the rank 8", "multiple of 16"));
  EXPECT_TRUE(says(changed([](AdapterContents& c) {
                     c.specs.erase(c.specs.begin() + 1);
                     c.values.erase(c.values.begin() + 1);
                   }),
                   "\"layers.0.attention_qkv.b\"", "missing"));
  EXPECT_TRUE(says(
      changed([](AdapterContents& c) { c.values[3][5] = std::numeric_limits<float>::quiet_NaN(); }),
      "bad.bin", "NaN or infinity"));
  EXPECT_TRUE(says(error_of([&] { const Engine engine(folder_ / "one.bin", {.device = "cpu"}); }),
                   "one.bin", "is an adapter", "--adapter NAME=FILE"));
}

TEST_F(AdapterEngine, RefusesNamesThatAreNone) {
  write_adapters(WeightFormat::f32);
  const auto error_with = [&](const std::vector<AdapterOption>& adapters) {
    EngineOptions given = options();
    given.adapters = adapters;
    return error_of([&] { const Engine engine(path_, given); });
  };
  const std::string file = folder_ / "one.bin";
  EXPECT_TRUE(says(error_with({{"", file}}), "--adapter", "NAME=FILE"));
  EXPECT_TRUE(says(error_with({{"a\nb", file}}), "--adapter", "NAME=FILE"));
  EXPECT_TRUE(says(error_with({{"one", file}, {"one", file}}), "--adapter one", "twice"));
  EXPECT_TRUE(says(error_with({{"one", folder_.path()}}), "is a folder", "--adapter-for"));
}

}  // namespace
}  // namespace faststream
