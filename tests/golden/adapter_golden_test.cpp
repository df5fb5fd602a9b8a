// Checkpoints with adapters merged into them give the logits that PEFT computes with the adapters
// beside the model (see make_adapters.py).

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "convert/adapters/write_adapter.h"
#include "convert/huggingface/hf_folder.h"
#include "convert/pipeline.h"
#include "convert/weights/read_values.h"
#include "converted_by.h"
#include "engine/runner.h"
#include "golden_data.h"
#include "model_file/model_file.h"
#include "unit/backend/test_backends.h"
#include "unit/convert/checkpoint_files.h"
#include "unit/engine/logits_distance.h"
#include "unit/support/file_helpers.h"

namespace faststream::convert {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kAdaptedVocab = 24;

std::vector<fs::path> adapters_of(const fs::path& variant) {
  std::ifstream file(variant.parent_path() / "manifest.json");
  const json manifest = json::parse(file);
  std::vector<fs::path> folders;
  for (const json& each : manifest.at("variants")) {
    if (each.at("name") != variant.filename().string()) continue;
    for (const json& name : each.at("adapters")) {
      folders.push_back(variant / name.get<std::string>());
    }
  }
  return folders;
}

class AdapterGoldenTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    golden_.folder = golden_root() / GetParam();
    adapters_ = adapters_of(golden_.folder);
    ASSERT_FALSE(adapters_.empty());
    tokenizer_ = folder_ / "tokenizer.model";
    write_bytes(tokenizer_, tiny_tokenizer(kAdaptedVocab));
    golden_.tokens = read_numbers<int32_t>(golden_.folder / "tokens.i32");
    golden_.logits = read_numbers<float>(golden_.folder / "logits.f32");
  }

  [[nodiscard]] ModelFile converted(const fs::path& checkpoint,
                                    const std::vector<fs::path>& adapters,
                                    WeightFormat format = WeightFormat::f32) const {
    ConvertOptions options;
    options.checkpoint = checkpoint;
    options.adapters = adapters;
    options.tokenizer = tokenizer_;
    options.output = folder_ / "model.bin";
    options.format = format;
    return converted_by(options);
  }

  [[nodiscard]] std::optional<ModelFile> beside(const ModelFile& model) const;

  // adapter: as TextKind has it.
  [[nodiscard]] std::vector<float> logits_of(const ModelFiles& files, int32_t adapter = 0) const {
    const auto backend = make_test_backend("reference");
    const auto tokens = static_cast<int32_t>(golden_.tokens.size());
    Runner runner(files, *backend,
                  RunnerLimits{.n_pages = tokens / kPageTokens + 3,
                               .batch = {.max_tokens = tokens, .max_logits = tokens}},
                  nullptr);
    Sequence sequence = runner.begin(tokens, adapter);
    runner.step({{{&sequence, golden_.tokens, NewTokens::Logits::all}}});
    return runner.logits();
  }

  TemporaryFolder folder_;
  fs::path tokenizer_;
  GoldenData golden_;
  std::vector<fs::path> adapters_;
};

TEST_P(AdapterGoldenTest, GivesThePackagesLogits) {
  EXPECT_LT(distance(logits_of(converted(golden_.folder, adapters_)), golden_.logits), 2e-5);
  EXPECT_GT(distance(logits_of(converted(golden_.folder, {})), golden_.logits), 0.05)
      << "without them";
}

// Whatever is done with weights on their way into a file is done with the changed ones.
TEST_P(AdapterGoldenTest, IsConvertedAsACheckpointOfTheChangedWeightsIs) {
  const SourceModel model = open_hf_folder(golden_.folder, tokenizer_, adapters_);
  TestTensors tensors;
  std::vector<std::byte> raw;
  for (const auto& [name, tensor] : model.weights.tensors()) {
    std::vector<float> values(static_cast<size_t>(tensor.elements()));
    read_values(model.weights, tensor, 0, values, raw);
    tensors[name] = {DType::f32, tensor.shape, std::move(values)};
  }
  const TemporaryFolder plain;
  std::ifstream config_file(golden_.folder / "config.json");
  json config = json::parse(config_file);
  if (config.contains("vocab_size")) config["vocab_size"] = model.config.vocab;
  write_bytes(plain / "config.json", config.dump());
  write_bytes(plain / "model.safetensors", safetensors_bytes(tensors));
  for (const WeightFormat format : {WeightFormat::f32, WeightFormat::int8, WeightFormat::int4}) {
    const ModelFile expected = converted(plain.path(), {}, format);
    const ModelFile file = converted(golden_.folder, adapters_, format);
    ASSERT_EQ(file.tensors().size(), expected.tensors().size());
    for (const auto& tensor : expected.tensors()) {
      const auto wanted = expected.bytes(tensor);
      const auto bytes = file.bytes(*file.find(tensor.name));
      ASSERT_EQ(bytes.size(), wanted.size()) << tensor.name;
      EXPECT_EQ(std::memcmp(bytes.data(), wanted.data(), bytes.size()), 0) << tensor.name;
    }
  }
}

// What the adapters of a variant give beside the model; nothing where they can only be merged.
std::optional<ModelFile> AdapterGoldenTest::beside(const ModelFile& model) const {
  ConvertOptions options;
  options.checkpoint = golden_.folder;
  options.adapters = adapters_;
  options.tokenizer = tokenizer_;
  options.output = folder_ / "adapter.bin";
  options.force = true;
  options.threads = 2;
  const std::string refusal = error_of([&] { write_adapter(options, model.name()); });
  if (refusal.empty()) return ModelFile::open(options.output);
  EXPECT_TRUE(says(refusal, golden_.folder.filename().string(), "beside a model", "--lora"));
  EXPECT_FALSE(fs::exists(options.output)) << "of a refused one nothing is left";
  return std::nullopt;
}

TEST_P(AdapterGoldenTest, GivesThePackagesLogitsBesideTheModel) {
  const ModelFile model = converted(golden_.folder, {});
  const std::optional<ModelFile> adapter = beside(model);
  const std::set<std::string> run = {"fused", "gpt2", "llama", "patterns", "text_model", "two"};
  EXPECT_EQ(adapter.has_value(), run.contains(golden_.folder.filename().string()));
  if (!adapter) return;
  const ModelFiles files(model, {&*adapter, 1});
  EXPECT_LT(distance(logits_of(files, 1), golden_.logits), 2e-5);
  const std::vector<float> without = logits_of(model);
  EXPECT_EQ(logits_of(files, 0), without) << "of sequences that have none";
}

// Where matrices are balanced and rotated, too: rounding apart, as which the merged weights'
// differs from the model's.
TEST_P(AdapterGoldenTest, IsNearTheMergedModelBesideAQuantizedOne) {
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::int8}) {
    const std::vector<float> merged = logits_of(converted(golden_.folder, adapters_, format));
    const ModelFile model = converted(golden_.folder, {}, format);
    const std::optional<ModelFile> adapter = beside(model);
    if (!adapter) return;
    const double of_adapter = distance(logits_of({model, {&*adapter, 1}}, 1), golden_.logits);
    EXPECT_LT(of_adapter, 2 * distance(merged, golden_.logits) + 0.01) << format_name(format);
    EXPECT_LT(of_adapter, distance(logits_of(model), golden_.logits) / 4) << format_name(format);
  }
}

INSTANTIATE_TEST_SUITE_P(Merged, AdapterGoldenTest, testing::ValuesIn(golden_variants("adapters/")),
                         [](const auto& info) {
                           return info.param.substr(std::string("adapters/").size());
                         });

}  // namespace
}  // namespace faststream::convert
