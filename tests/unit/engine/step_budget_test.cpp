// No step lasts long, and a fast device is not held up.
#include "engine/step_budget.h"

#include <gtest/gtest.h>

#include <functional>

namespace faststream {
namespace {

struct Prefill {
  double seconds = 0;
  double longest = 0;
  int steps = 0;
};

// Processes a prompt on a device whose steps take `seconds_of` their tokens.
Prefill process(StepBudget& budget, int32_t n_tokens,
                const std::function<double(int32_t)>& seconds_of) {
  Prefill prefill;
  while (n_tokens > 0) {
    const int32_t n = std::min(n_tokens, budget.tokens());
    const double seconds = seconds_of(n);
    budget.measured(n, seconds);
    prefill.seconds += seconds;
    prefill.longest = std::max(prefill.longest, seconds);
    ++prefill.steps;
    n_tokens -= n;
  }
  return prefill;
}

std::function<double(int32_t)> line(double fixed, double of_token) {
  return [=](int32_t tokens) { return fixed + of_token * tokens; };
}

TEST(StepBudget, GivesAFastDeviceAllThatAStepHolds) {
  const auto fast = line(0.005, 0.055 / 2048);
  StepBudget gpu(2048, 2048);
  EXPECT_EQ(process(gpu, 2048 * 10, fast).steps, 10);
  EXPECT_EQ(gpu.tokens(), 2048);
  // One that starts low is there after a few short steps.
  StepBudget cpu(4, 2048);
  const Prefill prefill = process(cpu, 2048 * 10, fast);
  EXPECT_LE(prefill.steps, 14);
  EXPECT_LT(prefill.seconds, 1.05 * 10 * fast(2048));
  EXPECT_EQ(cpu.tokens(), 2048);
}

TEST(StepBudget, KeepsStepsShort) {
  for (const double of_token : {1e-4, 1e-3, 3e-3}) {
    StepBudget budget(4, 2048);
    EXPECT_LE(process(budget, 4000, line(0.01, of_token)).longest, 1.05 * StepBudget::kSeconds)
        << of_token;
    EXPECT_GE(budget.tokens() * of_token, 0.4 * StepBudget::kSeconds) << of_token;
  }
}

TEST(StepBudget, TakesLongerStepsWhereNobodyWaits) {
  const auto device = line(0.06, 0.0008);  // NLLB-600M on two cores
  StepBudget budget(4, 2048);
  StepBudget of_batch(4, 2048, StepBudget::kBatchSeconds);
  const Prefill prefill = process(of_batch, 4000, device);
  EXPECT_LE(prefill.longest, 1.05 * StepBudget::kBatchSeconds);
  EXPECT_LE(2 * prefill.steps, process(budget, 4000, device).steps);
}

TEST(StepBudget, LetsPromptsAtMostTripleAStepThatIsLongInAnyCase) {
  const auto slow = line(0.45, 0.05);  // a 7B on two cores
  StepBudget budget(4, 2048);
  const Prefill prefill = process(budget, 300, slow);
  EXPECT_LE(prefill.longest, 3 * slow(1));
  EXPECT_LE(prefill.steps, 300 / StepBudget::kLeast + 3);
}

TEST(StepBudget, GrowsWhereReadingTheWeightsTakesMostOfAStep) {
  StepBudget budget(4, 2048);
  const auto device = line(0.12, 0.0005);
  const Prefill prefill = process(budget, 4000, device);
  EXPECT_GE(budget.tokens(), 64);
  EXPECT_LE(prefill.longest, 0.3);
}

TEST(StepBudget, RecoversFromALongStep) {
  StepBudget budget(2048, 2048);
  const auto fast = line(0.005, 0.055 / 2048);
  budget.measured(2048, 0.06);
  budget.measured(1, 0.005);
  budget.measured(2048, 3.0);  // something else had the device
  EXPECT_LT(budget.tokens(), 2048);
  EXPECT_LE(process(budget, 20000, fast).steps, 14);
  EXPECT_EQ(budget.tokens(), 2048);
}

TEST(StepBudget, IsNotChangedByStepsThatDoNotUseIt) {
  StepBudget budget(4, 2048);
  process(budget, 4000, line(0.01, 0.001));
  const int32_t tokens = budget.tokens();
  for (int i = 0; i < 100; ++i) budget.measured(1, 0.011);
  EXPECT_EQ(budget.tokens(), tokens);
}

// Steps of `decode` seconds that also take prompts, of_token each.
double beside(StepBudget& budget, double decode, double of_token) {
  budget.measured(0, decode);
  double longest = 0;
  for (int step = 0; step < 30; ++step) {
    const double seconds = decode + of_token * budget.tokens();
    budget.measured(budget.tokens(), seconds);
    longest = std::max(longest, seconds);
  }
  return longest;
}

TEST(StepBudget, KeepsTheNextTokensOfOthersComing) {
  for (const double decode : {0.005, 0.06, 0.15}) {
    StepBudget slow(4, 2048);
    const double limit = std::max(StepBudget::kSeconds, 2 * decode);
    EXPECT_LE(beside(slow, decode, 4e-4), 1.05 * limit);
    EXPECT_GE(slow.tokens() * 4e-4, 0.4 * (limit - decode));
  }
  StepBudget fast(2048, 2048);
  EXPECT_LT(beside(fast, 0.01, 1.5e-5), 0.05);
  EXPECT_EQ(fast.tokens(), 2048);
}

TEST(StepBudget, FollowsWhatStepsTakeWithoutPrompts) {
  StepBudget budget(4, 2048);
  beside(budget, 0.005, 1e-3);
  EXPECT_EQ(budget.tokens(), 128);
  beside(budget, 0.3, 1e-3);  // many more sequences: prompts get as much time as they
  EXPECT_EQ(budget.tokens(), 256);
  beside(budget, 0.005, 1e-3);
  EXPECT_EQ(budget.tokens(), 128);
}

TEST(StepBudget, StaysWithinItsBounds) {
  StepBudget budget(4, 10);
  budget.measured(4, 1e-9);
  EXPECT_EQ(budget.tokens(), 10);
  budget.measured(10, 1e9);
  EXPECT_EQ(budget.tokens(), 10) << "fewer than the least make nothing faster";
  StepBudget large(2048, 2048);
  large.measured(1, 0.01);
  large.measured(2048, 1e9);
  EXPECT_EQ(large.tokens(), StepBudget::kLeast);
}

}  // namespace
}  // namespace faststream
