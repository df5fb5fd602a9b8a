// Texts over keys and values in eight bits: what holds in sixteen holds for them.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/kv_groups.h"
#include "support/error.h"
#include "unit/backend/test_backends.h"
#include "unit/engine/engine_model.h"
#include "unit/engine/mixed_requests.h"

namespace faststream {
namespace {

class KvFormatEngine : public DeviceTest {
 protected:
  static EngineOptions options(const std::string& format, int32_t slots, int64_t kv_tokens = 0) {
    return {
        .device = GetParam(), .threads = 2, .slots = slots, .kv_tokens = kv_tokens, .kv = format};
  }
};

TEST_P(KvFormatEngine, ATextDependsNeitherOnCompanyNorOnPiecesNorOnPreemption) {
  const std::vector<Request> all = requests_of_all_lengths();
  for (const std::string format : {"int8", "fp8"}) {
    for (const int64_t window : {0, 40}) {
      // Of f32 a CPU's products of few rows and many differ in last bits, which rounding tells of.
      const auto model = engine_model(WeightFormat::int8, window);
      EngineOptions plain = options(format, 1);
      plain.prefix_sharing = false;
      Engine alone(model, plain);
      const auto expected = run_alone(alone, all, samples_of);

      Engine engine(model, options(format, 8));
      EXPECT_EQ(engine.info().kv_in_eight, window > 0 ? 1 : 2);
      EXPECT_EQ(run_together(engine, all, samples_of), expected) << format << ", together";
      EXPECT_EQ(run_alone(engine, all, samples_of), expected) << format << ", from the cache";
      EXPECT_GT(engine.stats().cached_tokens, 70);
      EXPECT_EQ(engine.stats().free_tokens, engine.info().kv_tokens);

      EngineOptions pieces = options(format, 8);
      pieces.chunk = 4;
      Engine in_pieces(model, pieces);
      EXPECT_EQ(run_together(in_pieces, all, samples_of), expected) << format << ", in pieces";

      EngineOptions tight = options(format, 8, 320);
      tight.context = 320;
      Engine preempting(model, tight);
      EXPECT_EQ(run_together(preempting, all, samples_of), expected) << format << ", preempted";
      EXPECT_GT(preempting.stats().preemptions, 0);
    }
  }
}

TEST_P(KvFormatEngine, TheCacheTakesAByteOfEachNumberAndItsScales) {
  const Engine plain(engine_model(WeightFormat::bf16), options("", 4, 640));
  const Engine coded(engine_model(WeightFormat::bf16), options("fp8", 4, 640));
  EXPECT_EQ(plain.info().kv_in_eight, 0);
  // Heads of 24 dimensions.
  EXPECT_EQ(coded.info().kv_bytes * 48, plain.info().kv_bytes * 26);
}

INSTANTIATE_TEST_SUITE_P(Cpu, KvFormatEngine, testing::Values("cpu"));
INSTANTIATE_TEST_SUITE_P(Cuda, KvFormatEngine, testing::Values("cuda"));

TEST(KvFormats, OnlyLayersThatSeeWholeTextsTakeThem) {
  const KvType wanted(DType::bf16, KvFormat::int8);
  ModelConfig config = engine_shape(WeightFormat::bf16, 40);
  EXPECT_EQ(n_layers_of_format(config, wanted), 1);
  config.max_context = 40;  // no text outgrows the window
  EXPECT_EQ(n_layers_of_format(config, wanted), 2);
  config.layer_kinds[0].attention().sinks = true;
  EXPECT_EQ(n_layers_of_format(config, wanted), 1);
  config.layer_kinds[1].mixers = {LatentAttentionConfig{
      .n_heads = 2, .kv_rank = 16, .rope_dim = 8, .nope_dim = 8, .value_head_dim = 8}};
  EXPECT_EQ(n_layers_of_format(config, wanted), 0);
}

TEST(KvFormats, AreRefusedWhereNoLayerTakesThem) {
  ModelConfig config = engine_shape(WeightFormat::f32);
  config.layer_kinds[0].attention().window = 40;
  const auto model = engine_model_of(config, "windows_alone");
  EngineOptions options{.device = "cpu", .threads = 1, .kv = "int8"};
  EXPECT_THROW(Engine(model, options), UsageError);
  options.kv = "int4";
  EXPECT_THROW(Engine(model, options), UsageError);
}

}  // namespace
}  // namespace faststream
