// How memory is divided, on devices that nobody has.
#include "engine/memory_plan.h"

#include <gtest/gtest.h>

#include "bench/random_model.h"
#include "engine/kv_groups.h"
#include "unit/support/file_helpers.h"

namespace faststream {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kGiB = size_t{1} << 30;

BackendFigures gpu(size_t free_bytes) {
  return {.free_bytes = free_bytes,
          .takes_on_use = false,
          .runs_beside_host = true,
          .most_slots = 512,
          .activations = DType::bf16,
          .kv = DType::bf16,
          .scratch_bytes = [](const StepBounds&) { return 512 * kMiB; }};
}

BackendFigures cpu(size_t free_bytes) {
  return {.free_bytes = free_bytes,
          .takes_on_use = true,
          .most_slots = 64,
          .activations = DType::f32,
          .kv = DType::bf16,
          .scratch_bytes = [](const StepBounds&) { return 32 * kMiB; }};
}

// 128 KiB of cache a token.
ModelConfig llama_8b() { return bench::named_shape("llama-3-8b", WeightFormat::int8); }
constexpr size_t k8bBytes = size_t{9} << 30;

MemoryPlan plan(const ModelConfig& config, const BackendFigures& backend,
                const EngineOptions& options = {}, size_t weight_bytes = k8bBytes) {
  return plan_memory(config, options, weight_bytes, 1, backend);
}

TEST(MemoryPlan, GivesAGpuAFullContextForEachSlotAsMemoryAllows) {
  const MemoryPlan large = plan(llama_8b(), gpu(400 * kGiB));
  EXPECT_EQ(large.slots, 512);
  EXPECT_EQ(large.chunk, kMaxStepTokens);
  EXPECT_EQ(large.context, 8192);
  EXPECT_GT(large.kv_tokens, 380 * 8192);
  EXPECT_EQ(large.kept_tokens, large.kv_tokens);
  EXPECT_EQ(large.limits.max_tokens, kMaxStepTokens);
  EXPECT_EQ(large.limits.max_logits, 512);
  EXPECT_EQ(plan(llama_8b(), gpu(800 * kGiB)).kv_tokens, 512 * 8192);

  const MemoryPlan h100 = plan(llama_8b(), gpu(79 * kGiB));
  EXPECT_EQ(h100.context, 8192);
  EXPECT_EQ(h100.kept_tokens, h100.kv_tokens);
  // 79 GiB without weights, scratch memory, activations and the reserve, 128 KiB a token.
  EXPECT_GT(h100.kv_tokens, 67 * 8192);
  EXPECT_LT(h100.kv_tokens, 69 * 8192);

  const MemoryPlan tight = plan(llama_8b(), gpu(k8bBytes + kGiB));
  EXPECT_GT(tight.context, 1000);
  EXPECT_LT(tight.context, 4096);
  EXPECT_EQ(tight.kv_tokens, tight.context);
}

TEST(MemoryPlan, ChoosesAsManySlotsAsMemoryServes) {
  EXPECT_EQ(plan(llama_8b(), gpu(79 * kGiB)).slots, 512);
  const MemoryPlan desktop = plan(llama_8b(), gpu(16 * kGiB));
  EXPECT_EQ(desktop.slots, 128);
  EXPECT_GE(desktop.kv_tokens, 128 * 256);
  EXPECT_LT(desktop.kv_tokens, 256 * 256);
  EXPECT_EQ(desktop.limits.max_logits, 128);
  EXPECT_EQ(plan(llama_8b(), gpu(16 * kGiB), {.slots = 512}).slots, 512) << "who asks gets them";
  EXPECT_GE(plan(llama_8b(), gpu(k8bBytes + kGiB)).slots, 1);
  // Short texts need less.
  ModelConfig brief = llama_8b();
  brief.max_context = 64;
  EXPECT_EQ(plan(brief, gpu(16 * kGiB)).slots, 512);
  // More where there is memory for a whole text in each, beside a host that launches their steps.
  EXPECT_EQ(plan(brief, gpu(24 * kGiB)).slots, 1024);
  EXPECT_EQ(plan(brief, gpu(79 * kGiB)).slots, 4096);
  EXPECT_EQ(plan(brief, cpu(79 * kGiB)).slots, 64);
}

TEST(MemoryPlan, GivesModelsWithExpertsLargerStepsWhereThereIsMemory) {
  const ModelConfig experts = bench::named_shape("deepseek-v2-lite", WeightFormat::int8);
  constexpr size_t kBytes = 16 * kGiB;
  const auto plan_of = [&](BackendFigures backend, const EngineOptions& options = {}) {
    backend.scratch_bytes = [](const StepBounds& bounds) {
      return static_cast<size_t>(bounds.tokens) * 128 * 1024;
    };
    return plan(experts, backend, options, kBytes);
  };
  const MemoryPlan large = plan_of(gpu(79 * kGiB));
  EXPECT_EQ(large.limits.max_tokens, kMostStepTokens);
  EXPECT_EQ(large.chunk, kMaxStepTokens) << "beside running sequences as of any model";
  const MemoryPlan middle = plan_of(gpu(kBytes + 12 * kGiB));
  EXPECT_EQ(middle.limits.max_tokens, kMostStepTokens / 2);
  const MemoryPlan small = plan_of(gpu(kBytes + 4 * kGiB));
  EXPECT_EQ(small.limits.max_tokens, kMaxStepTokens);
  EXPECT_EQ(plan_of(cpu(79 * kGiB)).limits.max_tokens, kMaxStepTokens);
  EXPECT_EQ(plan(llama_8b(), gpu(79 * kGiB)).limits.max_tokens, kMaxStepTokens) << "no experts";
  // A cache that was asked for comes first.
  const int64_t most = plan_of(gpu(79 * kGiB), {.slots = 64}).kv_tokens;
  const MemoryPlan asked = plan_of(gpu(79 * kGiB), {.slots = 64, .kv_tokens = most + 8192});
  EXPECT_LT(asked.limits.max_tokens, kMostStepTokens);
  EXPECT_EQ(asked.kv_tokens, most + 8192);
}

TEST(MemoryPlan, LeavesWhatTheBackendNeedsForItsOperations) {
  BackendFigures backend = gpu(40 * kGiB);
  StepBounds asked;
  backend.scratch_bytes = [&](const StepBounds& bounds) {
    asked = bounds;
    return kGiB;
  };
  const MemoryPlan one = plan(llama_8b(), backend, {.slots = 1024});
  EXPECT_EQ(asked.tokens, kMaxStepTokens);
  EXPECT_EQ(asked.sequences, 1024);
  EXPECT_EQ(asked.logits, 1024);
  EXPECT_EQ(asked.context, 8192);
  EXPECT_EQ(asked.vocab, 128256);
  EXPECT_EQ(asked.n_heads, 32);
  EXPECT_EQ(asked.n_kv_heads, 8);
  EXPECT_EQ(asked.head_dim, 128);
  EXPECT_EQ(asked.weight_format, WeightFormat::int8);
  ASSERT_EQ(asked.products.size(), 5U);
  EXPECT_EQ(asked.products[4].rows, 1024);
  EXPECT_EQ(asked.products[4].out, 128256);
  EXPECT_EQ(asked.products[2].rows, kMaxStepTokens) << "in the last layer fewer, which say no more";
  EXPECT_EQ(asked.products[2].out, 2 * 14336);
  EXPECT_TRUE(asked.products[2].gated);

  backend.scratch_bytes = [](const StepBounds&) { return 5 * kGiB; };
  const MemoryPlan five = plan(llama_8b(), backend, {.slots = 1024});
  EXPECT_EQ((one.kv_tokens - five.kv_tokens) * 131072, 4 * static_cast<int64_t>(kGiB));
}

TEST(MemoryPlan, SharesAHostWithOtherPrograms) {
  const MemoryPlan host = plan(llama_8b(), cpu(64 * kGiB));
  EXPECT_EQ(host.slots, 64);
  EXPECT_EQ(host.context, 8192);
  // Half of what 64 GiB leave.
  EXPECT_GT(host.kv_tokens * 131072, 25 * static_cast<int64_t>(kGiB));
  EXPECT_LT(host.kv_tokens * 131072, 28 * static_cast<int64_t>(kGiB));
  EXPECT_EQ(host.kept_tokens, 16384);

  // One context may have all.
  const MemoryPlan small = plan(llama_8b(), cpu(k8bBytes + kGiB));
  EXPECT_GT(small.context, 4096);
  EXPECT_EQ(small.kv_tokens, (small.context + 31) / 32 * 32);
  EXPECT_LT(small.kept_tokens, small.kv_tokens / 7);

  const MemoryPlan asked = plan(llama_8b(), cpu(64 * kGiB), {.kv_tokens = 300000});
  EXPECT_EQ(asked.kv_tokens, 300000);
  EXPECT_EQ(asked.kept_tokens, 300000) << "who asks for a size gets it";
}

TEST(MemoryPlan, FitsAContainer) {
  ModelConfig config = bench::named_shape("llama-tiny", WeightFormat::f32);
  config.max_context = 1 << 20;
  config.layers.resize(16);
  config.layer_kinds[0].attention().n_kv_heads = 4;
  const size_t free = 560 * kMiB;
  const MemoryPlan small = plan(config, cpu(free), {.slots = 1}, 10 * kMiB);
  const auto bytes = static_cast<int64_t>(kv_groups(config, DType::bf16)[0].token_bytes);
  EXPECT_LT(small.kv_tokens * bytes, static_cast<int64_t>(7 * free / 8));
  EXPECT_LE(small.context, small.kv_tokens);
  EXPECT_LE(small.kept_tokens * bytes, static_cast<int64_t>(free / 8));
}

TEST(MemoryPlan, GivesLayersWithWindowsWhatTheSequencesNeed) {
  ModelConfig config = llama_8b();
  config.layer_kinds.push_back(config.layer_kinds[0]);
  config.layer_kinds[1].name = "windowed";
  config.layer_kinds[1].attention().window = 512;
  for (size_t n = 0; n < config.layers.size(); n += 2) config.layers[n] = 1;
  const MemoryPlan all = plan(llama_8b(), gpu(16 * kGiB), {.slots = 16});
  const MemoryPlan half = plan(config, gpu(16 * kGiB), {.slots = 16});
  EXPECT_GT(half.kv_tokens, all.kv_tokens * 17 / 10);
  EXPECT_LT(half.kv_tokens, all.kv_tokens * 2);

  // Where memory is short, windows get a page for each page.
  const MemoryPlan tight = plan(config, gpu(k8bBytes + kGiB), {.slots = 128});
  EXPECT_EQ(tight.context, plan(llama_8b(), gpu(k8bBytes + kGiB), {.slots = 128}).context);
}

TEST(MemoryPlan, HasRoomForASourceBesideEachAnswer) {
  ModelConfig config = bench::named_shape("llama-tiny", WeightFormat::f32);
  ModelConfig encoder = config;
  encoder.output = {.norm = {}, .none = true};
  encoder.max_context = 3000;
  config.encoder = std::make_shared<const ModelConfig>(encoder);
  const MemoryPlan roomy = plan(config, gpu(80 * kGiB), {.slots = 4}, kMiB);
  EXPECT_EQ(roomy.context, 512);
  EXPECT_EQ(roomy.source, 3000);
  EXPECT_EQ(roomy.kv_tokens, 4 * (512 + 3008));
  EXPECT_EQ(roomy.limits.max_tokens, 3000) << "a source is read as a whole";
  const MemoryPlan asked = plan(config, gpu(80 * kGiB), {.slots = 4, .kv_tokens = 1024}, kMiB);
  EXPECT_EQ(asked.context, 512);
  EXPECT_EQ(asked.source, 512);
  EXPECT_EQ(plan(config, gpu(80 * kGiB), {.context = 64, .kv_tokens = 1024}, kMiB).source, 960);
  const MemoryPlan least = plan(config, gpu(80 * kGiB), {.slots = 1, .kv_tokens = 65}, kMiB);
  EXPECT_EQ(least.context, 33);
  EXPECT_EQ(least.source, 32);
  EXPECT_EQ(least.kv_tokens, 96);
  EXPECT_TRUE(
      says(error_of([&] { (void)plan(config, gpu(80 * kGiB), {.kv_tokens = 63}, kMiB); }), "64"));
}

// It keeps as many tokens as the model, in a layer more.
TEST(MemoryPlan, LeavesRoomForAPredictor) {
  ModelConfig config = llama_8b();
  const int64_t alone = plan(config, gpu(40 * kGiB), {.speculate = "lookup"}).kv_tokens;
  ModelConfig predictor = config;
  predictor.layers = {0};
  predictor.embedding.shared = predictor.output.shared = true;
  predictor.hidden_input = HiddenInputConfig{};
  config.predictors.push_back(predictor);
  const int64_t beside = plan(config, gpu(40 * kGiB), {.speculate = "mtp"}).kv_tokens;
  EXPECT_LE(beside, alone * 32 / 33);
  EXPECT_GT(beside, alone * 9 / 10);
}

TEST(MemoryPlan, RefusesWhatDoesNotFit) {
  const auto refused = [&](size_t free, const EngineOptions& options) {
    return error_of([&] { (void)plan(llama_8b(), cpu(free), options); });
  };
  EXPECT_EQ(refused(64 * kGiB, {.context = 8192}), "");
  EXPECT_NE(refused(k8bBytes, {}).find("does not fit into memory"), std::string::npos);
  EXPECT_NE(refused(0, {}).find("does not fit into memory"), std::string::npos);
  EXPECT_NE(refused(k8bBytes + kGiB, {.context = 8192}).find("--context"), std::string::npos);
  EXPECT_NE(refused(64 * kGiB, {.kv_tokens = 1 << 20}).find("--kv-tokens"), std::string::npos);
  EXPECT_NE(refused(64 * kGiB, {.context = 8193}).find("--context 8193"), std::string::npos);
  EXPECT_NE(refused(64 * kGiB, {.context = 64, .kv_tokens = 32}).find("--kv-tokens 32"),
            std::string::npos);
  EXPECT_NE(refused(64 * kGiB, {.slots = 8193}).find("--slots"), std::string::npos);
  EXPECT_NE(refused(64 * kGiB, {.chunk = 3}).find("--chunk"), std::string::npos);
}

TEST(MemoryPlan, SaysWhichOptionsMakeRoom) {
  // 4 MiB of each step's memory a slot.
  const auto refused = [](size_t free, const EngineOptions& options) {
    BackendFigures backend = cpu(free);
    backend.scratch_bytes = [](const StepBounds& bounds) {
      return static_cast<size_t>(bounds.sequences) * 4 * kMiB;
    };
    return error_of([&] { (void)plan(llama_8b(), backend, options); });
  };
  constexpr const char* kSlots = "--slots";
  const size_t tight = k8bBytes + 2 * kGiB;
  EXPECT_EQ(refused(tight, {.context = 8192, .slots = 1}), "");
  const std::string context = refused(tight, {.context = 8192, .slots = 256});
  EXPECT_TRUE(says(context, "--context, up to ", kSlots)) << context;
  const std::string kv_tokens = refused(tight, {.slots = 256, .kv_tokens = 8192});
  EXPECT_TRUE(says(kv_tokens, "--kv-tokens, up to ", kSlots)) << kv_tokens;
  const std::string nothing = refused(tight, {.slots = 1024});
  EXPECT_TRUE(says(nothing, "beside the model; give fewer slots", "--dtype")) << nothing;

  // Not where they would make too little.
  const size_t tighter = k8bBytes + kGiB;
  EXPECT_FALSE(says(refused(tighter, {.context = 8192, .slots = 8}), kSlots));
  EXPECT_FALSE(says(refused(tighter, {.context = 8192}), kSlots));
  EXPECT_FALSE(says(refused(tighter, {.slots = 8, .kv_tokens = 8192}), kSlots));
  EXPECT_FALSE(says(refused(k8bBytes, {.slots = 8}), kSlots));
  EXPECT_TRUE(says(refused(tight, {.context = 64, .kv_tokens = 32}), "give more", "--context"));
}

}  // namespace
}  // namespace faststream
