#include "convert/kept_formats.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "models/tensor_plan.h"
#include "support/error.h"

namespace faststream::convert {
namespace {

ModelConfig quantized(int64_t n_layers, int64_t hidden = 64) {
  ModelConfig config = plain_decoder({.n_layers = n_layers,
                                      .hidden = hidden,
                                      .n_heads = 2,
                                      .n_kv_heads = 1,
                                      .head_dim = 32,
                                      .ffn_hidden = 96,
                                      .vocab = 50,
                                      .max_context = 128});
  set_formats(config, WeightFormat::int4, WeightFormat::bf16, WeightFormat::int8);
  return config;
}

std::map<std::string, WeightFormat> formats_with(const std::string& kept, ModelConfig config) {
  keep_formats(kept, config);
  validate(config, "test");
  std::map<std::string, WeightFormat> formats;
  for (const TensorPlan& plan : tensor_plan(config)) formats[plan.name] = plan.format;
  return formats;
}

TEST(KeptFormats, AreOfAllTensorsThatDoTheSame) {
  auto formats = formats_with("output=bf16,down=int8", quantized(2));
  EXPECT_EQ(formats["output"], WeightFormat::bf16);
  EXPECT_EQ(formats["layers.0.ffn_down"], WeightFormat::int8);
  EXPECT_EQ(formats["layers.1.ffn_down"], WeightFormat::int8);
  EXPECT_EQ(formats["layers.1.ffn_down.scales"], WeightFormat::f32);
  EXPECT_EQ(formats["layers.1.ffn_gate_up"], WeightFormat::int4);
  EXPECT_EQ(formats["layers.1.attention_qkv"], WeightFormat::int4);
  formats = formats_with("attention_qkv=f16", quantized(2));
  EXPECT_EQ(formats["layers.1.attention_qkv"], WeightFormat::f16) << "a tensor's own name";
}

TEST(KeptFormats, CanBeOfSomeLayersAndTheLastEntryHolds) {
  auto formats = formats_with("down=bf16,down:1-2=int8,qkv:0=int8", quantized(4));
  EXPECT_EQ(formats["layers.0.ffn_down"], WeightFormat::bf16);
  EXPECT_EQ(formats["layers.1.ffn_down"], WeightFormat::int8);
  EXPECT_EQ(formats["layers.2.ffn_down"], WeightFormat::int8);
  EXPECT_EQ(formats["layers.3.ffn_down"], WeightFormat::bf16);
  EXPECT_EQ(formats["layers.0.attention_qkv"], WeightFormat::int8);
  EXPECT_EQ(formats["layers.1.attention_qkv"], WeightFormat::int4);
}

TEST(KeptFormats, LeaveATiedTableTiedOnlyInItsOwnFormat) {
  ModelConfig config = quantized(1);
  config.output.tied = true;
  config.output_format = WeightFormat::bf16;
  keep_formats("output=bf16", config);
  EXPECT_TRUE(config.output.tied);
  keep_formats("output=int4", config);
  EXPECT_FALSE(config.output.tied);
  validate(config, "test");
}

TEST(KeptFormats, AreUsuallyThoseOfInt4InNarrowModels) {
  EXPECT_EQ(usually_kept(quantized(7)), "qkv=int8,down:0-1=int8");
  EXPECT_EQ(usually_kept(quantized(2)), "qkv=int8");
  EXPECT_EQ(usually_kept(quantized(7, kNarrow)), "");
  ModelConfig other = quantized(7);
  other.weight_format = WeightFormat::nf4;
  EXPECT_EQ(usually_kept(other), "");
  other = quantized(7);
  other.activation_bits = 16;
  EXPECT_EQ(usually_kept(other), "");
  auto formats = formats_with(usually_kept(quantized(7)), quantized(7));
  EXPECT_EQ(formats["layers.6.attention_qkv"], WeightFormat::int8);
  EXPECT_EQ(formats["layers.1.ffn_down"], WeightFormat::int8);
  EXPECT_EQ(formats["layers.2.ffn_down"], WeightFormat::int4);
}

TEST(KeptFormats, TakeWholeNamesOfTensors) {
  auto formats = formats_with("layers.1.ffn_down=int8", quantized(4));
  EXPECT_EQ(formats["layers.1.ffn_down"], WeightFormat::int8);
  EXPECT_EQ(formats["layers.0.ffn_down"], WeightFormat::int4);
}

TEST(KeptFormats, TellWhatIsWrong) {
  for (const char* wrong :
       {"", "down", "down=", "down=int5", "norms=int8", "router=int8", "=int8", "down=int8,",
        "down:4=int8", "down:-1=int8", "down:2-1=int8", "down:x=int8", "down:=int8",
        "output:0=int8", "ffn_norm=int8", "shared=int8", "recurrent:0-1=int8",
        "layers.9.ffn_down=int8", "layers.ffn_down=int8"}) {
    ModelConfig config = quantized(4);
    EXPECT_THROW(keep_formats(wrong, config), UsageError) << wrong;
  }
}

// As files were written before: of the last matrices of feed-forwards alone.
TEST(KeptFormats, AreReadFromOlderFiles) {
  nlohmann::json json = config_to_json(quantized(1));
  json["down_type"] = "bf16";
  for (const TensorPlan& plan : tensor_plan(config_from_json(json, "test"))) {
    if (plan.id.kind == TensorKind::ffn_down && plan.id.member == TensorMember::weights) {
      EXPECT_EQ(plan.format, WeightFormat::bf16);
    }
  }
  json = config_to_json(quantized(2));
  json["formats"] = {{{"tensor", "ffn_norm"}, {"type", "int8"}}};
  EXPECT_THROW(config_from_json(json, "test"), Error);
  json["formats"] = {
      {{"tensor", "ffn_down"}, {"type", "int8"}, {"first_layer", 1}, {"n_layers", 2}}};
  EXPECT_THROW(config_from_json(json, "test"), Error);
}

}  // namespace
}  // namespace faststream::convert
