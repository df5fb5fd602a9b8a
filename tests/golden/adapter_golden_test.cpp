// Checkpoints with adapters merged into them give the logits that PEFT computes with the adapters
// beside the model (see make_adapters.py).

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

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

  [[nodiscard]] std::vector<float> logits_of(const ModelFile& file) const {
    const auto backend = make_test_backend("reference");
    const auto tokens = static_cast<int32_t>(golden_.tokens.size());
    Runner runner(file, *backend,
                  RunnerLimits{.n_pages = tokens / kPageTokens + 3,
                               .batch = {.max_tokens = tokens, .max_logits = tokens}},
                  nullptr);
    Sequence sequence = runner.begin(tokens);
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

INSTANTIATE_TEST_SUITE_P(Merged, AdapterGoldenTest, testing::ValuesIn(golden_variants("adapters/")),
                         [](const auto& info) {
                           return info.param.substr(std::string("adapters/").size());
                         });

}  // namespace
}  // namespace faststream::convert
