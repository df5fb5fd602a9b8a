// Values of checkpoints that are quantized already equal, to the last bit, those of the packages
// and formulas that made them (see make_checkpoints.py).

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "convert/huggingface/hf_folder.h"
#include "convert/pipeline.h"
#include "convert/weights/read_values.h"
#include "converted_by.h"
#include "golden_data.h"
#include "model_file/model_file.h"
#include "models/config.h"
#include "models/tensor_plan.h"
#include "support/dtype.h"
#include "support/hash.h"
#include "unit/convert/checkpoint_files.h"
#include "unit/support/file_helpers.h"

namespace faststream::convert {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kVocab = 24;

json read_json_file(const fs::path& path) {
  std::ifstream file(path);
  return json::parse(file);
}

std::string hash_of(const std::vector<float>& values) {
  const std::string_view bytes(reinterpret_cast<const char*>(values.data()),
                               values.size() * sizeof(float));
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx",
                static_cast<unsigned long long>(stable_hash(bytes)));
  return text.data();
}

class CheckpointGoldenTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    source_ = golden_root() / GetParam();
    write_bytes(folder_ / "tokenizer.model", tiny_tokenizer(kVocab));
  }

  [[nodiscard]] ModelFile converted(const fs::path& checkpoint,
                                    std::optional<WeightFormat> format = WeightFormat::f32) const {
    ConvertOptions options;
    options.checkpoint = checkpoint;
    options.tokenizer = folder_ / "tokenizer.model";
    options.output = folder_ / "model.bin";
    options.format = format;
    return converted_by(options);
  }

  TemporaryFolder folder_;
  fs::path source_;
};

TEST_P(CheckpointGoldenTest, HasTheValuesOfThePackageThatMadeIt) {
  const SourceModel model = open_hf_folder(source_, folder_ / "tokenizer.model");
  const json expected = read_json_file(source_ / "expected.json");
  const bool rounded = expected.at("rounded_to") == "bfloat16";
  std::vector<std::byte> raw;
  for (const auto& [name, matrix] : expected.at("matrices").items()) {
    const auto shape = matrix.at("shape").get<std::vector<int64_t>>();
    const SourceTensor& tensor = model.weights.require(name, shape);
    std::vector<float> values(static_cast<size_t>(tensor.elements()));
    read_values(model.weights, tensor, 0, values, raw);
    if (rounded) {
      for (float& value : values) value = static_cast<float>(BFloat16(value));
    }
    const auto first = matrix.at("first").get<std::vector<float>>();
    EXPECT_EQ(std::vector(values.begin(), values.begin() + static_cast<int64_t>(first.size())),
              first)
        << name;
    EXPECT_EQ(hash_of(values), matrix.at("hash")) << name;
  }
}

TEST_P(CheckpointGoldenTest, IsConvertedAsACheckpointOfThoseValuesIs) {
  const SourceModel model = open_hf_folder(source_, folder_ / "tokenizer.model");
  EXPECT_EQ(model.config.weight_format, WeightFormat::bf16);
  TestTensors tensors;
  std::vector<std::byte> raw;
  for (const auto& [name, tensor] : model.weights.tensors()) {
    if (name.ends_with("_proj.bias") && !model.config.layer(0).attention().qkv_bias) continue;
    std::vector<float> values(static_cast<size_t>(tensor.elements()));
    read_values(model.weights, tensor, 0, values, raw);
    tensors[name] = {DType::f32, tensor.shape, std::move(values)};
  }
  json config = read_json_file(source_ / "config.json");
  config.erase("quantization_config");
  const TemporaryFolder plain;
  write_bytes(plain / "config.json", config.dump());
  write_bytes(plain / "model.safetensors", safetensors_bytes(tensors));
  const ModelFile expected = converted(plain.path());
  const ModelFile file = converted(source_);
  ASSERT_EQ(file.tensors().size(), expected.tensors().size());
  for (const auto& tensor : expected.tensors()) {
    const auto wanted = expected.bytes(tensor);
    const auto bytes = file.bytes(*file.find(tensor.name));
    ASSERT_EQ(bytes.size(), wanted.size()) << tensor.name;
    EXPECT_EQ(std::memcmp(bytes.data(), wanted.data(), bytes.size()), 0) << tensor.name;
  }
}

// What the layers' matrices are where bits are kept; of all others floats. (Scales of ct_w4a16 are
// f32 with more bits than there is room for.)
std::optional<WeightFormat> kept_as(const std::string& name) {
  using enum WeightFormat;
  static const std::map<std::string, WeightFormat> known = {
      {"gptq", int4_g32},     {"gptq_v2", int4_g32},   {"awq", int4_g32},
      {"awq_gemv", int4_g64}, {"ct_mxfp4", mxfp4},     {"ct_fp8_tensor", fp8},
      {"ct_fp8_rows", fp8},   {"fbgemm_fp8", fp8},     {"fp8_static", fp8},
      {"modelopt_fp8", fp8},  {"bnb_nf4_double", nf4}, {"pytorch_shards", int4_g32}};
  const auto found = known.find(name);
  if (found == known.end()) return std::nullopt;
  return found->second;
}

TEST_P(CheckpointGoldenTest, KeepsItsBitsWhereAFormatHoldsThem) {
  const ModelFile floats = converted(source_);
  const ModelConfig of_floats = config_from_json(floats.header()["model"], "test");
  std::map<std::string, std::vector<float>> expected;
  for (const TensorPlan& plan : tensor_plan(of_floats)) {
    const auto bytes = floats.bytes(*floats.find(plan.name));
    std::vector<float>& values = expected[plan.name];
    values.resize(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
  }
  const ModelFile file = converted(source_, std::nullopt);
  const ModelConfig config = config_from_json(file.header()["model"], "test");
  EXPECT_FALSE(config.rotated);
  EXPECT_FALSE(config.values_rotated);
  const auto kept = kept_as(source_.filename().string());
  if (kept) {
    EXPECT_EQ(config.weight_format, *kept) << format_name(config.weight_format);
  } else {
    EXPECT_TRUE(is_float(config.weight_format)) << format_name(config.weight_format);
  }
  for (const TensorPlan& plan : tensor_plan(config)) {
    if (!is_coded(plan.format)) continue;
    const std::byte* row = file.bytes(*file.find(plan.name)).data();
    const std::vector<float>& all = expected.at(plan.name);
    const auto cols = static_cast<size_t>(plan.columns());
    std::vector<float> values(cols);
    for (size_t at = 0; at < all.size(); at += cols) {
      decode_row(plan.format, row, nullptr, 0, values);
      ASSERT_EQ(std::memcmp(values.data(), &all[at], cols * sizeof(float)), 0)
          << plan.name << " row " << at / cols;
      row += row_bytes(plan.format, plan.columns());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Stored, CheckpointGoldenTest,
                         testing::ValuesIn(golden_variants("checkpoints/")), [](const auto& info) {
                           return info.param.substr(std::string("checkpoints/").size());
                         });

}  // namespace
}  // namespace faststream::convert
