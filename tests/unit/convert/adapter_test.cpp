// Adapters that are merged into checkpoints: what is added where, and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "convert/adapters/adapter_config.h"
#include "convert/calibration/calibrate.h"
#include "convert/pipeline.h"
#include "convert/quantized/module_tensors.h"
#include "convert/weights/read_values.h"
#include "golden/golden_data.h"
#include "model_file/model_file.h"
#include "unit/convert/checkpoint_files.h"
#include "unit/support/file_helpers.h"

namespace faststream::convert {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string kQuery = "model.layers.0.self_attn.q_proj";
const std::string kDown = "model.layers.1.mlp.down_proj";
const std::string kBefore = "base_model.model.";

TestTensor tensor_of(const std::vector<int64_t>& shape, uint32_t seed) {
  const int64_t count =
      std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  return {DType::f32, shape, random_values(static_cast<size_t>(count), seed)};
}

// Factors of a module [out, in].
TestTensors factors(const std::string& module, int64_t out, int64_t in, int64_t rank,
                    uint32_t seed = 100) {
  return {{kBefore + module + ".lora_A.weight", tensor_of({rank, in}, seed)},
          {kBefore + module + ".lora_B.weight", tensor_of({out, rank}, seed + 1)}};
}

// [out, in], from any matrix of as many rows: base + scale · B · A.
std::vector<float> changed(const std::vector<float>& base, const TestTensor& a, const TestTensor& b,
                           double scale) {
  const auto rank = static_cast<size_t>(a.shape[0]);
  const auto in = static_cast<size_t>(a.shape[1]);
  std::vector<float> values(base.size());
  for (size_t i = 0; i < base.size(); ++i) {
    double sum = 0;
    for (size_t k = 0; k < rank; ++k) {
      sum += double{b.values[i / in * rank + k]} * a.values[k * in + i % in];
    }
    values[i] = static_cast<float>(base[i] + scale * sum);
  }
  return values;
}

void expect_near(const std::vector<float>& values, const std::vector<float>& expected) {
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_NEAR(values[i], expected[i], 1e-6 * std::max(1.0F, std::abs(expected[i]))) << i;
  }
}

class Adapters : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"model", "lora", "other"}) fs::create_directory(folder_ / name);
    write_hf_folder(folder_ / "model", tiny_config(), base_);
    write_adapter(factors(kQuery, 16, 16, 2));
  }
  void write_adapter(const TestTensors& tensors, const json& changes = {},
                     const std::string& name = "lora") const {
    json config = {{"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 3}};
    if (!changes.is_null()) config.merge_patch(changes);
    write_bytes(folder_ / name / "adapter_config.json", config.dump());
    write_bytes(folder_ / name / "adapter_model.safetensors", safetensors_bytes(tensors));
  }
  [[nodiscard]] SourceModel open(const std::vector<std::string>& names = {"lora"}) const {
    std::vector<fs::path> folders;
    for (const std::string& name : names) folders.push_back(folder_ / name);
    return open_source_model(folder_ / "model", std::nullopt, folders);
  }
  [[nodiscard]] std::string error(const std::vector<std::string>& names = {"lora"}) const {
    return error_of([&] { (void)open(names); });
  }
  static std::vector<float> values(const SourceModel& model, const std::string& name) {
    return values_of(model.weights, *model.weights.find(name));
  }
  const TestTensors base_ = tiny_tensors(DType::f32);
  TemporaryFolder folder_;
};

TEST_F(Adapters, AddTheirScaledProducts) {
  TestTensors tensors = factors(kQuery, 16, 16, 2);
  tensors.merge(factors(kDown, 16, 24, 2, 200));
  write_adapter(tensors);
  const SourceModel model = open();
  for (const std::string& module : {kQuery, kDown}) {
    expect_near(values(model, module + ".weight"),
                changed(base_.at(module + ".weight").values,
                        tensors.at(kBefore + module + ".lora_A.weight"),
                        tensors.at(kBefore + module + ".lora_B.weight"), 1.5));
  }
  const std::string other = "model.layers.1.self_attn.q_proj.weight";
  EXPECT_EQ(values(model, other), base_.at(other).values);
  ASSERT_EQ(model.adapters.size(), 1U);
  EXPECT_EQ(to_text(model.adapters[0]), "lora: 2 tensors changed, of rank 2");
}

TEST_F(Adapters, AddUp) {
  const TestTensors first = factors(kQuery, 16, 16, 2);
  const TestTensors second = factors(kQuery, 16, 16, 4, 300);
  write_adapter(second, {{"r", 4}, {"lora_alpha", 2}}, "other");
  const auto factor = [](const TestTensors& tensors, const char* which) {
    return tensors.at(kBefore + kQuery + which);
  };
  const std::vector<float> once =
      changed(base_.at(kQuery + ".weight").values, factor(first, ".lora_A.weight"),
              factor(first, ".lora_B.weight"), 1.5);
  const SourceModel model = open({"lora", "other"});
  expect_near(values(model, kQuery + ".weight"), changed(once, factor(second, ".lora_A.weight"),
                                                         factor(second, ".lora_B.weight"), 0.5));
  EXPECT_EQ(to_text(model.adapters.at(1)), "other: 1 tensor changed, of rank 4");
}

TEST_F(Adapters, AreKnownByTheNamesOfOtherClasses) {
  const std::vector<float> expected = values(open(), kQuery + ".weight");
  const auto named = [&](const std::string& before) {
    TestTensors tensors;
    for (const auto& [name, tensor] : factors(kQuery, 16, 16, 2)) {
      tensors[before + name.substr(kBefore.size() + std::string("model.").size())] = tensor;
    }
    return tensors;
  };
  for (const char* before : {"base_model.model.", "base_model.model.model.", "model.", "",
                             "base_model.model.model.language_model."}) {
    write_adapter(named(before));
    EXPECT_EQ(values(open(), kQuery + ".weight"), expected) << before;
  }
  TestTensors short_names;
  for (const auto& [name, tensor] : base_) {
    short_names[name.starts_with("model.") ? name.substr(6) : name] = tensor;
  }
  write_hf_folder(folder_ / "model", tiny_config(), short_names);
  for (const char* before : {"base_model.model.", "base_model.model.model."}) {
    write_adapter(named(before));
    EXPECT_EQ(values(open(), kQuery.substr(6) + ".weight"), expected) << before;
  }
}

TEST_F(Adapters, ReplaceWhatTheyHaveWhole) {
  for (const char* part : {"", ".modules_to_save", ".base_layer"}) {
    TestTensors tensors = factors(kQuery, 16, 16, 2);
    const TestTensor head = tensor_of({kTinyVocab, 16}, 9);
    tensors[kBefore + "lm_head" + part + ".weight"] = head;
    write_adapter(tensors);
    const SourceModel model = open();
    EXPECT_EQ(values(model, "lm_head.weight"), head.values) << part;
    EXPECT_EQ(to_text(model.adapters[0]), "lora: 1 tensor changed, of rank 2, 1 tensor replaced");
  }
}

TEST_F(Adapters, MayHaveTokensThatTheModelHasNot) {
  const std::vector<fs::path> lora = {folder_ / "lora"};
  const auto open_with = [&](const fs::path& tokenizer) {
    return open_source_model(folder_ / "model", tokenizer, lora);
  };
  write_bytes(folder_ / "more.model", tiny_tokenizer(kTinyVocab + 2));
  const TestTensor table = tensor_of({kTinyVocab + 2, 16}, 8);
  const TestTensor head = tensor_of({kTinyVocab + 2, 16}, 9);
  TestTensors tensors = factors("lm_head", kTinyVocab + 2, 16, 2);
  tensors[kBefore + "model.embed_tokens.weight"] = table;
  tensors[kBefore + "lm_head.base_layer.weight"] = head;
  write_adapter(tensors);
  EXPECT_TRUE(says(error(), "lora", "22 tokens", "20", "--tokenizer"));
  const SourceModel model = open_with(folder_ / "more.model");
  EXPECT_EQ(model.config.vocab, kTinyVocab + 2);
  EXPECT_EQ(values(model, "model.embed_tokens.weight"), table.values);
  expect_near(values(model, "lm_head.weight"),
              changed(head.values, tensors.at(kBefore + "lm_head.lora_A.weight"),
                      tensors.at(kBefore + "lm_head.lora_B.weight"), 1.5));

  write_adapter({{kBefore + "model.embed_tokens.weight", table}});
  EXPECT_TRUE(says(error_of([&] { (void)open_with(folder_ / "more.model"); }), "lm_head.weight",
                   "[20, 16]", "[22, 16]"));
  json config = tiny_config();
  config["tie_word_embeddings"] = true;
  TestTensors tied = base_;
  tied.erase("lm_head.weight");
  write_hf_folder(folder_ / "model", config, tied);
  const SourceModel of_tied = open_with(folder_ / "more.model");
  EXPECT_TRUE(of_tied.config.output.tied);
  EXPECT_EQ(of_tied.config.vocab, kTinyVocab + 2);
  EXPECT_EQ(values(of_tied, "model.embed_tokens.weight"), table.values);
}

TEST_F(Adapters, PartATiedMatrixThatTheyChangeInOnePlace) {
  json config = tiny_config();
  config["tie_word_embeddings"] = true;
  TestTensors tied = base_;
  tied.erase("lm_head.weight");
  write_hf_folder(folder_ / "model", config, tied);
  EXPECT_TRUE(open().config.output.tied) << "an adapter of something else";
  const std::vector<float>& table = base_.at("model.embed_tokens.weight").values;

  const TestTensors of_output = factors("lm_head", kTinyVocab, 16, 2);
  write_adapter(of_output);
  const SourceModel output_changed = open();
  EXPECT_FALSE(output_changed.config.output.tied);
  EXPECT_EQ(values(output_changed, "model.embed_tokens.weight"), table);
  expect_near(values(output_changed, "lm_head.weight"),
              changed(table, of_output.at(kBefore + "lm_head.lora_A.weight"),
                      of_output.at(kBefore + "lm_head.lora_B.weight"), 1.5));

  const std::string embedding = kBefore + "model.embed_tokens.lora_embedding_";
  write_adapter(
      {{embedding + "A", tensor_of({2, kTinyVocab}, 5)}, {embedding + "B", tensor_of({16, 2}, 6)}});
  const SourceModel table_changed = open();
  EXPECT_FALSE(table_changed.config.output.tied);
  EXPECT_EQ(values(table_changed, "lm_head.weight"), table);
  EXPECT_NE(values(table_changed, "model.embed_tokens.weight"), table);

  write_adapter(
      {{embedding + "A", tensor_of({2, kTinyVocab}, 5)}, {embedding + "B", tensor_of({16, 2}, 6)}},
      {{"ensure_weight_tying", true}});
  EXPECT_TRUE(open().config.output.tied) << "the adapter is of both places";
}

TEST_F(Adapters, GiveEachOutputItsMagnitude) {
  TestTensors tensors = factors(kDown, 16, 24, 2);
  TestTensor magnitudes = tensor_of({16}, 7);
  for (float& value : magnitudes.values) value = 1 + std::abs(value);
  tensors[kBefore + kDown + ".lora_magnitude_vector"] = magnitudes;
  write_adapter(tensors, {{"use_dora", true}});
  const SourceModel model = open();
  const std::vector<float> sum =
      changed(base_.at(kDown + ".weight").values, tensors.at(kBefore + kDown + ".lora_A.weight"),
              tensors.at(kBefore + kDown + ".lora_B.weight"), 1.5);
  const std::vector<float> all = values(model, kDown + ".weight");
  for (size_t row = 0; row < 16; ++row) {
    double squares = 0;
    for (size_t i = 0; i < 24; ++i) squares += double{sum[row * 24 + i]} * sum[row * 24 + i];
    for (size_t i = row * 24; i < (row + 1) * 24; ++i) {
      ASSERT_NEAR(all[i], sum[i] * magnitudes.values[row] / std::sqrt(squares), 1e-6) << i;
    }
  }
  // Parts of rows are those of whole ones.
  std::vector<std::byte> raw;
  std::vector<float> block(3 * 5);
  const SourceTensor& tensor = *model.weights.find(kDown + ".weight");
  read_block(model.weights, tensor, {4, 3, 10, 5}, block, raw);
  for (size_t row = 0; row < 3; ++row) {
    for (size_t i = 0; i < 5; ++i) EXPECT_EQ(block[row * 5 + i], all[(row + 4) * 24 + 10 + i]);
  }
}

TEST_F(Adapters, MayHaveRanksThatNoMemoryIsTakenFor) {
  constexpr int64_t kRank = 70000;
  TestTensors tensors = {{kBefore + kQuery + ".lora_A.weight",
                          {DType::bf16, {kRank, 16}, std::vector(16 * kRank, 1.0F)}},
                         {kBefore + kQuery + ".lora_B.weight",
                          {DType::bf16, {16, kRank}, std::vector(16 * kRank, 0x1p-16F)}}};
  write_adapter(tensors, {{"r", kRank}, {"lora_alpha", kRank}});
  std::vector<float> expected = base_.at(kQuery + ".weight").values;
  for (float& value : expected) value += kRank * 0x1p-16F;
  EXPECT_EQ(values(open(), kQuery + ".weight"), expected);
}

TEST_F(Adapters, ChangeQuantizedMatrices) {
  const fs::path gptq = golden_root() / "checkpoints" / "gptq";
  const std::string module = "model.layers.0.self_attn.q_proj";
  write_bytes(folder_ / "tokenizer.model", tiny_tokenizer(24));
  const TestTensors tensors = factors(module, 64, 64, 2);
  write_adapter(tensors);
  const auto open_gptq = [&](const std::vector<fs::path>& adapters) {
    return open_source_model(gptq, folder_ / "tokenizer.model", adapters);
  };
  const SourceModel plain = open_gptq({});
  const SourceModel model = open_gptq({folder_ / "lora"});
  expect_near(
      values(model, module + ".weight"),
      changed(values(plain, module + ".weight"), tensors.at(kBefore + module + ".lora_A.weight"),
              tensors.at(kBefore + module + ".lora_B.weight"), 1.5));
  // Others keep their bits.
  ConvertOptions options;
  options.checkpoint = gptq;
  options.tokenizer = folder_ / "tokenizer.model";
  options.adapters = {folder_ / "lora"};
  options.output = folder_ / "m.bin";
  const ConvertReport report = convert_checkpoint(options);
  EXPECT_EQ(report.kept.at(WeightFormat::int4_g32), 3U);
  const ModelFile file = ModelFile::open(options.output);
  EXPECT_EQ(file.find("layers.0.attention_qkv")->dtype, DType::bf16);
  EXPECT_EQ(file.header()["provenance"]["adapters"], json({"lora"}));
}

TEST_F(Adapters, CountWhereActivationsAreMeasured) {
  const TensorId measured{TensorKind::attention_out, 0};
  const auto mean_squares = [&](const std::vector<fs::path>& adapters) {
    ConvertOptions options;
    options.checkpoint = folder_ / "model";
    options.adapters = adapters;
    options.format = WeightFormat::int4;
    return calibrate(options, {.device = "cpu"}).find(measured, 0)->mean_squares;
  };
  TestTensors tensors = factors("model.layers.0.self_attn.v_proj", 8, 16, 2);
  write_adapter(tensors);
  const std::vector<float> with_adapter = mean_squares({folder_ / "lora"});
  TestTensors merged = base_;
  merged.at("model.layers.0.self_attn.v_proj.weight").values =
      values(open(), "model.layers.0.self_attn.v_proj.weight");
  EXPECT_NE(mean_squares({}), with_adapter);
  write_hf_folder(folder_ / "model", tiny_config(), merged);
  EXPECT_EQ(mean_squares({}), with_adapter);
}

TEST_F(Adapters, AreRefusedWhereTheModelHasNoSuchTensor) {
  write_adapter(factors("model.layers.2.self_attn.q_proj", 16, 16, 2));
  EXPECT_TRUE(says(error(), "adapter_model.safetensors", "layers.2.self_attn.q_proj.lora_A.weight",
                   "the model has not", "another model"));
  TestTensors tensors = factors(kQuery, 16, 16, 2);
  tensors[kBefore + "score.weight"] = tensor_of({2, 16}, 1);
  write_adapter(tensors);
  EXPECT_TRUE(says(error(), "\"base_model.model.score.weight\"", "the model has not"));
  tensors = factors(kQuery, 16, 16, 2);
  tensors[kBefore + kQuery + ".lora_B.bias"] = tensor_of({16}, 1);
  write_adapter(tensors);
  EXPECT_TRUE(says(error(), "lora_B.bias", "the model has not"));
}

TEST_F(Adapters, AreRefusedWhereTheyDoNotFit) {
  write_adapter(factors(kQuery, 16, 24, 2));
  EXPECT_TRUE(says(error(), "lora_A.weight", "[16, 24]", "[16, 16]"));
  write_adapter(factors(kQuery, 16, 16, 3));
  EXPECT_TRUE(says(error(), "has the rank 3", "adapter_config.json says 2"));
  TestTensors tensors = factors(kQuery, 16, 16, 2);
  tensors[kBefore + kQuery + ".lora_B.weight"] = tensor_of({16, 3}, 1);
  write_adapter(tensors);
  EXPECT_TRUE(says(error(), "[2, 16]", "does not fit", "[16, 3]"));
  tensors[kBefore + kQuery + ".lora_B.weight"] = tensor_of({16, 2, 1}, 1);
  write_adapter(tensors);
  EXPECT_TRUE(says(error(), "does not fit", "[16, 2, 1]"));
  tensors.erase(kBefore + kQuery + ".lora_B.weight");
  write_adapter(tensors);
  EXPECT_TRUE(says(error(), "lora_A.weight", "has no counterpart"));
  tensors = {{kBefore + kQuery + ".lora_A.weight", {DType::f32, {0, 16}, {}}},
             {kBefore + kQuery + ".lora_B.weight", {DType::f32, {16, 0}, {}}}};
  write_adapter(tensors);
  EXPECT_TRUE(says(error(), "[0, 16]"));
  const std::string norm = "model.norm";
  write_adapter(factors(norm, 16, 16, 2));
  EXPECT_TRUE(says(error(), "\"model.norm.weight\" is [16]"));
  tensors = factors(kQuery, 16, 16, 2);
  tensors[kBefore + "lm_head.weight"] = tensor_of({kTinyVocab + 2, 16}, 1);
  write_adapter(tensors);
  tensors[kBefore + "model.embed_tokens.weight"] = tensor_of({kTinyVocab + 3, 16}, 1);
  write_adapter(tensors);
  EXPECT_TRUE(says(error(), "lora", "23 tokens", "22"));
  tensors.erase(kBefore + "model.embed_tokens.weight");
  tensors[kBefore + "lm_head.weight"] = tensor_of({kTinyVocab, 18}, 1);
  write_adapter(tensors);
  EXPECT_TRUE(says(error(), "[20, 18]", "[20, 16]"));
}

// The golden adapters of experts say what is added where.
TEST_F(Adapters, AreRefusedWhereTheyDoNotFitExperts) {
  json config = tiny_config();
  config.merge_patch({{"model_type", "mixtral"}, {"num_local_experts", 3}});
  TestTensors mixtral;
  for (const auto& [name, tensor] : base_) {
    if (name.find(".mlp.") == std::string::npos) mixtral[name] = tensor;
  }
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    const std::string moe = layer + "block_sparse_moe.";
    mixtral[moe + "gate.weight"] = tensor_of({3, 16}, 1);
    for (const std::string expert : {"0", "1", "2"}) {
      mixtral[moe + "experts." + expert + ".w1.weight"] = tensor_of({24, 16}, 2);
      mixtral[moe + "experts." + expert + ".w2.weight"] = tensor_of({16, 24}, 3);
      mixtral[moe + "experts." + expert + ".w3.weight"] = tensor_of({24, 16}, 4);
    }
  }
  write_hf_folder(folder_ / "model", config, mixtral);
  const std::string experts = "model.layers.1.mlp.experts";
  TestTensors tensors = factors(experts, 48, 16, 6);
  tensors.merge(factors(experts + ".base_layer", 16, 24, 6));
  tensors.merge(factors("model.layers.0.mlp.gate", 3, 16, 2));
  write_adapter(tensors);
  EXPECT_EQ(error(), "");
  EXPECT_EQ(to_text(open().adapters[0]), "lora: 10 tensors changed, of rank 2");
  write_adapter(factors(experts, 48, 16, 4));
  EXPECT_TRUE(says(error(), experts, "no experts of these shapes", "rank"));
  write_adapter(factors(experts, 24, 16, 6));
  EXPECT_TRUE(says(error(), experts, "no experts of these shapes"));
  tensors = factors(experts, 48, 16, 6);
  tensors[kBefore + experts + ".lora_B.bias"] = tensor_of({48}, 1);
  write_adapter(tensors);
  EXPECT_TRUE(says(error(), "two factors"));
  tensors = factors(experts, 48, 16, 6);
  tensors.at(kBefore + experts + ".lora_B.weight").values[7] = NAN;
  write_adapter(tensors);
  EXPECT_TRUE(says(error(), "lora_B.weight", "NaN"));
}

TEST_F(Adapters, AreRefusedWhereTheyAreNotFinite) {
  for (const float value : {NAN, INFINITY, -INFINITY}) {
    for (const char* which : {".lora_A.weight", ".lora_B.weight"}) {
      TestTensors tensors = factors(kQuery, 16, 16, 2);
      tensors.at(kBefore + kQuery + which).values[5] = value;
      write_adapter(tensors);
      EXPECT_TRUE(says(error(), kQuery + which, "NaN or infinity")) << value;
    }
  }
}

TEST_F(Adapters, AreToBlameForWhatOverflowsWithThem) {
  ConvertOptions options;
  options.checkpoint = folder_ / "model";
  options.output = folder_ / "m.bin";
  options.adapters = {folder_ / "lora"};
  options.format = WeightFormat::f32;
  const auto error_with = [&](float a, float b, const TestTensors& base) {
    TestTensors tensors = factors(kQuery, 16, 16, 2);
    tensors.at(kBefore + kQuery + ".lora_A.weight").values.assign(32, a);
    tensors.at(kBefore + kQuery + ".lora_B.weight").values.assign(32, b);
    write_adapter(tensors);
    write_hf_folder(folder_ / "model", tiny_config(), base);
    return error_of([&] { convert_checkpoint(options); });
  };
  EXPECT_TRUE(says(error_with(1e30F, 1e30F, base_), "lora/adapter_model.safetensors",
                   kQuery + ".lora_A.weight", "lora_alpha"));
  TestTensors damaged = base_;
  damaged.at(kQuery + ".weight").values[3] = NAN;
  EXPECT_TRUE(says(error_with(1, 1, damaged), "model/model.safetensors", "NaN or infinity"));
  options.format = WeightFormat::f16;
  EXPECT_TRUE(says(error_with(1e3F, 1e3F, base_), kQuery, "with what adapters add", "f16"));
}

TEST_F(Adapters, AreRefusedWithMagnitudesThatCannotBeMerged) {
  TestTensors tensors = factors(kQuery, 16, 16, 2);
  write_adapter(tensors, {{"use_dora", true}});
  EXPECT_TRUE(says(error(), "has no magnitudes"));
  tensors[kBefore + kQuery + ".lora_magnitude_vector"] = tensor_of({16}, 1);
  write_adapter(tensors);
  EXPECT_TRUE(says(error(), "has magnitudes"));
  write_adapter(tensors, {{"use_dora", true}}, "other");
  write_adapter(factors(kQuery, 16, 16, 2));
  EXPECT_TRUE(says(error({"lora", "other"}), "another adapter has changed"));
  EXPECT_EQ(error({"other", "lora"}), "");
  tensors[kBefore + kQuery + ".lora_magnitude_vector"] = tensor_of({8}, 1);
  write_adapter(tensors, {{"use_dora", true}});
  EXPECT_TRUE(says(error(), "lora_magnitude_vector", "[8]"));
  write_adapter({{kBefore + "model.embed_tokens.lora_embedding_A", tensor_of({2, kTinyVocab}, 5)},
                 {kBefore + "model.embed_tokens.lora_embedding_B", tensor_of({16, 2}, 6)},
                 {kBefore + "model.embed_tokens.lora_magnitude_vector", tensor_of({16}, 6)}},
                {{"use_dora", true}});
  EXPECT_TRUE(says(error(), "lora_magnitude_vector", "embedding"));
}

TEST_F(Adapters, AreRefusedWhereTwoReplaceTheSame) {
  TestTensors tensors = {{kBefore + "lm_head.weight", tensor_of({kTinyVocab, 16}, 1)}};
  write_adapter(tensors);
  write_adapter(tensors, {}, "other");
  EXPECT_EQ(error(), "");
  EXPECT_TRUE(says(error({"lora", "other"}), "lm_head.weight", "another adapter has changed"));
}

TEST_F(Adapters, AreRefusedWhereTensorsAreOfOtherKinds) {
  TestTensors tensors = factors(kQuery, 16, 16, 2);
  tensors[kBefore + kQuery + ".lora_E"] = tensor_of({2, 1}, 1);
  write_adapter(tensors);
  EXPECT_TRUE(says(error(), "lora_E", "cannot be merged"));
  tensors = factors(kQuery, 16, 16, 2);
  tensors[kQuery + ".lora_A.weight"] = tensor_of({2, 16}, 1);
  write_adapter(tensors);
  EXPECT_TRUE(says(error(), "is there twice"));
  write_adapter({});
  EXPECT_TRUE(says(error(), "lora", "has no tensors"));
}

TEST_F(Adapters, AreRefusedWhereFilesAreMissing) {
  fs::remove(folder_ / "lora" / "adapter_model.safetensors");
  EXPECT_TRUE(says(error(), "adapter_model.safetensors", "adapter_model.bin"));
  fs::remove(folder_ / "lora" / "adapter_config.json");
  EXPECT_TRUE(says(error(), "lora", "adapter_config.json", "PEFT"));
  EXPECT_TRUE(says(error({"none"}), "none", "adapter_config.json"));
  EXPECT_TRUE(says(error({"model/config.json"}), "config.json", "adapter_config.json"));
}

TEST_F(Adapters, AreNoFileThatTheOutputCanBe) {
  ConvertOptions options;
  options.checkpoint = folder_ / "model";
  options.adapters = {folder_ / "lora"};
  options.force = true;
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
    options.output = folder_ / "lora" / name;
    EXPECT_TRUE(
        says(error_of([&] { convert_checkpoint(options); }), name, "is a file of the checkpoint"));
  }
}

TEST_F(Adapters, NeedAFolderWithNamesLikeTheirs) {
  write_bytes(folder_ / "m.bin", std::string(1000, 'x'));
  EXPECT_TRUE(says(error_of([&] {
                     open_source_model(folder_ / "m.bin", std::nullopt,
                                       std::vector<fs::path>{folder_ / "lora"});
                   }),
                   "m.bin", "no Hugging Face folder", "--lora"));
}

// --- adapter_config.json -----------------------------------------------------------------------

AdapterConfig parsed(const std::string& members) {
  return parse_adapter_config(R"({"peft_type": "LORA", )" + members + "}", "adapter_config.json");
}

std::string config_error(const std::string& members) {
  return error_of([&] { (void)parsed(members); });
}

TEST(AdapterConfig, ScalesByTheRankOrItsRoot) {
  EXPECT_EQ(parsed(R"("r": 4, "lora_alpha": 6)").scale_of("m"), 1.5F);
  EXPECT_EQ(parsed(R"("r": 4, "lora_alpha": 6, "use_rslora": true)").scale_of("m"), 3.0F);
  EXPECT_EQ(parsed(R"("r": 4, "lora_alpha": 0.5)").scale_of("m"), 0.125F);
  EXPECT_EQ(parsed(R"("r": null)").scale_of("m"), 1.0F) << "PEFT's defaults";
}

TEST(AdapterConfig, HasRanksAndAlphasOfModules) {
  const AdapterConfig config = parsed(
      R"("r": 2, "lora_alpha": 8,
         "rank_pattern": {"z_proj": 3, "a\\.z_proj": 5, "^layers.[0-9]+.mlp": 7},
         "alpha_pattern": {"z_proj": 6, "layers\\.1\\..*": 4})");
  EXPECT_EQ(config.rank_of("a.z_proj"), 3) << "the first in the file, not in the alphabet";
  EXPECT_EQ(config.rank_of("z_proj"), 3);
  EXPECT_EQ(config.rank_of("xz_proj"), 2) << "after a dot only";
  EXPECT_EQ(config.rank_of("a.z_proj.b"), 2) << "to the end";
  EXPECT_EQ(config.rank_of("layers.12.mlp"), 7);
  EXPECT_EQ(config.rank_of("model.layers.12.mlp"), 2) << "^ is the beginning";
  EXPECT_EQ(config.scale_of("a.z_proj"), 2.0F);
  EXPECT_EQ(config.scale_of("layers.1.q"), 2.0F);
  EXPECT_EQ(config.scale_of("other"), 4.0F);
}

TEST(AdapterConfig, RefusesOtherKindsByName) {
  EXPECT_TRUE(
      says(error_of([] { parse_adapter_config(R"({"peft_type": "IA3"})", "adapter_config.json"); }),
           "adapter_config.json", "\"IA3\"", "LORA"));
  EXPECT_TRUE(says(error_of([] { parse_adapter_config("{}", "adapter_config.json"); }), "peft_type",
                   "missing"));
  EXPECT_TRUE(says(config_error(R"("trainable_token_indices": [1])"), "trainable_token_indices"));
  EXPECT_TRUE(says(config_error(R"("layer_replication": [[0, 2], [1, 3]])"), "layer_replication"));
  EXPECT_TRUE(says(config_error(R"("use_qalora": true)"), "QA-LoRA"));
  EXPECT_TRUE(says(config_error(R"("use_bdlora": {"nblocks": 2})"), "BD-LoRA"));
  EXPECT_TRUE(says(config_error(R"("alora_invocation_tokens": [5, 6])"), "aLoRA"));
  EXPECT_EQ(config_error(R"("target_parameters": null, "use_qalora": false, "arrow_config": null,
                            "loftq_config": {}, "layer_replication": [])"),
            "");
}

TEST(AdapterConfig, RefusesAdaptersOfWeightsThatTrainingChangedFirst) {
  for (const char* name :
       {"pissa", "pissa_niter_16", "olora", "corda", "loftq", "lora_ga", "new"}) {
    EXPECT_TRUE(says(config_error(R"("init_lora_weights": ")" + std::string(name) + "\""),
                     "init_lora_weights", name, "path_initial_model_for_weight_conversion"));
  }
  for (const char* value : {"true", "false", "null", "\"gaussian\"", "\"eva\"", "\"orthogonal\""}) {
    EXPECT_EQ(config_error(R"("init_lora_weights": )" + std::string(value)), "") << value;
  }
}

TEST(AdapterConfig, RefusesWhatIsNoConfiguration) {
  for (const char* members : {R"("r": 0)", R"("r": -1)", R"("r": 1.5)", R"("r": 99999999999)",
                              R"("r": "8")", R"("lora_alpha": NaN)", R"("lora_alpha": 1e300)",
                              R"("lora_alpha": [1])", R"("use_dora": 1)", R"("use_rslora": "yes")",
                              R"("rank_pattern": [1])", R"("rank_pattern": {"a": 0})",
                              R"("rank_pattern": {"a": null})", R"("rank_pattern": {"(": 1})",
                              R"("alpha_pattern": {"a": "b"})", R"("init_lora_weights": 3)"}) {
    EXPECT_TRUE(says(config_error(members), "adapter_config.json")) << members;
  }
  EXPECT_TRUE(says(error_of([] { parse_adapter_config("{", "adapter_config.json"); }),
                   "adapter_config.json"));
}

TEST(AdapterConfig, EndsPatternsThatTakeTooLong) {
  const AdapterConfig config = parsed(R"("rank_pattern": {"(a|aa)+[bc]": 3})");
  EXPECT_TRUE(says(error_of([&] { (void)config.rank_of(std::string(200, 'a')); }), "pattern"));
}

}  // namespace
}  // namespace faststream::convert
