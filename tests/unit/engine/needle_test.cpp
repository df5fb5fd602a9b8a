// Needles in a haystack: pairs of tokens at all depths of a long text, of which the second one is
// asked for by the first. They are found over keys and values of eight bits where they are over
// sixteen.
//
// The model is made for it. Its first layer, a convolution, puts beside each token the one before
// it. Its second, attention, looks with a token's own vector for keys that are the vector of the
// token before, and copies the vectors of the tokens there: what followed the same token. Vectors
// of two tokens have a cosine of 1/8 by standard deviation; what all others weigh together grows
// with the haystack.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "support/dtype.h"
#include "unit/backend/test_backends.h"
#include "unit/effort.h"
#include "unit/engine/engine_model.h"

namespace faststream {
namespace {

constexpr int64_t kVector = 64;  // elements of a token's vector
// Where a hidden state has what: a token's vector, that of the token before it, a 1, what was
// found.
constexpr int64_t kToken = 0;
constexpr int64_t kBefore = kVector;
constexpr int64_t kOne = 2 * kVector;
constexpr int64_t kFound = 3 * kVector;
constexpr int64_t kHidden = 4 * kVector;

constexpr int64_t kHeadDim = 2 * kVector;
// Real models' keys have elements that are much larger than others, and always the same.
constexpr int64_t kOutlier = kVector;
constexpr float kOutlierSize = 12;

constexpr int32_t kNeedles = 40;  // the pairs (3 + i, 3 + kNeedles + i)
constexpr int32_t kFirstOfHay = 3 + 2 * kNeedles;
constexpr int32_t kTokens = 280;

ModelConfig finder_config(int64_t context) {
  ModelConfig config = plain_decoder({.n_layers = 2,
                                      .hidden = kHidden,
                                      .n_heads = 1,
                                      .n_kv_heads = 1,
                                      .head_dim = kHeadDim,
                                      .ffn_hidden = 32,
                                      .vocab = kTokens,
                                      .max_context = context});
  config.weight_format = config.output_format = config.embedding_format = WeightFormat::bf16;
  config.ropes.clear();
  LayerConfig& finds = config.layer_kinds[0];
  finds.ffn = {};
  finds.ffn_norms = {};
  finds.attention().rope.reset();
  finds.attention().scale = 1;
  LayerConfig looks_back = finds;
  looks_back.name = "looks_back";
  looks_back.mixers = {ShortConvolutionConfig{.convolution = {.taps = 2}}};
  config.layer_kinds.push_back(looks_back);
  config.layers = {1, 0};
  return config;
}

// A tensor of zeros, whose elements are set.
class Elements {
 public:
  Elements(ModelImage& image, const ModelConfig& config, const TensorId& id) {
    for (const TensorPlan& plan : tensor_plan(config)) {
      if (plan.id != id) continue;
      bytes_ = image.tensor(plan.name);
      columns_ = plan.columns();
      is_bf16_ = plan.format == WeightFormat::bf16;
    }
    EXPECT_FALSE(bytes_.empty()) << tensor_name(id);
  }

  void set(int64_t row, int64_t column, float value) {
    const int64_t i = row * columns_ + column;
    if (is_bf16_) {
      reinterpret_cast<BFloat16*>(bytes_.data())[i] = BFloat16(value);
    } else {
      reinterpret_cast<float*>(bytes_.data())[i] = value;
    }
  }

 private:
  std::span<std::byte> bytes_;
  int64_t columns_ = 0;
  bool is_bf16_ = false;
};

// What a norm multiplies hidden states by whose squares sum up to that.
float norm_of(float squares) { return std::sqrt(static_cast<float>(kHidden) / squares); }

// A score is `sharpness` times the cosine of what is looked for and a key.
ModelImage finder_weights(const ModelConfig& config, float sharpness) {
  ModelImage image = bench::make_random_model(config, 1);
  for (const TensorInfo& info : image.tensors())
    std::ranges::fill(image.tensor(info.name), std::byte{});
  const auto tensor = [&](TensorKind kind, int64_t layer = -1) {
    TensorId id{.kind = kind};
    if (layer >= 0) id.n = layer;
    return Elements(image, config, id);
  };
  Elements mixer_norms[] = {tensor(TensorKind::attention_norm, 0),
                            tensor(TensorKind::attention_norm, 1), tensor(TensorKind::output_norm)};
  for (Elements& norm : mixer_norms) {
    for (int64_t i = 0; i < kHidden; ++i) norm.set(i, 0, 1);
  }

  Elements embedding = tensor(TensorKind::embedding);
  Elements output = tensor(TensorKind::output);
  std::mt19937 random(3);
  const float element = 1 / std::sqrt(static_cast<float>(kVector));
  for (int64_t token = 0; token < kTokens; ++token) {
    for (int64_t i = 0; i < kVector; ++i) {
      const float value = random() % 2 == 0 ? element : -element;
      embedding.set(token, kToken + i, value);
      output.set(token, kFound + i, value);
    }
    embedding.set(token, kOne, 1);
  }

  // Both gates are 1, and the convolution's input is the token's vector where the one before goes.
  const float first_norm = norm_of(2);
  Elements in = tensor(TensorKind::recurrent_in, 0);
  Elements taps = tensor(TensorKind::recurrent_convolution, 0);
  Elements out = tensor(TensorKind::recurrent_out, 0);
  for (int64_t i = 0; i < kVector; ++i) {
    const int64_t channel = kBefore + i;
    in.set(channel, kOne, 1 / first_norm);
    in.set(kHidden + channel, kOne, 1 / first_norm);
    in.set(2 * kHidden + channel, kToken + i, 1 / first_norm);
    taps.set(channel, 0, 1);  // [taps, channels]: of the token before
    out.set(channel, channel, 1);
  }

  const float second_norm = norm_of(3);
  Elements qkv = tensor(TensorKind::attention_qkv, 1);
  Elements attended = tensor(TensorKind::attention_out, 1);
  for (int64_t i = 0; i < kVector; ++i) {
    qkv.set(i, kToken + i, sharpness / second_norm);
    qkv.set(kHeadDim + i, kBefore + i, 1 / second_norm);
    qkv.set(2 * kHeadDim + i, kToken + i, 1 / second_norm);
    attended.set(kFound + i, i, 1);
  }
  qkv.set(kHeadDim + kOutlier, kOne, kOutlierSize / second_norm);
  return image;
}

class Needles : public DeviceTest {};

TEST_P(Needles, AreFoundAtAnyDepthInEightBits) {
  const int32_t length = kSanitized ? 2000 : GetParam() == "cpu" ? 15000 : 30000;
  std::mt19937 random(7);
  std::vector<int32_t> haystack(static_cast<size_t>(length));
  for (int32_t& token : haystack) {
    token = kFirstOfHay + static_cast<int32_t>(random() % (kTokens - kFirstOfHay));
  }
  for (int32_t i = 0; i < kNeedles; ++i) {
    const auto at = static_cast<size_t>(int64_t{i} * (length - 2) / (kNeedles - 1));
    haystack[at] = 3 + i;
    haystack[at + 1] = 3 + kNeedles + i;
  }
  const ModelConfig config = finder_config(length + 8);
  const auto found_with = [&](float sharpness, const std::string& kv) {
    const auto model = engine_model_of(
        config, "finder-" + std::to_string(sharpness), small_model(true),
        [sharpness](const ModelConfig& of) { return finder_weights(of, sharpness); });
    Engine engine(model, {.device = GetParam(), .threads = 2, .slots = 4, .kv = kv});
    std::vector<bool> found;
    for (int32_t i = 0; i < kNeedles; ++i) {
      Request request;
      std::vector<int32_t> prompt = haystack;
      prompt.push_back(3 + i);
      request.prompt = prompt;
      request.max_tokens = 1;
      request.ignore_eos = true;
      request.sampling.temperature = 0;
      const Result result = engine.submit(request).get();
      found.push_back(result.outputs.at(0).tokens == std::vector<int32_t>{3 + kNeedles + i});
    }
    return found;
  };
  // With 7 a third is found, over sixteen bits as over eight; with 8 on a GPU 39 of 40 over fp8.
  const float sharpness = 9;
  const std::vector<bool> expected = found_with(sharpness, "");
  EXPECT_EQ(std::ranges::count(expected, true), kNeedles);
  for (const std::string kv : {"int8", "fp8"}) {
    EXPECT_EQ(found_with(sharpness, kv), expected) << kv;
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, Needles, testing::Values("cpu"));
INSTANTIATE_TEST_SUITE_P(Cuda, Needles, testing::Values("cuda"));

}  // namespace
}  // namespace faststream
