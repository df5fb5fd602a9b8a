// On a GPU, models with experts take steps of thousands of tokens of prompts (plan_memory()).
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "backend/backend.h"
#include "unit/engine/engine_model.h"

namespace faststream {
namespace {

ModelConfig experts_shape() {
  ModelConfig config = plain_decoder({.n_layers = 2,
                                      .hidden = 128,
                                      .n_heads = 2,
                                      .n_kv_heads = 1,
                                      .head_dim = 64,
                                      .ffn_hidden = 128,
                                      .vocab = 280,
                                      .max_context = 16384});
  config.weight_format = config.output_format = WeightFormat::int8;
  config.embedding_format = WeightFormat::bf16;
  LayerConfig& layer = config.layer_kinds[0];
  layer.ffn = {};
  layer.experts = {.count = 8,
                   .router = {.used = 2, .normalized = true},
                   .each = {.size = 64, .gated = true},
                   .shared = {}};
  return config;
}

TEST(CudaLongStep, GivesTheTextOfShortOnes) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
  std::mt19937 random(41);
  std::vector<Request> requests;
  for (const size_t length : {9000U, 300U, 4100U, 2049U, 12000U}) {
    std::vector<int32_t> prompt{1};
    while (prompt.size() < length) prompt.push_back(3 + static_cast<int32_t>(random() % 276));
    Request request;
    request.prompt = std::move(prompt);
    request.max_tokens = 20;
    request.ignore_eos = true;
    request.sampling.temperature = 0;
    requests.push_back(std::move(request));
  }
  const auto tokens_of = [](const Result& result) { return result.outputs[0].tokens; };
  const EngineOptions plain{.device = "cuda", .threads = 2, .slots = 8, .prefix_sharing = false};
  EngineOptions short_pieces = plain;
  short_pieces.chunk = 256;
  Engine pieces(engine_model_of(experts_shape(), "experts"), short_pieces);
  const auto expected = run_alone(pieces, requests, tokens_of);
  Engine engine(engine_model_of(experts_shape(), "experts"), plain);
  EXPECT_EQ(run_alone(engine, requests, tokens_of), expected);
  EXPECT_EQ(run_together(engine, requests, tokens_of), expected);
}

}  // namespace
}  // namespace faststream
