#include "convert/families/rope_rules.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "unit/support/file_helpers.h"

namespace faststream::convert {
namespace {

using nlohmann::json;

const RopeShape kShape{.head_dim = 8, .max_context = 512};

RopeConfig rope_of(const json& config, const RopeShape& shape = kShape,
                   std::string_view layer_type = "") {
  return rope_from_hf(JsonView(config, "config.json"), shape, layer_type);
}

RopeConfig scaled(const json& rule) { return rope_of({{"rope_scaling", rule}}); }

void expect_about(const std::vector<float>& found, const std::vector<float>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], 1e-6F * expected[i]) << "frequency " << i;
  }
}

// The numbers below: ROPE_INIT_FUNCTIONS of Transformers 5.23 for heads of 8 and theta 10000.
TEST(RopeRules, GiveTransformersFrequencies) {
  expect_about(rope_of(json::object()).frequencies, {1, 0.1F, 0.01F, 0.001F});
  expect_about(scaled({{"type", "linear"}, {"factor", 4}}).frequencies,
               {0.25F, 0.025F, 0.0025F, 0.00025F});
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 64}};
  expect_about(scaled(llama3).frequencies, {1, 0.0130422562F, 0.00125F, 0.000125F});
  expect_about(
      scaled({{"rope_type", "proportional"}, {"factor", 2}, {"partial_rotary_factor", 0.5}})
          .frequencies,
      {0.5F, 0.05F, 0, 0});
}

TEST(RopeRules, GiveYarnsFrequenciesAndFactors) {
  json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 128}};
  const RopeConfig plain = scaled(yarn);
  expect_about(plain.frequencies, {1, 0.0625F, 0.0025F, 0.00025F});
  EXPECT_FLOAT_EQ(plain.attention_factor, 1.138629436F);
  yarn["attention_factor"] = 1.25;
  EXPECT_EQ(scaled(yarn).attention_factor, 1.25F);
  yarn.erase("attention_factor");
  yarn.update({{"beta_fast", 8.0},
               {"beta_slow", 0.5},
               {"mscale", 1.5},
               {"mscale_all_dim", 0.8},
               {"truncate", false}});
  const RopeConfig all = scaled(yarn);
  expect_about(all.frequencies, {1, 0.0629983023F, 0.0025F, 0.00025F});
  EXPECT_FLOAT_EQ(all.attention_factor, 1.087352863F);
}

TEST(RopeRules, KeepTwoTablesForLongrope) {
  json rule = {{"type", "longrope"},
               {"short_factor", {1.0, 1.1, 1.2, 1.5}},
               {"long_factor", {1.5, 2.0, 4.0, 8.0}},
               {"original_max_position_embeddings", 128}};
  for (const char* type : {"longrope", "su"}) {
    rule["type"] = type;
    const RopeConfig rope = scaled(rule);
    expect_about(rope.frequencies, {1, 0.0909090936F, 0.00833333284F, 0.00066666666F});
    expect_about(rope.long_frequencies, {0.666666687F, 0.05F, 0.0025F, 0.000125F});
    EXPECT_FLOAT_EQ(rope.attention_factor, 1.133893419F);
    EXPECT_EQ(rope.original_max_context, 128);
  }
  rule.erase("original_max_position_embeddings");  // Phi 3 has it beside the rule
  const json config = {{"rope_scaling", rule}, {"original_max_position_embeddings", 256}};
  EXPECT_EQ(rope_of(config).original_max_context, 256);
  rule["long_factor"] = {1.0, 2.0};
  EXPECT_TRUE(says(error_of([&] { scaled(rule); }), "long_factor", "2 numbers for 4"));
}

TEST(RopeRules, KnowLongropeByItsOldNames) {
  json rule = {{"type", "longrope"},
               {"short_factor", {1, 1, 1, 1}},
               {"long_factor", {1, 2, 3, 4}},
               {"original_max_position_embeddings", 64}};
  const RopeConfig longrope = scaled(rule);
  for (const char* name : {"su", "yarn"}) {
    rule["type"] = name;
    EXPECT_EQ(scaled(rule), longrope) << name;
  }
}

TEST(RopeRules, LeaveDynamicScalingToTheRun) {
  const RopeConfig rope = scaled({{"type", "dynamic"}, {"factor", 2.0}});
  expect_about(rope.frequencies, {1, 0.1F, 0.01F, 0.001F});
  EXPECT_EQ(rope.dynamic_factor, 2);
  EXPECT_EQ(rope.original_max_context, 512);
}

// Hunyuan: the base is 10^4 · 1000^(8 / 6).
TEST(RopeRules, RaiseTheBaseByAlpha) {
  const RopeConfig rope = scaled({{"type", "dynamic"}, {"alpha", 1000.0}, {"factor", 1.0}});
  expect_about(rope.frequencies, {1, 0.01F, 1e-4F, 1e-6F});
  EXPECT_EQ(rope.dynamic_factor, 0);
}

TEST(RopeRules, RotateAShareOfEachHead) {
  expect_about(rope_of({{"partial_rotary_factor", 0.5}}).frequencies, {1, 0.01F});
  RopeShape shape = kShape;
  shape.rotated_share = 0.25;
  expect_about(rope_of(json::object(), shape).frequencies, {1});
  EXPECT_EQ(rope_of({{"partial_rotary_factor", 1.0}}, shape).dims(), 8);
  for (const double share : {0.0, -1.0, 1.5, 0.01, 1e300}) {
    EXPECT_TRUE(says(error_of([&] {
                       rope_of({{"partial_rotary_factor", share}});
                     }),
                     "share of each head"));
  }
}

// The cases and what comes of them: LlamaConfig.from_dict() of Transformers 5.23.
TEST(RopeRules, TakeRopeScalingBeforeRopeParametersAsTransformersDoes) {
  const json linear = {{"type", "linear"}, {"factor", 2.0}};
  const json with_theta = {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 100.0}};
  const json plain = {{"rope_type", "default"}, {"rope_theta", 100.0}};
  EXPECT_EQ(rope_of({{"rope_scaling", linear}, {"rope_parameters", plain}}).frequencies,
            scaled(linear).frequencies);
  EXPECT_EQ(rope_of({{"rope_scaling", with_theta}, {"rope_theta", 5.0}}).frequencies,
            scaled(with_theta).frequencies);
  for (const json& nothing : {json(nullptr), json::object()}) {
    EXPECT_EQ(rope_of({{"rope_scaling", nothing}, {"rope_parameters", with_theta}}).frequencies,
              scaled(with_theta).frequencies);
  }
  expect_about(
      rope_of({{"rope_parameters", {{"rope_type", "default"}}}, {"rope_theta", 16.0}}).frequencies,
      {1, 0.5F, 0.25F, 0.125F});
}

TEST(RopeRules, TakeTheMembersOfATypeOfLayers) {
  const json config = {
      {"rope_parameters",
       {{"full_attention", {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 10000.0}}},
        {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 16.0}}}}}};
  expect_about(rope_of(config, kShape, "full_attention").frequencies,
               {0.5F, 0.05F, 0.005F, 0.0005F});
  const RopeConfig windowed = rope_of(config, kShape, "sliding_attention");
  expect_about(windowed.frequencies, {1, 0.5F, 0.25F, 0.125F});
  EXPECT_EQ(windowed.name, "sliding_attention");
  EXPECT_TRUE(says(error_of([&] { rope_of(config); }), "rope_parameters", "layer to layer"));
}

TEST(RopeRules, RefuseWhatTheyDoNotKnow) {
  const auto error = [](const json& rule) { return error_of([&] { scaled(rule); }); };
  EXPECT_TRUE(says(error({{"type", "strange"}}), "rope_scaling", "\"strange\"", "longrope"));
  EXPECT_TRUE(says(error({{"factor", 2}}), "rope_type"));
  EXPECT_TRUE(says(error({{"type", "linear"}}), "factor", "missing"));
  for (const double factor : {0.0, -1.0}) {
    for (const char* type : {"linear", "dynamic", "yarn"}) {
      EXPECT_TRUE(says(error({{"type", type}, {"factor", factor}}), "factor", "above 0")) << type;
    }
  }
  EXPECT_TRUE(says(error_of([] { rope_of({{"rope_theta", -1.0}}); }), "rope_theta"));
  EXPECT_TRUE(says(error_of([] { rope_of({{"rope_scaling", "linear"}}); }), "not a JSON object"));
}

}  // namespace
}  // namespace faststream::convert
