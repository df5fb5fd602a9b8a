#include "engine/speculation_gate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "engine/acceptance_rate.h"

namespace faststream {
namespace {

// A device on which a step takes a millisecond and, for each row more, a part of that.
struct Device {
  double of_row = 0;
  bool is_disturbed = false;  // now and then a step takes ten times as long
};

// Texts of which each proposed token fits with this likelihood.
struct LikelyTexts {
  int32_t n = 1;
  double acceptance = 0;
};

// How many times as fast texts grow with the gate's proposals as without any. pass: of a draft
// model, as a part of a step.
double gain(const Device& device, const LikelyTexts& texts, double pass = 0) {
  constexpr int kSteps = 1500;
  constexpr double kStep = 1e-3;
  std::mt19937 random(1);
  const auto is_so = [&](double likelihood) {
    return std::uniform_real_distribution<>()(random) < likelihood;
  };
  SpeculationGate gate;
  CommonRate common(0.6F);
  std::vector<TextRate> rates(static_cast<size_t>(texts.n));
  double seconds = 0;
  double plain_seconds = 0;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<int32_t> proposed(rates.size());
    if (gate.is_open(texts.n)) {
      std::vector<ProposalOffer> offers;
      for (TextRate& rate : rates) {
        rate.age(common);
        offers.push_back(ProposalOffer{.most = 7, .acceptance = rate.value(common)});
        offers.back().is_draft = pass > 0;
      }
      proposed = gate.choose(offers, texts.n, 64);
    }
    int32_t n_proposed = 0;
    int32_t n_accepted = 0;
    int32_t depth = 0;
    for (size_t t = 0; t < rates.size(); ++t) {
      int32_t n_fitting = 0;
      while (n_fitting < proposed[t] && is_so(texts.acceptance)) ++n_fitting;
      if (proposed[t] > 0) rates[t].note(proposed[t], n_fitting, common);
      n_proposed += proposed[t];
      n_accepted += n_fitting;
      depth = std::max(depth, proposed[t]);
    }
    for (int32_t d = 1; d <= depth && pass > 0; ++d) {
      const auto is_so_long = [&](int32_t n) { return n >= d; };
      gate.drafted({.n_tokens = static_cast<int32_t>(std::ranges::count_if(proposed, is_so_long)),
                    .seconds = pass * kStep});
      seconds += pass * kStep;
    }
    const double disturbed = device.is_disturbed && is_so(0.05) ? 10 : 1;
    const double plain = kStep * (1 + device.of_row * (texts.n - 1));
    const double with = kStep * (1 + device.of_row * (texts.n - 1 + n_proposed));
    gate.measured(texts.n, n_proposed, disturbed * with);
    if (n_proposed > 0) gate.accepted(texts.n, texts.n + n_accepted);
    seconds += disturbed * with;
    plain_seconds += disturbed * plain * (texts.n + n_accepted) / texts.n;
  }
  return plain_seconds / seconds;
}

TEST(SpeculationGate, NeverLosesMoreThanAFiftieth) {
  for (const double of_row : {0.01, 0.3, 1.0}) {
    for (const double acceptance : {0.0, 0.2, 0.5}) {
      for (const int32_t n : {1, 2, 16}) {
        EXPECT_GT(gain({.of_row = of_row}, {n, acceptance}), 0.98)
            << n << " texts, " << acceptance << " of the tokens fit, a row costs " << of_row;
      }
    }
  }
}

TEST(SpeculationGate, GainsWhereTokensFitAndRowsCostLittle) {
  EXPECT_GT(gain({.of_row = 0.01}, {1, 0.95}), 4);
  EXPECT_GT(gain({.of_row = 0.1}, {1, 0.9}), 2.5);
  EXPECT_GT(gain({.of_row = 0.3}, {1, 0.9}), 1.4);
  EXPECT_GT(gain({.of_row = 0.01}, {8, 0.9}), 2.5);
}

TEST(SpeculationGate, KnowsStepsThatSomethingElseDisturbed) {
  EXPECT_GT(gain({.of_row = 0.1, .is_disturbed = true}, {1, 0.9}), 2);
  EXPECT_GT(gain({.of_row = 0.3, .is_disturbed = true}, {1, 0.1}), 0.97);
}

TEST(SpeculationGate, CountsWhatADraftTakes) {
  EXPECT_GT(gain({.of_row = 0.02}, {1, 0.8}, 0.1), 1.5);
  EXPECT_GT(gain({.of_row = 0.02}, {1, 0.5}, 1), 0.98) << "a draft as slow as the model";
}

// Another program may have the processor in the only draft and step that were tried.
TEST(SpeculationGate, OpensAgainSoonAfterATrialThatSomethingElseDisturbed) {
  constexpr double kStep = 1e-3;
  SpeculationGate gate;
  gate.measured(1, 0, kStep);
  ASSERT_TRUE(gate.is_open(1));
  gate.drafted({.n_tokens = 20, .seconds = 100 * kStep});
  gate.measured(1, 3, 100 * kStep);
  gate.accepted(1, 4);
  EXPECT_FALSE(gate.is_open(1));
  int n_closed = 0;
  for (; !gate.is_open(1) && n_closed < 1000; ++n_closed) gate.measured(1, 0, kStep);
  EXPECT_LE(n_closed, 250);
}

// And so it may in the first choice.
TEST(SpeculationGate, ForgivesAChoiceThatSomethingElseDisturbed) {
  constexpr double kStep = 1e-3;
  SpeculationGate gate;
  gate.measured(1, 0, kStep);
  gate.spent(100 * kStep);
  EXPECT_TRUE(gate.is_open(1)) << "it counts as a step";
  gate.spent(kStep);
  EXPECT_FALSE(gate.is_open(1)) << "each took that long";
}

// One text is followed until it is known what that brings, then all of them, or none.
TEST(SpeculationGate, HasTextsReadThatPayForIt) {
  constexpr double kStep = 1e-3;
  const auto after_steps = [](int n_accepted, double read_seconds) {
    SpeculationGate gate;
    EXPECT_EQ(gate.most_followed(), 1);
    gate.measured(4, 0, kStep);
    for (int step = 0; step < 100; ++step) {
      gate.read_states(read_seconds);
      gate.passed(kStep);
      gate.measured(4, 4, kStep);
      gate.accepted(4, 4 + n_accepted);
    }
    return gate;
  };
  EXPECT_EQ(after_steps(2, 0.1 * kStep).most_followed(), kMostSpeculating);
  EXPECT_EQ(after_steps(0, 0.04 * kStep).most_followed(), 1) << "it may yet";
  SpeculationGate gate = after_steps(0, 0.1 * kStep);
  EXPECT_EQ(gate.most_followed(), 0);
  for (int step = 0; step < 2000; ++step) gate.passed(kStep);
  EXPECT_EQ(gate.most_followed(), 1) << "a part of the time is for trials";
}

// What was disturbed takes no longer than as many tokens of the model.
TEST(SpeculationGate, ForgivesADraftThatSomethingElseDisturbed) {
  constexpr double kStep = 1e-3;
  SpeculationGate gate;
  gate.measured(4, 0, kStep);
  gate.read({.n_tokens = 3, .seconds = 100 * kStep});
  EXPECT_EQ(gate.most_followed(), 1);
  for (int i = 0; i < 8; ++i) gate.read({.n_tokens = 40, .seconds = kStep});
  EXPECT_EQ(gate.most_followed(), 0) << "each took that long";
}

// A text of which a draft is to read much first is left for later.
TEST(SpeculationGate, CountsWhatADraftReadsFirst) {
  SpeculationGate gate;
  gate.measured(2, 0, 1e-3);
  gate.drafted({.n_tokens = 1, .seconds = 1e-5});
  gate.drafted({.n_tokens = 14, .seconds = 1e-2});
  ProposalOffer offer = ProposalOffer{.most = 7, .acceptance = 0.9F};
  offer.is_draft = true;
  ProposalOffer long_unread = offer;
  long_unread.n_unread = 14;
  const std::vector<ProposalOffer> offers = {offer, long_unread};
  const std::vector<int32_t> chosen = gate.choose(offers, 2, 64);
  EXPECT_GT(chosen[0], 0);
  EXPECT_EQ(chosen[1], 0);
}

// Of two texts the one goes on as proposed, and the other does not.
TEST(SpeculationGate, ChoosesForEachText) {
  SpeculationGate gate;
  EXPECT_FALSE(gate.is_open(2)) << "nothing is known yet";
  gate.measured(2, 0, 1e-3);
  ASSERT_TRUE(gate.is_open(2));
  const std::vector<ProposalOffer> offers = {ProposalOffer{.most = 7, .acceptance = 0.9F},
                                             ProposalOffer{.most = 7, .acceptance = 0.05F}};
  const std::vector<int32_t> chosen = gate.choose(offers, 2, 64);
  EXPECT_GE(chosen[0], 3);
  EXPECT_EQ(chosen[1], 0);
  EXPECT_EQ(gate.choose(offers, 2, 2)[0], 2) << "no more than there is room for";
}

// However little their rows cost: some of that is not measured.
TEST(SpeculationGate, LeavesOutWhatIsUnlikely) {
  SpeculationGate gate;
  gate.measured(1, 0, 1e-3);
  for (const int32_t n : {1, 2, 4, 7}) gate.measured(1, n, 1e-3);
  EXPECT_EQ(gate.choose(std::vector{ProposalOffer{.most = 7, .acceptance = 0.045F}}, 1, 64)[0], 0);
  EXPECT_EQ(gate.choose(std::vector{ProposalOffer{.most = 7, .acceptance = 0.4F}}, 1, 64)[0], 3);
  const ProposalOffer unsure{.most = 7, .acceptance = 0.4F, .chance = 0.5F};
  EXPECT_EQ(gate.choose(std::vector{unsure}, 1, 64)[0], 2);
  const ProposalOffer unlikely{.most = 7, .acceptance = 0.4F, .chance = 0.1F};
  EXPECT_EQ(gate.choose(std::vector{unlikely}, 1, 64)[0], 0);
}

}  // namespace
}  // namespace faststream
