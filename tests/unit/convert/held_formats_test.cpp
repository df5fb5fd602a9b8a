#include "convert/quantized/held_formats.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstring>
#include <map>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "convert/pipeline.h"
#include "convert/weights/elements.h"
#include "convert/weights/quantize.h"
#include "engine/runner.h"
#include "model_file/model_file.h"
#include "models/tensor_plan.h"
#include "support/small_floats.h"
#include "unit/convert/checkpoint_files.h"
#include "unit/convert/quantized_checkpoint.h"

namespace faststream::convert {
namespace {

using nlohmann::json;

class HeldFormats : public QuantizedCheckpoint {
 protected:
  // Of the tensors that are joined, with what else a checkpoint has.
  ConvertOptions conversion_of(const json& config) {
    write_bytes(folder_ / "config.json", config.dump());
    write_bytes(folder_ / "tokenizer.model", tiny_tokenizer(kTinyVocab));
    ConvertOptions options;
    options.checkpoint = folder_.path();
    options.output = folder_ / "kept.bin";
    return options;
  }
  // What every token of a text gives, computed in float32 (whose caches are so beside all weights).
  static Floats logits_of(const ModelFile& file) {
    const auto backend = make_reference_backend();
    const std::vector<int32_t> tokens = {1, 5, 9, 4, 12, 7};
    const auto n = static_cast<int32_t>(tokens.size());
    Runner runner(file, *backend, {.n_pages = 3, .batch = {.max_tokens = n, .max_logits = n}},
                  nullptr);
    Sequence sequence = runner.begin(n);
    runner.step({{{&sequence, tokens, NewTokens::Logits::all}}});
    return runner.logits();
  }
};

// 64 inputs and 8 outputs of 4 bits, two groups.
RawTensors gptq_groups() {
  std::string scales(2 * 8 * 2, '\x2c');
  return {{"m.qweight", {"I32", {8, 8}, zeros(256)}},
          {"m.qzeros", {"I32", {2, 1}, zeros(8)}},
          {"m.scales", {"F16", {2, 8}, scales}}};
}

TEST_F(HeldFormats, IsHeldWhereGroupsAre) {
  const auto held = [&](const RawTensors& tensors, const json& quantization) {
    const Checkpoint checkpoint = joined(tensors, quantization);
    return held_format(checkpoint, *checkpoint.find("m.weight"));
  };
  const json gptq = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}};
  EXPECT_EQ(held(gptq_groups(), gptq), WeightFormat::int4_g32);
  EXPECT_EQ(held(gptq_module(), kGptq), WeightFormat::int4_g128) << "a whole row";
  RawTensors order = gptq_groups();
  std::string groups;
  for (int32_t i = 0; i < 64; ++i) groups += bytes_of<int32_t>({i / 32});
  order["m.g_idx"] = {"I32", {64}, groups};
  EXPECT_EQ(held(order, gptq), WeightFormat::int4_g32);
  order["m.g_idx"].bytes[0] = 1;
  EXPECT_FALSE(held(order, gptq)) << "act-order";
  RawTensors long_scales = gptq_groups();
  std::string floats;
  for (int i = 0; i < 16; ++i) floats += bytes_of<float>({0.5F});
  long_scales["m.scales"] = {"F32", {2, 8}, floats};
  EXPECT_EQ(held(long_scales, gptq), WeightFormat::int4_g32);
  long_scales["m.scales"].bytes[0] = 1;  // more bits than there is room for
  EXPECT_FALSE(held(long_scales, gptq));
  const auto fp8 = [](int64_t groups_of_columns) {
    std::string scales;
    for (int64_t i = 0; i < groups_of_columns; ++i) scales += bytes_of<float>({0.1F});
    return RawTensors{{"m.weight", {"F8_E4M3", {2, 256}, zeros(512)}},
                      {"m.weight_scale_inv", {"F32", {1, groups_of_columns}, scales}}};
  };
  const auto in_blocks = [](int64_t columns) {
    return json{{"quant_method", "fp8"}, {"weight_block_size", {128, columns}}};
  };
  EXPECT_EQ(held(fp8(2), in_blocks(128)), WeightFormat::fp8);
  EXPECT_EQ(held(fp8(1), in_blocks(256)), WeightFormat::fp8);
  EXPECT_FALSE(held(fp8(4), in_blocks(64)));
  const RawTensors ternary = {{"m.weight", {"U8", {2, 3}, zeros(6)}},
                              {"m.weight_scale", {"F32", {1}, bytes_of<float>({0.1F})}}};
  EXPECT_EQ(held(ternary, {{"quant_method", "bitnet"}}), WeightFormat::int4);
}

// What is multiplied by token, and nothing is said of it.
TEST_F(HeldFormats, OfBitNetHaveNoOptionsOfRounding) {
  RawTensors tensors;
  for (const auto& [name, tensor] : tiny_tensors(DType::f32)) {
    tensors[name] = {"F32", tensor.shape,
                     std::string(reinterpret_cast<const char*>(tensor.values.data()),
                                 tensor.values.size() * sizeof(float))};
  }
  json config = tiny_config();
  config["quantization_config"] = {{"quant_method", "bitnet"},
                                   {"linear_class", "autobitlinear"},
                                   {"quantization_mode", "online"}};
  joined(tensors, config["quantization_config"]);
  ConvertOptions options = conversion_of(config);
  const ConvertReport report = convert_checkpoint(options);
  EXPECT_EQ(report.decoded, 0U);
  EXPECT_EQ(report.rounded, 0U);
  const ModelFile file = ModelFile::open(options.output);
  const ModelConfig kept = config_from_json(file.header()["model"], "kept");
  EXPECT_FALSE(kept.rotated);
  EXPECT_EQ(kept.activation_bits, 8);
  EXPECT_TRUE(kept.formats.empty()) << "narrow as it is";
  for (const TensorPlan& plan : tensor_plan(kept)) {
    if (plan.role != TensorRole::matrix || !is_of_layers(plan.id.kind)) continue;
    EXPECT_EQ(plan.format, WeightFormat::int4) << plan.name;
  }
  options.force = true;
  options.activation_bits = 16;
  EXPECT_TRUE(says(error_of([&] { convert_checkpoint(options); }), "--activation-bits"));
  options.activation_bits.reset();
  options.keep_output = true;
  EXPECT_TRUE(says(error_of([&] { convert_checkpoint(options); }), "--keep-output"));
}

// Symmetric, and with zero points in the range of numbers, of which any code may occur.
TEST_F(HeldFormats, OfCompressedTensorsIsHeldExactly) {
  const json quantization = {
      {"quant_method", "compressed-tensors"},
      {"format", "pack-quantized"},
      {"config_groups", {{"group_0", {{"weights", {{"num_bits", 4}, {"group_size", 32}}}}}}}};
  std::minstd_rand random(3);
  std::string words(2 * 8 * 4, '\0');
  for (char& byte : words) byte = static_cast<char>(random());
  const std::string scales("\x23\x3c\x81\xbc\xff\x3f\x01\x2a", 8);  // bf16, one negative
  RawTensors tensors = {{"m.weight_packed", {"I32", {2, 8}, words}},
                        {"m.weight_shape", {"I64", {2}, bytes_of<int64_t>({2, 64})}},
                        {"m.weight_scale", {"BF16", {2, 2}, scales}}};
  for (const bool zero_points : {false, true}) {
    if (zero_points) {
      tensors["m.weight_zero_point"] = {"I32", {1, 2}, bytes_of<uint32_t>({0xF0, 0x3B})};
    }
    const Checkpoint checkpoint = joined(tensors, quantization);
    const SourceTensor& tensor = *checkpoint.find("m.weight");
    ASSERT_EQ(held_format(checkpoint, tensor), WeightFormat::int4_g32);
    const Floats row = values(checkpoint, "m.weight");
    Floats decoded(row.size());
    std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(WeightFormat::int4_g32, 128)));
    EXPECT_EQ(quantize_row_coded(WeightFormat::int4_g32, row, {}, bytes.data()).squared_error, 0);
    decode_row(WeightFormat::int4_g32, bytes.data(), nullptr, 0, decoded);
    EXPECT_EQ(std::memcmp(decoded.data(), row.data(), row.size() * sizeof(float)), 0);
  }
}

// A zero point that its group's numbers have not would leave 0 out of their range.
TEST_F(HeldFormats, HaveZeroPointsAmongNumbers) {
  const json quantization = {
      {"quant_method", "compressed-tensors"},
      {"format", "pack-quantized"},
      {"config_groups", {{"group_0", {{"weights", {{"num_bits", 4}, {"group_size", 32}}}}}}}};
  RawTensors tensors = {{"m.weight_packed", {"I32", {1, 4}, zeros(16)}},
                        {"m.weight_shape", {"I64", {2}, bytes_of<int64_t>({1, 32})}},
                        {"m.weight_scale", {"F32", {1, 1}, bytes_of<float>({1})}},
                        {"m.weight_zero_point", {"I8", {1, 1}, "\x07"}}};
  const auto held = [&] {
    const Checkpoint checkpoint = joined(tensors, quantization);
    return held_format(checkpoint, *checkpoint.find("m.weight"));
  };
  EXPECT_EQ(held(), WeightFormat::int4_g128) << "a whole row";
  tensors["m.weight_zero_point"].bytes = "\x08";
  EXPECT_FALSE(held());
}

// Whose largest magnitude is then not the scale.
TEST_F(HeldFormats, HoldBlocksOfNf4WithoutTheLargestCode) {
  constexpr int64_t kColumns = 128;
  const std::string state = R"({"quant_type": "nf4", "blocksize": 64, "shape": [2, 128]})";
  RawTensor values{"F32", {16}, {}};
  for (const float value : kNf4Values) values.bytes += bytes_of<float>({value});
  RawTensors tensors = {
      {"w", {"U8", {kColumns, 1}, std::string(kColumns, '\x2D')}},
      {"w.absmax", {"F32", {4}, bytes_of<float>({0.3F, 1, 0, 0.7F})}},
      {"w.quant_map", values},
      {"w.quant_state.bitsandbytes__nf4", {"U8", {static_cast<int64_t>(state.size())}, state}}};
  const Checkpoint checkpoint = joined(tensors, {{"quant_method", "bitsandbytes"}});
  const SourceTensor& tensor = *checkpoint.find("w");
  ASSERT_EQ(held_format(checkpoint, tensor), WeightFormat::nf4);
  const Floats all = HeldFormats::values(checkpoint, "w");
  Floats scales;
  std::vector<std::byte> raw;
  std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(WeightFormat::nf4, kColumns)));
  for (int64_t row = 0; row < 2; ++row) {
    read_held_scales(checkpoint, tensor, WeightFormat::nf4, row, scales, raw);
    EXPECT_EQ(scales, row == 0 ? Floats({0.3F, 1}) : Floats({0, 0.7F}));
    const std::span<const float> values_of_row = std::span(all).subspan(row * kColumns, kColumns);
    const auto error_with = [&](std::span<const float> known) {
      return quantize_row_coded(WeightFormat::nf4, values_of_row, known, bytes.data())
          .squared_error;
    };
    EXPECT_EQ(error_with(scales), 0);
    EXPECT_GT(error_with({}), 0);
  }
}

// A Llama whose matrices are E4M3 with a scale each, but for some.
TEST_F(HeldFormats, KeepsBitsMatrixByMatrix) {
  RawTensors tensors;
  TestTensors plain = tiny_tensors(DType::f32);
  std::minstd_rand random(7);
  for (auto& [name, tensor] : plain) {
    const bool is_plain = !name.ends_with("_proj.weight") ||
                          name == "model.layers.1.mlp.down_proj.weight" ||
                          name == "model.layers.0.self_attn.k_proj.weight";
    RawTensor& raw = tensors[name];
    raw.shape = tensor.shape;
    if (is_plain) {
      raw.type = "F32";
      for (float& value : tensor.values) value = static_cast<float>(BFloat16(value));
      raw.bytes.assign(reinterpret_cast<const char*>(tensor.values.data()),
                       tensor.values.size() * sizeof(float));
      continue;
    }
    raw.type = "F8_E4M3";
    for (size_t i = 0; i < tensor.values.size(); ++i) {
      raw.bytes += static_cast<char>(random() % 127 | (random() % 2 << 7));
    }
    // Those that are decoded have values that bf16 holds.
    const float scale = name.find("layers.0.self_attn") != std::string::npos ? 0x1p-9F : 0.00123F;
    tensors[name + "_scale"] = {"F32", {1}, bytes_of<float>({scale})};
  }
  const json quantization = {{"quant_method", "fp8"}};
  joined(tensors, quantization);
  json config = tiny_config();
  config["quantization_config"] = quantization;
  ConvertOptions options = conversion_of(config);
  const ConvertReport report = convert_checkpoint(options);
  EXPECT_EQ(report.kept.at(WeightFormat::fp8), 6U);
  EXPECT_EQ(report.decoded, 1U) << "what Q and V are joined with is not quantized";
  std::ostringstream summary;
  print_report(report, summary);
  EXPECT_NE(summary.str().find("6 matrices in fp8"), std::string::npos) << summary.str();
  EXPECT_NE(summary.str().find("1 quantized matrix that"), std::string::npos) << summary.str();
  const ModelFile kept = ModelFile::open(options.output);
  options.output = folder_ / "f32.bin";
  options.format = WeightFormat::f32;
  convert_checkpoint(options);
  const ModelFile floats = ModelFile::open(options.output);
  std::map<std::string, WeightFormat> formats;
  for (const TensorPlan& plan : tensor_plan(config_from_json(kept.header()["model"], "kept"))) {
    formats[plan.name] = plan.format;
    if (plan.format != WeightFormat::fp8) continue;
    const std::byte* row = kept.bytes(*kept.find(plan.name)).data();
    const std::byte* expected = floats.bytes(*floats.find(plan.name)).data();
    Floats values(static_cast<size_t>(plan.shape[1]));
    for (int64_t r = 0; r < plan.shape[0]; ++r) {
      decode_row(plan.format, row, nullptr, 0, values);
      ASSERT_EQ(std::memcmp(values.data(), expected, values.size() * sizeof(float)), 0)
          << plan.name << ' ' << r;
      row += row_bytes(plan.format, plan.shape[1]);
      expected += values.size() * sizeof(float);
    }
  }
  EXPECT_EQ(formats["layers.0.attention_qkv"], WeightFormat::bf16);
  EXPECT_EQ(formats["layers.1.attention_qkv"], WeightFormat::fp8);
  EXPECT_EQ(formats["layers.0.ffn_down"], WeightFormat::fp8);
  EXPECT_EQ(formats["layers.1.ffn_down"], WeightFormat::bf16);
  EXPECT_EQ(formats["output"], WeightFormat::bf16);

  options.format.reset();
  options.keep = "output=f32,qkv:0=f32,down:1=f32";
  options.output = folder_ / "mixed.bin";
  convert_checkpoint(options);
  const Floats logits = logits_of(ModelFile::open(options.output));
  const Floats expected = logits_of(floats);
  const float largest = largest_magnitude(expected);
  ASSERT_EQ(logits.size(), expected.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    EXPECT_NEAR(logits[i], expected[i], 1e-5 * largest) << i;
  }
}

// gpt-oss as it is published: experts in MXFP4, all else in bf16.
TEST_F(HeldFormats, KeepExpertsOfGptOss) {
  constexpr int64_t kWidth = 32;  // of everything
  constexpr int64_t kExperts = 3;
  RawTensors tensors;
  std::minstd_rand random(11);
  uint32_t seed = 1;
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape) {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    std::string bytes;
    for (const float value : random_values(static_cast<size_t>(count), seed++)) {
      bytes += bytes_of<BFloat16>({BFloat16(4 * value)});
    }
    tensors[name] = {"BF16", shape, bytes};
  };
  const auto add_experts = [&](const std::string& name, int64_t rows) {
    std::string codes;
    std::string scales;
    for (int64_t i = 0; i < kExperts * rows; ++i) {
      for (int64_t at = 0; at < kWidth / 2; ++at) codes += static_cast<char>(random());
      scales += static_cast<char>(122 + random() % 3);
    }
    tensors[name + "_blocks"] = {"U8", {kExperts, rows, 1, kWidth / 2}, codes};
    tensors[name + "_scales"] = {"U8", {kExperts, rows, 1}, scales};
    add(name + "_bias", {kExperts, rows});
  };
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
      add(layer + "self_attn." + name + ".weight", {kWidth, kWidth});
      add(layer + "self_attn." + name + ".bias", {kWidth});
    }
    add(layer + "self_attn.sinks", {2});
    add(layer + "input_layernorm.weight", {kWidth});
    add(layer + "post_attention_layernorm.weight", {kWidth});
    add(layer + "mlp.router.weight", {kExperts, kWidth});
    add(layer + "mlp.router.bias", {kExperts});
    add_experts(layer + "mlp.experts.gate_up_proj", 2 * kWidth);
    add_experts(layer + "mlp.experts.down_proj", kWidth);
  }
  add("model.embed_tokens.weight", {kTinyVocab, kWidth});
  add("lm_head.weight", {kTinyVocab, kWidth});
  add("model.norm.weight", {kWidth});
  const json quantization = {{"quant_method", "mxfp4"}};
  joined(tensors, quantization);
  json config = tiny_config();
  config.update({{"model_type", "gpt_oss"},
                 {"hidden_size", kWidth},
                 {"intermediate_size", kWidth},
                 {"num_attention_heads", 2},
                 {"num_key_value_heads", 2},
                 {"head_dim", kWidth / 2},
                 {"num_local_experts", kExperts},
                 {"num_experts_per_tok", 2},
                 {"quantization_config", quantization}});
  ConvertOptions options = conversion_of(config);
  const ConvertReport report = convert_checkpoint(options);
  EXPECT_EQ(report.kept.at(WeightFormat::mxfp4), 4U);
  EXPECT_EQ(report.decoded, 0U);
  EXPECT_EQ(report.rounded, 0U);
  const Floats kept = logits_of(ModelFile::open(options.output));
  options.output = folder_ / "decoded.bin";
  options.decode = true;
  convert_checkpoint(options);
  const Floats decoded = logits_of(ModelFile::open(options.output));
  ASSERT_EQ(kept.size(), decoded.size());
  for (size_t i = 0; i < kept.size(); ++i) EXPECT_NEAR(kept[i], decoded[i], 1e-5) << i;
}

}  // namespace
}  // namespace faststream::convert
