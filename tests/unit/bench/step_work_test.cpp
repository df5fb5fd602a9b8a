#include "bench/step_work.h"

#include <gtest/gtest.h>

namespace faststream::bench {
namespace {

// 2 layers of hidden 8, 2 heads of 4 over 1, feed-forward of 16; a vocabulary of 32.
ModelConfig small_model() {
  ModelConfig config = plain_decoder({.n_layers = 2,
                                      .hidden = 8,
                                      .n_heads = 2,
                                      .n_kv_heads = 1,
                                      .head_dim = 4,
                                      .ffn_hidden = 16,
                                      .vocab = 32,
                                      .max_context = 64});
  set_formats(config, WeightFormat::bf16, WeightFormat::bf16, WeightFormat::bf16);
  return config;
}

constexpr double kFeedForward = 32 * 8 + 8 * 16;                   // elements
constexpr double kMatrices = 2 * (16 * 8 + 8 * 8 + kFeedForward);  // of both layers
constexpr double kOutput = 32 * 8;
constexpr double kNorms = 5 * 8;

TEST(StepWork, CountsWeightsOncePerStepAndOperationsForEachToken) {
  const StepWork one = step_work(small_model(), DType::bf16, 1, 0, 1);
  EXPECT_EQ(one.weight_bytes, 2 * (kMatrices + kOutput) + 4 * kNorms);
  EXPECT_EQ(one.weight_ops, 2 * (kMatrices + kOutput));

  const StepWork many = step_work(small_model(), DType::bf16, 3, 0, 5);
  EXPECT_EQ(many.weight_bytes, one.weight_bytes);
  const double for_logits = kFeedForward + kOutput;  // the last layer's
  EXPECT_EQ(many.weight_ops, 2 * (3 * 5 * (kMatrices - kFeedForward) + 3 * for_logits));
}

TEST(StepWork, CountsKeysAndValuesOfEachSequence) {
  const StepWork work = step_work(small_model(), DType::bf16, 3, 9, 1);
  EXPECT_EQ(work.kv_bytes, 2 * 3 * 10 * 2 * 4 * 2);        // layers, sequences, tokens, K and V
  EXPECT_EQ(work.activation_ops, 2 * 3 * 10 * 2 * 2 * 8);  // two products of the query heads
  const StepWork prompt = step_work(small_model(), DType::f32, 1, 0, 4);
  EXPECT_EQ(prompt.kv_bytes, 2 * 4 * 2 * 4 * 4);
  EXPECT_EQ(prompt.activation_ops, 2 * (1 + 2 + 3 + 4) * 2 * 2 * 8);
}

TEST(StepWork, CountsKeysThatAnotherLayerReadsAgain) {
  ModelConfig config = small_model();
  const StepWork own = step_work(config, DType::bf16, 3, 9, 1);
  config.layer_kinds.push_back(config.layer_kinds[0]);
  config.layer_kinds[1].attention().kv_of = 0;
  config.layers[1] = 1;
  const StepWork shared = step_work(config, DType::bf16, 3, 9, 1);
  EXPECT_EQ(shared.kv_bytes, own.kv_bytes);
  EXPECT_EQ(own.weight_bytes - shared.weight_bytes, 2 * 8 * 8) << "no rows of keys and values";
}

TEST(StepWork, SeesNoMoreThanAWindow) {
  const AttentionShape shape{
      .sequences = 1,
      .n_cached = 10,
      .n_new = 3,
      .n_heads = 4,
      .geometry = {.n_heads = 2, .k_head_dim = 2, .v_head_dim = 3, .window = 4},
      .kv = DType::f16};
  EXPECT_EQ(attention_work(shape).kv_bytes, (3 + 3) * 2 * (2 + 3) * 2);
  EXPECT_EQ(attention_work(shape).activation_ops, 3 * 4 * 2 * 4 * (2 + 3));
  AttentionShape begins = shape;
  begins.n_cached = 2;  // sees 3, 4 and 4 positions
  EXPECT_EQ(attention_work(begins).activation_ops, (3 + 4 + 4) * 2 * 4 * (2 + 3));
}

TEST(StepWork, ReadsAsManyExpertsAsTokensChooseAtRandom) {
  ModelConfig config = small_model();
  LayerConfig& layer = config.layer_kinds[0];
  layer.experts = {.count = 4, .router = {.used = 1}, .each = layer.ffn, .shared = {}};
  layer.ffn = {};
  const double experts = 2 * 4 * (32 * 8 + 8 * 16);  // elements, of both layers
  const StepWork one = step_work(config, DType::bf16, 1, 0, 1);
  const StepWork two = step_work(config, DType::bf16, 2, 0, 1);
  EXPECT_DOUBLE_EQ(two.weight_bytes - one.weight_bytes, 2 * experts * (7.0 / 16 - 1.0 / 4));
  EXPECT_EQ(two.weight_ops, 2 * one.weight_ops);
}

TEST(StepWork, IsBoundByWhatTakesLonger) {
  const Ceilings ceilings{.memory = 100, .weights = 10, .activations = 20};
  const Share memory = share_of({.weight_bytes = 300, .kv_bytes = 100, .weight_ops = 10}, ceilings);
  EXPECT_EQ(memory.ceiling_seconds, 4);
  EXPECT_TRUE(memory.by_memory);
  const Share arithmetic =
      share_of({.weight_bytes = 300, .weight_ops = 30, .activation_ops = 40}, ceilings);
  EXPECT_EQ(arithmetic.ceiling_seconds, 5);
  EXPECT_FALSE(arithmetic.by_memory);
}

}  // namespace
}  // namespace faststream::bench
