// GGUF files and element types that PyPI's gguf made (see make_gguf_golden.py), and families as
// llama.cpp's converter writes them (see make_gguf_families.py).

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "convert/gguf/block_formats.h"
#include "convert/pipeline.h"
#include "convert/quantized/held_formats.h"
#include "convert/weights/elements.h"
#include "convert/weights/quantize.h"
#include "engine/runner.h"
#include "golden_data.h"
#include "text/tokenizer/compiled_tokenizer.h"
#include "unit/backend/test_backends.h"
#include "unit/support/file_helpers.h"

namespace faststream {
namespace {

class GgufElements : public testing::TestWithParam<uint32_t> {};

TEST_P(GgufElements, DecodeToTheLastBit) {
  const convert::ElementFormat* format = convert::find_ggml_format(GetParam());
  ASSERT_NE(format, nullptr);
  const auto path = golden_root() / "gguf" / format->name;
  const auto blocks = read_numbers<std::byte>(path.string() + ".blocks");
  const auto expected = read_numbers<float>(path.string() + ".f32");
  ASSERT_EQ(format->bytes(static_cast<int64_t>(expected.size())), blocks.size());
  std::vector<float> decoded(expected.size());
  format->decode(blocks.data(), decoded);
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(decoded[i]), std::bit_cast<uint32_t>(expected[i]))
        << "element " << i << ": " << decoded[i] << " instead of " << expected[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Types, GgufElements,
                         testing::Values(2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 23, 39),
                         [](const auto& type) { return convert::ggml_type_name(type.param); });

// Of the types whose bits are kept.
TEST(GgufElementFormats, ThatAreHeldAreFoundAgain) {
  for (const uint32_t type : {2U, 39U}) {
    const convert::ElementFormat* elements = convert::find_ggml_format(type);
    const convert::Checkpoint checkpoint("test");
    const auto format =
        convert::held_format(checkpoint, {.name = "t", .format = elements, .shape = {1, 32}});
    ASSERT_EQ(format, type == 2 ? WeightFormat::int4_g32 : WeightFormat::mxfp4);
    auto row = read_numbers<float>((golden_root() / "gguf" / elements->name).string() + ".f32");
    for (size_t i = 0; i < row.size(); i += 32) {  // groups of what is no weights
      const std::span<float> group = std::span(row).subspan(i, 32);
      if (!std::isfinite(convert::largest_magnitude(group))) std::ranges::fill(group, 0.0F);
    }
    std::vector<std::byte> bytes(
        static_cast<size_t>(row_bytes(*format, static_cast<int64_t>(row.size()))));
    EXPECT_EQ(convert::quantize_row_coded(*format, row, {}, bytes.data()).squared_error, 0);
    std::vector<float> decoded(row.size());
    decode_row(*format, bytes.data(), nullptr, 0, decoded);
    for (size_t i = 0; i < row.size(); ++i) {
      ASSERT_EQ(decoded[i], row[i]) << elements->name << ", element " << i;
    }
  }
}

ModelFile converted(const char* name, std::optional<WeightFormat> format,
                    const std::string& of = "gguf") {
  const TemporaryFolder folder;
  convert::ConvertOptions options;
  options.checkpoint = golden_root() / of / name;
  options.output = folder / "m.bin";
  options.format = format;
  convert::convert_checkpoint(options);
  return ModelFile::open(options.output);  // the mapping keeps it
}

ModelFile original_of(const GoldenData& golden, bool no_mtp = false) {
  const TemporaryFolder folder;
  convert::ConvertOptions options;
  options.no_mtp = no_mtp;
  options.checkpoint = golden.folder;
  options.tokenizer = golden.tokenizer;
  options.output = folder / "m.bin";
  options.format = WeightFormat::f32;
  convert::convert_checkpoint(options);
  return ModelFile::open(options.output);
}

std::vector<float> floats(const ModelFile& file, const TensorInfo& tensor) {
  const std::span<const std::byte> bytes = file.bytes(tensor);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

class GgufModel : public testing::Test {
 protected:
  void SetUp() override {
    backend_ = make_test_backend("cpu");
    FASTSTREAM_REQUIRE_BACKEND(backend_);
  }
  // Of the whole prompt.
  std::vector<float> logits(const ModelFile& file, const GoldenData& golden) const {
    const auto runner = run(file, golden.tokens.size());
    Sequence sequence = runner->begin(static_cast<int64_t>(golden.tokens.size()));
    runner->step({{{&sequence, golden.tokens, NewTokens::Logits::all}}});
    return runner->logits();
  }
  std::unique_ptr<Runner> run(const ModelFile& file, size_t n_tokens) const {
    const auto n = static_cast<int32_t>(n_tokens);
    return std::make_unique<Runner>(
        file, *backend_,
        RunnerLimits{.n_pages = n / kPageTokens + 3, .batch = {.max_tokens = n, .max_logits = n}},
        nullptr);
  }
  std::unique_ptr<Backend> backend_;
};

TEST_F(GgufModel, InFloat32HasTheTensorsAndTheTextOfItsOriginal) {
  const GoldenData golden = load_golden("gqa");
  const ModelFile file = converted("gqa-00001-of-00002.gguf", WeightFormat::f32);
  const ModelFile original = original_of(golden);
  for (const TensorInfo& tensor : original.tensors()) {
    if (tensor.name == "tokenizer") continue;
    EXPECT_EQ(file.find(tensor.name)->checksum, tensor.checksum) << tensor.name;
  }
  const auto runner = run(file, golden.tokens.size());
  Sequence sequence;
  std::vector<int32_t> tokens;
  std::vector<SampledToken> drawn;
  runner->step({{{&sequence, golden.tokens}}});
  while (tokens.size() < golden.greedy.size()) {
    runner->sample({{sampling_row({.temperature = 0}, sequence.n_cached)}}, drawn);
    tokens.push_back(drawn.front().token);
    runner->step({{{&sequence, {&tokens.back(), 1}}}});
  }
  EXPECT_EQ(tokens, golden.greedy);
}

TEST_F(GgufModel, InQ8_0WithScaledFrequenciesIsCloseToItsOriginal) {
  const GoldenData golden = load_golden("rope_llama3");
  const ModelFile file = converted("rope_llama3_q8_0.gguf", WeightFormat::f32);
  const std::vector<float> logits = this->logits(file, golden);
  ASSERT_EQ(logits.size(), golden.logits.size());
  double difference = 0;
  double magnitude = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    difference += std::pow(double{logits[i]} - golden.logits[i], 2);
    magnitude += std::pow(double{golden.logits[i]}, 2);
  }
  EXPECT_LT(std::sqrt(difference / magnitude), 0.05);
}

struct GgufVariant {
  std::string name;
  bool other_logits = false;  ///< metadata cannot say all that config.json does
  /// Tensors, by the end of their names, into which the converter multiplies what the description
  /// has beside them.
  std::vector<std::string> other_tensors;
};

std::vector<GgufVariant> gguf_families() {
  std::ifstream file(golden_root() / "gguf_families" / "manifest.json");
  const nlohmann::json manifest = nlohmann::json::parse(file);
  std::vector<GgufVariant> families;
  for (const auto& variant : manifest.at("variants")) {
    families.push_back({variant.at("name"), variant.at("other_logits") != "",
                        variant.at("other_tensors").get<std::vector<std::string>>()});
  }
  return families;
}

class GgufFamilies : public GgufModel, public testing::WithParamInterface<GgufVariant> {
 protected:
  // Queries and keys without rotation are alike in any order of a head's elements, and decays come
  // by way of their exponentials.
  static void compare(const ModelFile& file, const TensorInfo& tensor, const ModelFile& original,
                      const TensorInfo& expected, bool any_order) {
    if (tensor.checksum == expected.checksum) return;
    std::vector<float> values = floats(file, tensor);
    std::vector<float> wanted = floats(original, expected);
    ASSERT_EQ(values.size(), wanted.size()) << tensor.name;
    if (any_order) {
      std::ranges::sort(values);
      std::ranges::sort(wanted);
    }
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(values[i], wanted[i], 2e-6) << tensor.name << " at " << i;
    }
  }
};

TEST_P(GgufFamilies, HaveTheTensorsOfTheirOriginals) {
  const GoldenData golden = load_golden("families/" + GetParam().name);
  const ModelFile file =
      converted((GetParam().name + ".gguf").c_str(), WeightFormat::f32, "gguf_families");
  // Not all converters take heads that predict further tokens along.
  const ModelFile original = original_of(golden, read_config(file).predictors.empty());
  EXPECT_EQ(file.tensors().size(), original.tensors().size());
  for (const TensorInfo& tensor : original.tensors()) {
    if (tensor.name == "tokenizer") continue;
    ASSERT_NE(file.find(tensor.name), nullptr) << tensor.name;
    const auto ends_name = [&](const std::string& end) { return tensor.name.ends_with(end); };
    if (std::ranges::any_of(GetParam().other_tensors, ends_name)) continue;
    compare(file, *file.find(tensor.name), original, tensor,
            tensor.name.find("attention_qkv") != std::string::npos);
  }
  if (GetParam().other_logits) return;
  const std::vector<float> logits = this->logits(file, golden);
  ASSERT_EQ(logits.size(), golden.logits.size());
  const float largest = std::abs(*std::ranges::max_element(
      golden.logits, [](float a, float b) { return std::abs(a) < std::abs(b); }));
  for (size_t i = 0; i < logits.size(); ++i) {
    ASSERT_NEAR(logits[i], golden.logits[i], 1e-4 * largest) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Converted, GgufFamilies, testing::ValuesIn(gguf_families()),
                         [](const auto& family) { return family.param.name; });

// Of encoder-decoders, whose golden texts are compared by way of their descriptions: what is
// computed is the same where these and all tensors are.
std::vector<std::string> gguf_seq2seq() {
  std::vector<std::string> names;
  for (const std::string& name : golden_variants("gguf_seq2seq/")) {
    names.push_back(name.substr(name.find('/') + 1));
  }
  return names;
}

class GgufSeq2Seq : public testing::TestWithParam<std::string> {};

TEST_P(GgufSeq2Seq, HaveTheDescriptionAndTheTensorsOfTheirOriginals) {
  const TemporaryFolder folder;
  std::filesystem::copy(golden_root() / "seq2seq" / GetParam(), folder.path(),
                        std::filesystem::copy_options::recursive);
  std::ifstream written(folder / "config.json");
  nlohmann::json config = nlohmann::json::parse(written);
  config["relative_attention_max_distance"] = 128;  // that of all releases, which no file says
  write_bytes(folder / "config.json", config.dump());
  const ModelFile file =
      converted((GetParam() + ".gguf").c_str(), WeightFormat::f32, "gguf_seq2seq");
  GoldenData golden;
  golden.folder = folder.path();
  golden.tokenizer = golden_root() / "gqa" / "tokenizer.model";
  const ModelFile original = original_of(golden);
  EXPECT_EQ(file.section("model"), original.section("model"));
  EXPECT_EQ(file.section("answers").at("start"), original.section("answers").at("start"));
  EXPECT_EQ(file.section("sampling").at("temperature"), 0);
  EXPECT_EQ(file.tensors().size(), original.tensors().size());
  for (const TensorInfo& tensor : original.tensors()) {
    if (tensor.name == "tokenizer") continue;
    ASSERT_NE(file.find(tensor.name), nullptr) << tensor.name;
    EXPECT_EQ(file.find(tensor.name)->checksum, tensor.checksum) << tensor.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Converted, GgufSeq2Seq, testing::ValuesIn(gguf_seq2seq()),
                         [](const auto& name) { return name.param; });

TEST_F(GgufModel, IsPackedAsBf16WhereItIsQuantized) {
  const ModelFile file = converted("rope_llama3_q8_0.gguf", std::nullopt);
  EXPECT_EQ(file.find("layers.0.attention_qkv")->dtype, DType::bf16);
  EXPECT_EQ(converted("gqa-00001-of-00002.gguf", std::nullopt).find("output")->dtype, DType::f32);
}

TEST_F(GgufModel, HasTheTokenizerOfItsOriginal) {
  const GoldenData golden = load_golden("gqa");
  const convert::SourceModel original = convert::open_source_model(golden.folder, std::nullopt);
  const convert::SourceModel model =
      convert::open_source_model(golden_root() / "gguf" / "gqa-00001-of-00002.gguf", std::nullopt);
  const auto tokenizer = [](const convert::SourceModel& source) {
    return make_compiled_tokenizer(std::as_bytes(std::span(source.tokenizer.tables)),
                                   source.tokenizer.config, "test");
  };
  for (const std::string text : {"one and two make three, said the cat.", "  a  b ", "Ünknown"}) {
    EXPECT_EQ(tokenizer(model)->encode(text), tokenizer(original)->encode(text)) << text;
  }
}

}  // namespace
}  // namespace faststream
