#include "convert/pipeline.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <sstream>

#include "convert/command/show.h"
#include "model_file/model_file.h"
#include "model_file/model_writer.h"
#include "models/tensor_plan.h"
#include "support/error.h"
#include "support/hadamard.h"
#include "unit/convert/checkpoint_files.h"
#include "unit/support/file_helpers.h"
#include "unit/text/tokenizer_models.h"

namespace faststream::convert {
namespace {

namespace fs = std::filesystem;

class Pipeline : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(folder_ / "model");
    write(tiny_tensors(DType::f32));
    options_.checkpoint = folder_ / "model";
    options_.output = folder_ / "m.bin";
    options_.threads = 2;
  }
  void write(const TestTensors& tensors, const nlohmann::json& config = tiny_config()) {
    write_hf_folder(folder_ / "model", config, tensors);
  }
  ModelFile convert() {
    convert_checkpoint(options_);
    return ModelFile::open(options_.output);
  }
  std::string convert_error() {
    return error_of([&] { convert_checkpoint(options_); });
  }
  // All numbers of a tensor, INT8 ones with their scales applied.
  static std::vector<float> values(const ModelFile& file, const std::string& name) {
    const TensorInfo& tensor = *file.find(name);
    std::vector<float> values(tensor.bytes / dtype_size(tensor.dtype));
    const auto cols = static_cast<size_t>(tensor.shape.size() == 2 ? tensor.shape[1] : 1);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = load_as_float(file.bytes(tensor).data(), tensor.dtype, i);
      if (tensor.dtype == DType::i8) values[i] *= scale(file, name, i / cols);
    }
    return values;
  }
  static float scale(const ModelFile& file, const std::string& name, size_t row) {
    return load_as_float(file.bytes(*file.find(name + ".scales")).data(), DType::f32, row);
  }
  static std::vector<float> joined(const TestTensors& tensors,
                                   const std::vector<std::string>& names) {
    std::vector<float> all;
    for (const std::string& name : names) {
      const std::vector<float>& part = tensors.at(name).values;
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }
  static constexpr size_t kWidth = 16;
  static constexpr size_t kFirstValue = 24;  // of the rows of Q, K and V
  static void rotate(std::vector<float>& rows) {
    for (size_t at = 0; at < rows.size(); at += kWidth) {
      hadamard(std::span(rows).subspan(at, kWidth));
    }
  }
  // A Hadamard matrix is its own inverse, but for the signs.
  static void rotate_back(std::vector<float>& rows) {
    const auto change_signs = [&rows] {
      for (size_t i = 0; i < rows.size(); ++i) {
        if (hadamard_negates(static_cast<int64_t>(i % kWidth))) rows[i] = -rows[i];
      }
    };
    change_signs();
    rotate(rows);
    change_signs();
  }
  TemporaryFolder folder_;
  ConvertOptions options_;
};

const std::vector<std::string> kQkv = {"model.layers.1.self_attn.q_proj.weight",
                                       "model.layers.1.self_attn.k_proj.weight",
                                       "model.layers.1.self_attn.v_proj.weight"};
const std::vector<std::string> kGateUp = {"model.layers.0.mlp.gate_proj.weight",
                                          "model.layers.0.mlp.up_proj.weight"};

TEST_F(Pipeline, KeepsTheCheckpointsTypeAndValues) {
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    TestTensors tensors = tiny_tensors(type);
    for (auto& [name, tensor] : tensors) {  // what the type can hold
      for (float& value : tensor.values) {
        float stored = 0;
        store_float(&stored, type, 0, value);
        value = load_as_float(&stored, type, 0);
      }
    }
    write(tensors);
    options_.force = true;
    const ModelFile file = convert();
    EXPECT_EQ(file.find("layers.1.attention_qkv")->dtype, type);
    EXPECT_EQ(file.find("output_norm")->dtype, DType::f32);
    EXPECT_EQ(values(file, "layers.1.attention_qkv"), joined(tensors, kQkv));
    EXPECT_EQ(values(file, "layers.0.ffn_gate_up"), joined(tensors, kGateUp));
    EXPECT_EQ(values(file, "embedding"), tensors["model.embed_tokens.weight"].values);
    EXPECT_EQ(values(file, "output"), tensors["lm_head.weight"].values);
    EXPECT_EQ(values(file, "output_norm"), tensors["model.norm.weight"].values);
  }
}

TEST_F(Pipeline, WritesExactlyTheTensorsOfThePlan) {
  for (const WeightFormat format : kWeightFormats) {
    options_.format = format;
    options_.force = true;
    const ModelFile file = convert();
    const ModelConfig config = config_from_json(file.header()["model"], "test");
    const std::vector<TensorPlan> plan = tensor_plan(config);
    ASSERT_EQ(file.tensors().size(), plan.size() + 1);
    EXPECT_EQ(file.tensors()[0].name, "tokenizer");
    EXPECT_EQ(file.tensors()[0].dtype, DType::u8);
    for (size_t i = 0; i < plan.size(); ++i) {
      EXPECT_EQ(file.tensors()[i + 1].name, plan[i].name);
      EXPECT_EQ(file.tensors()[i + 1].dtype, plan[i].stored_as());
      EXPECT_EQ(file.tensors()[i + 1].shape, plan[i].stored_shape());
    }
    EXPECT_NO_THROW(file.verify());
  }
}

TEST_F(Pipeline, QuantizesEachWeightToWithinHalfAScale) {
  options_.format = WeightFormat::int8;
  const ConvertReport report = convert_checkpoint(options_);
  const ModelFile file = ModelFile::open(options_.output);
  const std::string name = "output";  // what is not balanced
  std::vector<float> original = joined(tiny_tensors(DType::f32), {"lm_head.weight"});
  rotate(original);
  const std::vector<float> restored = values(file, name);
  ASSERT_EQ(restored.size(), original.size());
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < original.size(); ++i) {
    const float half = scale(file, name, i / kWidth) / 2;
    EXPECT_LE(std::abs(restored[i] - original[i]), half * (1 + 1e-5F)) << i;
    error += std::pow(restored[i] - original[i], 2);
    norm += std::pow(original[i], 2);
  }
  ASSERT_EQ(report.errors.size(), 9U);  // four matrices in each of two layers, and the output
  EXPECT_EQ(report.errors.back().tensor, name);
  EXPECT_NEAR(report.errors.back().relative, std::sqrt(error / norm), 1e-5);
  std::ostringstream summary;
  print_report(report, summary);
  EXPECT_NE(summary.str().find("worst"), std::string::npos);
  EXPECT_NE(summary.str().find(std::max_element(report.errors.begin(), report.errors.end(),
                                                [](const auto& a, const auto& b) {
                                                  return a.relative < b.relative;
                                                })
                                   ->tensor),
            std::string::npos);
}

// Balanced matrices and what gives their inputs are together what they were.
TEST_F(Pipeline, BalancesMatricesWithWhatGivesTheirInputs) {
  const std::vector<float> qkv = joined(tiny_tensors(DType::f32), kQkv);
  const std::vector<float> norm =
      joined(tiny_tensors(DType::f32), {"model.layers.1.input_layernorm.weight"});
  options_.format = WeightFormat::int8;
  const ModelFile file = convert();
  const std::vector<float> new_norm = values(file, "layers.1.attention_norm");
  EXPECT_NE(new_norm, norm);
  std::vector<float> new_qkv = values(file, "layers.1.attention_qkv");
  rotate_back(new_qkv);
  for (size_t i = 0; i < kFirstValue * kWidth; ++i) {
    // Roundings of all columns come together in one.
    const float bound =
        2 * scale(file, "layers.1.attention_qkv", i / kWidth) * new_norm[i % kWidth];
    EXPECT_NEAR(new_qkv[i] * new_norm[i % kWidth], qkv[i] * norm[i % kWidth], std::abs(bound)) << i;
  }
}

// A norm's inputs are not skewed for one product among several that read them, whose columns
// differ.
TEST_F(Pipeline, BalancesANormForAllProductsAlike) {
  TestTensors tensors = tiny_tensors(DType::f32);
  std::vector<float>& v = tensors["model.layers.1.self_attn.v_proj.weight"].values;
  for (size_t i = 0; i < v.size(); i += 3) v[i] *= 1000;
  std::vector<float>& norm = tensors["model.layers.1.input_layernorm.weight"].values;
  for (float& weight : norm) weight = 1;
  write(tensors);
  options_.format = WeightFormat::int8;
  const ModelFile file = convert();
  const std::vector<float> q = joined(tensors, {"model.layers.1.self_attn.q_proj.weight"});
  const std::vector<float> new_norm = values(file, "layers.1.attention_norm");
  std::vector<float> qkv = values(file, "layers.1.attention_qkv");
  rotate_back(qkv);
  double error = 0;
  double sum = 0;
  for (size_t i = 0; i < q.size(); ++i) {
    error += std::pow(qkv[i] * new_norm[i % kWidth] - q[i], 2);
    sum += std::pow(q[i], 2);
  }
  EXPECT_LT(std::sqrt(error / sum), 0.02);
}

TEST_F(Pipeline, RefusesWhatRotationMakesInfinite) {
  for (const char* product : {"q_proj", "v_proj"}) {
    TestTensors tensors = tiny_tensors(DType::f32);
    for (float& value :
         tensors[std::string("model.layers.1.self_attn.") + product + ".weight"].values) {
      value = 3.2e38F;
    }
    for (float& weight : tensors["model.layers.1.input_layernorm.weight"].values) weight = 1;
    write(tensors);
    options_.format = WeightFormat::int8;
    const std::string message = convert_error();
    EXPECT_NE(message.find("too large to be rotated"), std::string::npos) << product << message;
    EXPECT_FALSE(std::filesystem::exists(options_.output));
  }
}

TEST_F(Pipeline, NoticesACheckpointThatChangesMeanwhile) {
  bool changed = false;
  options_.check_interrupted = [&] {
    if (std::exchange(changed, true)) return;
    std::filesystem::last_write_time(
        options_.checkpoint / "model.safetensors",
        std::filesystem::file_time_type::clock::now() + std::chrono::seconds(5));
  };
  const std::string message = convert_error();
  EXPECT_NE(message.find("changed while it was converted"), std::string::npos) << message;
  EXPECT_FALSE(std::filesystem::exists(options_.output));
}

// Rows of values and the columns that multiply their sums are together, head by head, what they
// were.
TEST_F(Pipeline, RotatesValuesByHeads) {
  TestTensors tensors = tiny_tensors(DType::f32);
  nlohmann::json config = tiny_config();
  config["attention_bias"] = true;
  constexpr size_t kHeadDim = 64;
  config["head_dim"] = kHeadDim;
  const auto random = [](const std::vector<int64_t>& shape, uint32_t seed) -> TestTensor {
    const int64_t count = shape[0] * (shape.size() > 1 ? shape[1] : 1);
    return {DType::f32, shape, random_values(static_cast<size_t>(count), seed)};
  };
  for (const std::string layer : {"model.layers.0.self_attn.", "model.layers.1.self_attn."}) {
    for (const auto& [name, rows, columns] :
         {std::tuple<std::string, int64_t, int64_t>{"q", 256, 16},
          {"k", 128, 16},
          {"v", 128, 16},
          {"o", 16, 256}}) {
      const std::string product = layer + name + "_proj";
      tensors[product + ".weight"] = random({rows, columns}, 8);
      tensors[product + ".bias"] = random({rows}, 9);
    }
  }
  constexpr size_t kBeforeValues = 256 + 128;
  constexpr size_t kColumns = 256;  // of the output
  write(tensors, config);
  const std::vector<float> old_values = joined(tensors, {"model.layers.1.self_attn.v_proj.weight"});
  const std::vector<float> old_bias = joined(tensors, {"model.layers.1.self_attn.v_proj.bias"});
  const std::vector<float> old_out = joined(tensors, {"model.layers.1.self_attn.o_proj.weight"});
  const std::vector<float> old_norm = joined(tensors, {"model.layers.1.input_layernorm.weight"});
  options_.format = WeightFormat::int8;
  const ModelFile file = convert();
  const std::vector<float> norm = values(file, "layers.1.attention_norm");
  const std::vector<float> bias = values(file, "layers.1.attention_qkv_bias");
  const std::vector<float> out = values(file, "layers.1.attention_out");
  std::vector<float> qkv = values(file, "layers.1.attention_qkv");
  rotate_back(qkv);
  EXPECT_NE(std::vector<float>(bias.begin() + kBeforeValues, bias.end()), old_bias);
  EXPECT_EQ(values(file, "layers.1.attention_out_bias"),
            joined(tensors, {"model.layers.1.self_attn.o_proj.bias"}));
  for (size_t head = 0; head < 4; ++head) {
    const size_t first = head / 2 * kHeadDim;  // of the two value heads
    for (size_t row = 0; row < kWidth; ++row) {
      const float* o = &out[row * kColumns + head * kHeadDim];
      const float* old_o = &old_out[row * kColumns + head * kHeadDim];
      double sum = 0;
      double old_sum = 0;
      for (size_t d = 0; d < kHeadDim; ++d) {
        sum += o[d] * bias[kBeforeValues + first + d];
        old_sum += old_o[d] * old_bias[first + d];
      }
      EXPECT_NEAR(sum, old_sum, 0.02);
      for (size_t c = 0; c < kWidth; ++c) {
        sum = old_sum = 0;
        for (size_t d = 0; d < kHeadDim; ++d) {
          sum += o[d] * qkv[(kBeforeValues + first + d) * kWidth + c] * norm[c];
          old_sum += old_o[d] * old_values[(first + d) * kWidth + c] * old_norm[c];
        }
        EXPECT_NEAR(sum, old_sum, 0.02) << head << ", " << row << ", " << c;
      }
    }
  }
}

TEST_F(Pipeline, ChoosesTypesForInt8) {
  ModelConfig source;
  source.weight_format = source.embedding_format = source.output_format = WeightFormat::f32;
  source.output.tied = true;
  options_.format = WeightFormat::int8;
  ModelConfig target = target_config(source, options_);
  EXPECT_EQ(target.weight_format, WeightFormat::int8);
  EXPECT_EQ(target.embedding_format, WeightFormat::bf16);
  EXPECT_EQ(target.output_format, WeightFormat::int8);
  EXPECT_FALSE(target.output.tied);
  source.weight_format = source.embedding_format = source.output_format = WeightFormat::f16;
  options_.keep_output = true;
  target = target_config(source, options_);
  EXPECT_EQ(target.embedding_format, WeightFormat::f16);
  EXPECT_EQ(target.output_format, WeightFormat::f16);
  EXPECT_TRUE(target.output.tied);
  options_.keep = "output=int4";
  EXPECT_THROW(target_config(source, options_), UsageError);
  options_.keep.clear();
  options_.format = WeightFormat::bf16;
  EXPECT_THROW(target_config(source, options_), UsageError);
}

TEST_F(Pipeline, ChoosesActivationsForInt8) {
  ModelConfig source;
  options_.format = WeightFormat::int8;
  EXPECT_EQ(target_config(source, options_).activation_bits, 8) << "writes text";
  EXPECT_TRUE(target_config(source, options_).formats.empty());
  EXPECT_TRUE(target_config(source, options_).rotated);
  EXPECT_TRUE(target_config(source, options_).values_rotated);
  source.encoder = std::make_shared<ModelConfig>();
  EXPECT_TRUE(target_config(source, options_).encoder->rotated);
  options_.activation_bits = 16;
  for (const ModelConfig& target :
       {target_config(source, options_), *target_config(source, options_).encoder}) {
    EXPECT_EQ(target.activation_bits, 16) << "asked for";
    const FormatRule down{.tensor = TensorKind::ffn_down, .format = WeightFormat::bf16};
    EXPECT_NE(std::ranges::find(target.formats, down), target.formats.end());
    EXPECT_FALSE(target.rotated);
    EXPECT_FALSE(target.values_rotated);
  }
  options_.format = WeightFormat::bf16;
  EXPECT_THROW(target_config(source, options_), UsageError);
}

TEST_F(Pipeline, QuantizesATiedOutputFromTheEmbedding) {
  TestTensors tensors = tiny_tensors(DType::bf16);
  tensors.erase("lm_head.weight");
  nlohmann::json config = tiny_config();
  config["tie_word_embeddings"] = true;
  write(tensors, config);
  options_.format = WeightFormat::int8;
  const ModelFile file = convert();
  EXPECT_FALSE(config_from_json(file.header()["model"], "test").output.tied);
  std::vector<float> embedding = values(file, "embedding");
  rotate(embedding);
  const std::vector<float> output = values(file, "output");
  for (size_t i = 0; i < output.size(); ++i) {
    EXPECT_NEAR(output[i], embedding[i], scale(file, "output", i / 16) * 0.51F);
  }
  options_.force = true;
  size_t source_bytes = 0;
  for (const auto& [name, tensor] : tensors) source_bytes += tensor.values.size() * 2;
  EXPECT_EQ(convert_checkpoint(options_).source_bytes, source_bytes) << "the table counts once";
  options_.keep_output = true;
  const ModelFile kept = convert();
  EXPECT_TRUE(config_from_json(kept.header()["model"], "test").output.tied);
  EXPECT_EQ(kept.find("output"), nullptr);
}

TEST_F(Pipeline, JoinsBiases) {
  TestTensors tensors = tiny_tensors(DType::f16);
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    tensors[layer + "self_attn.q_proj.bias"] = {DType::f16, {16}, std::vector<float>(16, 1)};
    tensors[layer + "self_attn.k_proj.bias"] = {DType::f16, {8}, std::vector<float>(8, 2)};
    tensors[layer + "self_attn.v_proj.bias"] = {DType::f16, {8}, std::vector<float>(8, 3)};
    tensors[layer + "self_attn.o_proj.bias"] = {DType::f16, {16}, std::vector<float>(16, 4)};
  }
  nlohmann::json config = tiny_config();
  config["attention_bias"] = true;
  write(tensors, config);
  const ModelFile file = convert();
  std::vector<float> expected(16, 1);
  expected.resize(24, 2);
  expected.resize(32, 3);
  EXPECT_EQ(values(file, "layers.0.attention_qkv_bias"), expected);
  EXPECT_EQ(values(file, "layers.1.attention_out_bias"), std::vector<float>(16, 4));
}

TEST_F(Pipeline, WritesTheSameBytesWithAnyNumberOfThreads) {
  options_.format = WeightFormat::int8;
  options_.threads = 1;
  convert_checkpoint(options_);
  const std::string one = read_bytes(options_.output);
  options_.force = true;
  options_.threads = 5;
  convert_checkpoint(options_);
  EXPECT_EQ(read_bytes(options_.output), one);
}

TEST_F(Pipeline, StreamsTensorsOfManyBlocks) {
  nlohmann::json config = tiny_config();
  const int64_t vocab = 70000;  // times 16: several blocks of rows on two threads
  config["vocab_size"] = vocab;
  TestTensors tensors = tiny_tensors(DType::bf16);
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
    tensors[name].shape[0] = vocab;
    tensors[name].values.resize(static_cast<size_t>(vocab) * 16);
    for (size_t i = 0; i < tensors[name].values.size(); ++i) {
      tensors[name].values[i] = static_cast<float>(i % 251);  // exact in bf16
    }
  }
  write(tensors, config);
  write_bytes(folder_ / "model" / "tokenizer.model", tiny_tokenizer(vocab));
  const ModelFile file = convert();
  EXPECT_EQ(values(file, "embedding"), tensors["model.embed_tokens.weight"].values);
  EXPECT_EQ(values(file, "output"), tensors["lm_head.weight"].values);
  EXPECT_NO_THROW(file.verify());
}

TEST_F(Pipeline, PutsTokenizerTemplateAndProvenanceIntoTheHeader) {
  write_bytes(folder_ / "model" / "chat_template.jinja", "{{ messages }}");
  options_.format = WeightFormat::int8;
  options_.checkpoint = (folder_ / "model").string() + "/";
  const ModelFile file = convert();
  EXPECT_EQ(file.header()["chat_template"], "{{ messages }}");
  EXPECT_EQ(file.header()["provenance"]["source"], "model");
  EXPECT_EQ(file.header()["quantization"]["type"], "int8");
  EXPECT_EQ(file.header()["tokenizer"]["bos"], 1);
  const auto bytes = file.bytes(*file.find("tokenizer"));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()),
            compile_sentencepiece(
                parse_sentencepiece_model(as_bytes(tiny_tokenizer(kTinyVocab)), "tiny")));
}

TEST_F(Pipeline, RefusesNanAndInfinityAndNamesTheTensor) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    for (const char* name : {"model.layers.1.mlp.down_proj.weight", "model.norm.weight"}) {
      TestTensors tensors = tiny_tensors(DType::f32);
      tensors[name].values[7] = bad;
      write(tensors);
      for (const WeightFormat format : kWeightFormats) {
        options_.format = format;
        EXPECT_TRUE(says(convert_error(), "model.safetensors", name, "NaN or infinity"));
        EXPECT_EQ(folder_.entries(), 1U);
      }
    }
  }
}

TEST_F(Pipeline, RefusesValuesThatF16CannotHold) {
  TestTensors tensors = tiny_tensors(DType::f32);
  tensors["lm_head.weight"].values[3] = 70000;
  write(tensors);
  options_.format = WeightFormat::f16;
  EXPECT_TRUE(says(convert_error(), "\"lm_head.weight\"", "70000", "f16"));
  EXPECT_EQ(folder_.entries(), 1U);
  options_.format = WeightFormat::bf16;
  EXPECT_EQ(convert_error(), "");
}

TEST_F(Pipeline, RefusesToOverwriteWithoutForce) {
  write_bytes(folder_ / "m.bin", "precious");
  EXPECT_TRUE(says(convert_error(), "m.bin", "already exists", "--force"));
  EXPECT_EQ(read_bytes(folder_ / "m.bin"), "precious");
  options_.force = true;
  EXPECT_EQ(convert_error(), "");
  EXPECT_NO_THROW(ModelFile::open(options_.output));
}

TEST_F(Pipeline, NeverOverwritesAFileThatItReads) {
  const fs::path model = folder_ / "model";
  for (const char* name :
       {"generation_config.json", "added_tokens.json", "tokenizer.json", "tokenizer_config.json"}) {
    write_bytes(model / name, "{}");
  }
  write_bytes(model / "chat_template.jinja", "{{ messages }}");
  write_bytes(folder_ / "other.model", tiny_tokenizer(kTinyVocab));
  options_.tokenizer = folder_ / "other.model";
  fs::create_directory_symlink(model, folder_ / "link");
  fs::create_symlink(model / "config.json", folder_ / "soft");
  fs::create_hard_link(model / "model.safetensors", folder_ / "hard");
  options_.force = true;
  for (const char* output :
       {"model/model.safetensors", "model/config.json", "model/generation_config.json",
        "model/added_tokens.json", "model/tokenizer.json", "model/tokenizer_config.json",
        "model/chat_template.jinja", "other.model", "model/../model//config.json",
        "link/config.json", "soft", "hard"}) {
    options_.output = folder_ / output;
    const std::string before = read_bytes(options_.output);
    EXPECT_TRUE(says(convert_error(), output, "is a file of the checkpoint")) << output;
    EXPECT_EQ(read_bytes(options_.output), before) << output;
  }
  options_.output = model / "m.bin";  // beside them is no harm
  EXPECT_EQ(convert_error(), "");
}

TEST_F(Pipeline, NeverOverwritesTheIndexOrAShard) {
  const fs::path model = folder_ / "model";
  fs::rename(model / "model.safetensors", model / "shard.safetensors");
  nlohmann::json index;
  for (const auto& [name, tensor] : tiny_tensors(DType::f32)) {
    index["weight_map"][name] = "shard.safetensors";
  }
  write_bytes(model / "model.safetensors.index.json", index.dump());
  options_.force = true;
  for (const char* output : {"shard.safetensors", "model.safetensors.index.json"}) {
    options_.output = model / output;
    EXPECT_TRUE(says(convert_error(), output, "is a file of the checkpoint")) << output;
  }
}

TEST_F(Pipeline, LeavesModeAndLinkOfTheFileThatItOverwrites) {
  write_bytes(folder_ / "old.bin", "old");
  fs::permissions(folder_ / "old.bin", fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink("old.bin", options_.output);
  options_.force = true;
  EXPECT_NO_THROW(convert());
  EXPECT_TRUE(fs::is_symlink(options_.output));
  EXPECT_EQ(fs::status(folder_ / "old.bin").permissions(),
            fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(Pipeline, LeavesNothingWhenItIsInterrupted) {
  struct Stop {};
  options_.check_interrupted = [] { throw Stop(); };
  EXPECT_THROW(convert_checkpoint(options_), Stop);
  EXPECT_EQ(folder_.entries(), 1U);
}

TEST_F(Pipeline, SaysWhenItBeginsTheOutput) {
  int calls = 0;
  options_.before_output = [&] {
    ++calls;
    EXPECT_EQ(folder_.entries(), 1U) << "nothing but the checkpoint";
  };
  convert_checkpoint(options_);
  EXPECT_EQ(calls, 1);
  options_.output = folder_ / "other.bin";
  write_bytes(folder_ / "model" / "tokenizer.model", "damaged");
  EXPECT_TRUE(says(convert_error(), "tokenizer.model"));
  EXPECT_EQ(calls, 1) << "where nothing is written";
}

TEST_F(Pipeline, LeavesNothingWhenTheDiskIsFull) {
  ASSERT_NE(std::signal(SIGXFSZ, SIG_IGN), SIG_ERR);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  rlimit tight = before;
  tight.rlim_cur = 20000;
  ::setrlimit(RLIMIT_FSIZE, &tight);
  const std::string message = convert_error();
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_TRUE(says(message, "m.bin", "ulimit -f"));
  EXPECT_EQ(folder_.entries(), 1U);
}

TEST_F(Pipeline, ShowsWhatIsInAFile) {
  options_.format = WeightFormat::int8;
  convert_checkpoint(options_);
  std::ostringstream out;
  show_model_file(options_.output, out);
  for (const char* text : {"hidden", "vocab", "tokenizer", "layers.1.ffn_down.scales", "int8",
                           "[16, 24]", "bf16", "checksum"}) {
    EXPECT_NE(out.str().find(text), std::string::npos) << text;
  }
}

TEST_F(Pipeline, ShowsTensorsInColumns) {
  options_.format = WeightFormat::int4;  // stored as the type with the longest name, "packed"
  convert_checkpoint(options_);
  std::ostringstream out;
  show_model_file(options_.output, out);
  std::istringstream table(out.str().substr(out.str().find("\ntensors\n") + 1));
  std::string line;
  std::getline(table, line);
  std::set<size_t> widths;
  while (std::getline(table, line)) widths.insert(line.size());
  EXPECT_EQ(widths.size(), 2U) << "of the heads, and of all rows\n" << out.str();
}

TEST_F(Pipeline, ShowsHostileTextHarmlessly) {
  const std::string hostile = "\x1B[2J\xC2\x9B";
  write_bytes(folder_ / "model" / "chat_template.jinja", "A" + hostile + "\xE4\xBD\xA0");
  ConvertReport report = convert_checkpoint(options_);
  const fs::path named = folder_ / ("m" + hostile + ".bin");
  fs::rename(options_.output, named);
  std::ostringstream out;
  show_model_file(named, out);
  verify_model_file(named, out);
  report.output = named;
  print_report(report, out);
  EXPECT_EQ(out.str().find('\x1B'), std::string::npos);
  EXPECT_EQ(out.str().find('\x9B'), std::string::npos);
  EXPECT_NE(out.str().find("A\\x1B[2J"), std::string::npos) << out.str();
  EXPECT_NE(out.str().find("\xE4\xBD\xA0"), std::string::npos) << "text for people stays";
}

TEST_F(Pipeline, VerifiesEveryByteOfTheTensors) {
  convert_checkpoint(options_);
  std::ostringstream out;
  verify_model_file(options_.output, out);
  EXPECT_NE(out.str().find("match"), std::string::npos);
  std::string bytes = read_bytes(options_.output);
  bytes.back() ^= 1;
  write_bytes(options_.output, bytes);
  EXPECT_TRUE(
      says(error_of([&] { verify_model_file(options_.output, out); }), "\"output\"", "checksum"));
}

TEST_F(Pipeline, VerifiesThatThisVersionCanUseTheFile) {
  const ModelFile file = convert();
  const auto error_with = [&](const char* member, const nlohmann::json& value) {
    nlohmann::json header = file.header();
    header.merge_patch({{member, value}});
    std::vector<TensorSpec> specs;
    for (const TensorInfo& tensor : file.tensors()) {
      specs.push_back({tensor.name, tensor.dtype, tensor.shape});
    }
    ModelWriter writer(folder_ / "other.bin", header, specs, true);
    for (const TensorInfo& tensor : file.tensors()) writer.append(file.bytes(tensor));
    writer.finish();
    return error_of([&] {
      std::ostringstream out;
      verify_model_file(folder_ / "other.bin", out);
    });
  };
  EXPECT_EQ(error_with("note", "sound"), "");
  EXPECT_TRUE(says(error_with("tokenizer", {{"kind", "sentencepiece"}}), "other.bin",
                   "\"compiled\"", "convert the checkpoint again"));
  EXPECT_TRUE(says(error_with("tokenizer", {{"bos", 1000}}), "other.bin", "1000"));
  EXPECT_TRUE(says(error_with("sampling", {{"top_k", "many"}}), "other.bin", "top_k"));
}

}  // namespace
}  // namespace faststream::convert
