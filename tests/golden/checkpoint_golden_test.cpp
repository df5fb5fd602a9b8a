// Values of checkpoints that are quantized already equal, to the last bit, those of the packages
// and formulas that made them (see make_checkpoints.py).

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/forwarding_backend.h"
#include "convert/huggingface/hf_folder.h"
#include "convert/pipeline.h"
#include "convert/weights/read_values.h"
#include "converted_by.h"
#include "engine/runner.h"
#include "golden_data.h"
#include "model_file/model_file.h"
#include "models/config.h"
#include "models/tensor_plan.h"
#include "support/dtype.h"
#include "support/hash.h"
#include "unit/backend/test_backends.h"
#include "unit/convert/checkpoint_files.h"
#include "unit/engine/logits_distance.h"
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
      {"gptq", int4_g32},         {"gptq_v2", int4_g32},
      {"awq", int4_g32},          {"awq_gemv", int4_g64},
      {"ct_mxfp4", mxfp4},        {"ct_fp8_tensor", fp8},
      {"ct_fp8_rows", fp8},       {"fbgemm_fp8", fp8},
      {"fp8_static", fp8},        {"modelopt_fp8", fp8},
      {"bnb_nf4_double", nf4},    {"pytorch_shards", int4_g32},
      {"bitnet_bitlinear", int4}, {"bitnet_autobitlinear", int4},
      {"bitnet_online", int4}};
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
    if (is_float(plan.format)) continue;
    const std::byte* row = file.bytes(*file.find(plan.name)).data();
    const auto* scales = file.find(tensor_name(scales_of(plan.id)));
    const int64_t scale_bytes = scale_shape(plan.format).row_bytes();
    const std::byte* scale = scales == nullptr ? nullptr : file.bytes(*scales).data();
    const std::vector<float>& all = expected.at(plan.name);
    const auto cols = static_cast<size_t>(plan.columns());
    std::vector<float> values(cols);
    for (size_t at = 0; at < all.size(); at += cols) {
      decode_row(plan.format, row, scale, 0, values);
      const std::span<const float> wanted = std::span(all).subspan(at, cols);
      // Integers have no zeros below zero.
      ASSERT_TRUE(is_integer(plan.format)
                      ? std::ranges::equal(values, wanted)
                      : std::memcmp(values.data(), wanted.data(), wanted.size_bytes()) == 0)
          << plan.name << " row " << at / cols;
      row += row_bytes(plan.format, plan.columns());
      if (scale != nullptr) scale += scale_bytes;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Stored, CheckpointGoldenTest,
                         testing::ValuesIn(golden_variants("checkpoints/")), [](const auto& info) {
                           return info.param.substr(std::string("checkpoints/").size());
                         });

// Keys and values in float32, whose rounding would have others of eight bits be the nearest ones.
class BackendOfFloatCaches final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  [[nodiscard]] DType kv_dtype(WeightFormat /*weight_format*/) const override { return DType::f32; }
};

// BitNet's own arithmetic (arXiv:2402.17764): weights of three values keep their bits, and products
// round what they multiply to eight bits by token, as Transformers' do (see make_bitnet_golden.py).
class BitNetGoldenTest : public testing::TestWithParam<std::string> {
 protected:
  [[nodiscard]] ModelFile converted(std::optional<WeightFormat> format) const {
    ConvertOptions options;
    options.checkpoint = golden_.folder;
    options.tokenizer = golden_.tokenizer;
    options.output = folder_ / "model.bin";
    options.format = format;
    if (!format) options.keep = "output=f32";
    return converted_by(options);
  }

  // How far those of the whole prompt are from Transformers'.
  [[nodiscard]] double distance_of_logits(const ModelFile& file) const {
    BackendOfFloatCaches backend(make_test_backend("cpu"));
    const auto n = static_cast<int32_t>(golden_.tokens.size());
    Runner runner(file, backend,
                  {.n_pages = n / kPageTokens + 3, .batch = {.max_tokens = n, .max_logits = n}},
                  nullptr);
    Sequence sequence = runner.begin(n);
    runner.step({{{&sequence, golden_.tokens, NewTokens::Logits::all}}});
    return distance(runner.logits(), golden_.logits);
  }

  TemporaryFolder folder_;
  GoldenData golden_ = load_golden("bitnet/" + GetParam());
};

TEST_P(BitNetGoldenTest, GivesTransformersLogits) {
  const ModelFile file = converted(std::nullopt);
  const ModelConfig config = config_from_json(file.header()["model"], "test");
  EXPECT_EQ(config.weight_format, WeightFormat::int4);
  EXPECT_FALSE(config.rotated);
  // They were within 4e-7; an input between two codes may elsewhere become the other one.
  EXPECT_LT(distance_of_logits(file), 0.004);
  EXPECT_GT(distance_of_logits(converted(WeightFormat::f32)), 0.015) << "nothing is rounded";
}

INSTANTIATE_TEST_SUITE_P(Stored, BitNetGoldenTest, testing::Values("online", "packed"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace faststream::convert
