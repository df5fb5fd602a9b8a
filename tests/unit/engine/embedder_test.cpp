// Vectors of random models.
#include "engine/embedder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "unit/backend/test_backends.h"
#include "unit/engine/engine_model.h"

namespace faststream {
namespace {

// Some layers read the keys and values of the first, after others have made wider ones.
ModelConfig lending_shape() {
  ModelConfig config = engine_shape(WeightFormat::f32);
  config.output = {.norm = config.output.norm, .none = true};
  config.pooling = {.mode = Pooling::last};
  LayerConfig reader = config.layer_kinds[0];
  reader.name = "reader";
  reader.attention().kv_of = 0;
  LayerConfig wide = config.layer_kinds[0];
  wide.name = "wide";
  wide.attention().head_dim = 40;
  config.layer_kinds.insert(config.layer_kinds.end(), {reader, wide});
  config.layers = {0, 2, 1, 2, 1};
  return config;
}

std::vector<float> vector_of(Embedder& embedder, const std::string& text) {
  return embedder.embed(std::vector{text}).front().values;
}

using EmbedderTest = DeviceTest;

// The vectors of these texts are those of each by itself.
void expect_as_alone(Embedder& embedder, const std::vector<std::string>& texts,
                     const std::vector<TextVector>& together) {
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::vector<float> alone = vector_of(embedder, texts[i]);
    ASSERT_EQ(alone.size(), together[i].values.size());
    for (size_t c = 0; c < alone.size(); ++c) {
      EXPECT_NEAR(alone[c], together[i].values[c], 1e-4) << texts[i];
    }
  }
}

TEST_P(EmbedderTest, LayersReadTheKeysAndValuesOfEarlierOnesAsTheyWere) {
  const ModelConfig lending = lending_shape();
  Embedder embedder(engine_model_of(lending, "lending"), {.device = GetParam(), .threads = 2});
  const std::string beginning(40, 'a');
  const std::vector<std::string> texts = {beginning + "bcd", "bcd", beginning + "cd", "d"};
  expect_as_alone(embedder, texts, embedder.embed(texts));
}

// Layers of two sizes of states, whose memory is one, behind attention.
ModelConfig recurrent_shape_of_vectors() {
  ModelConfig config = engine_shape(WeightFormat::f32);
  config.output = {.norm = config.output.norm, .none = true};
  config.pooling = {.mode = Pooling::last};
  for (const int64_t width : {8, 12}) {
    LayerConfig layer = config.layer_kinds[0];
    layer.name = "delta net of " + std::to_string(width);
    layer.mixers = {DeltaNetConfig{.n_key_heads = 2,
                                   .n_value_heads = 4,
                                   .key_head_dim = width,
                                   .value_head_dim = 8,
                                   .convolution = {.taps = 4, .activation = Activation::silu},
                                   .norm = config.output.norm}};
    config.layer_kinds.push_back(std::move(layer));
  }
  config.layers = {1, 2, 0, 2, 1};
  return config;
}

TEST_P(EmbedderTest, StatesOfTextsAreTheirOwnInEachLayer) {
  Embedder embedder(engine_model_of(recurrent_shape_of_vectors(), "recurrent"),
                    {.device = GetParam(), .threads = 2});
  const std::vector<std::string> texts = {std::string(40, 'a') + "bcd", "bcd", "", "d", "bcd"};
  const std::vector<TextVector> together = embedder.embed(texts);
  expect_as_alone(embedder, texts, together);
  EXPECT_NE(together[1].values, together[3].values);
}

INSTANTIATE_TEST_SUITE_P(Cpu, EmbedderTest, testing::Values("cpu"));
INSTANTIATE_TEST_SUITE_P(Cuda, EmbedderTest, testing::Values("cuda"));

}  // namespace
}  // namespace faststream
