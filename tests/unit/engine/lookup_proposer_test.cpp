#include "engine/lookup_proposer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "engine/speculation_gate.h"

namespace faststream {
namespace {

using TextTokens = std::vector<int32_t>;

TextTokens any_text(std::mt19937& random, size_t n, uint32_t n_kinds) {
  TextTokens text;
  while (text.size() < n) text.push_back(static_cast<int32_t>(random() % n_kinds));
  return text;
}

std::vector<int32_t> proposed_after(const TextTokens& text, int32_t n) {
  CommonRates common;
  LookupProposer lookup(0);
  lookup.read(text, common);
  if (lookup.offer(n, common).most == 0) return {};
  const std::span<const int32_t> proposed = lookup.propose(text, n);
  return {proposed.begin(), proposed.end()};
}

TEST(LookupProposer, ProposesWhatFollowedWhereTheEndStoodBefore) {
  EXPECT_EQ(proposed_after({5, 6, 7, 8, 9, 5, 6}, 3), (TextTokens{7, 8, 9}));
  EXPECT_EQ(proposed_after({5, 6, 1, 5, 6, 2, 5, 6}, 2), (TextTokens{2, 5})) << "the last time";
  EXPECT_EQ(proposed_after({5, 6, 7, 3, 6}, 1), (TextTokens{7})) << "one token is the same";
  EXPECT_EQ(proposed_after({5, 6, 7, 1, 6, 8, 5, 3, 2, 5, 6}, 1), (TextTokens{7}))
      << "two tokens say more";
  EXPECT_EQ(proposed_after({4, 7, 4, 7}, 5), (TextTokens{4, 7, 4, 7, 4}))
      << "a passage without end";
  EXPECT_EQ(proposed_after({1, 2, 3}, 2), (TextTokens{}));
  EXPECT_EQ(proposed_after({}, 2), (TextTokens{}));
}

// Of a passage that goes on as it did, and of another one whose last tokens are the same.
TEST(LookupProposer, StaysWithAPassageThatGoesOn) {
  EXPECT_EQ(proposed_after({1, 2, 3, 4, 5, 3, 4, 9, 1, 2, 3, 4}, 1), (TextTokens{5}));
}

TEST(LookupProposer, ExpectsMoreOfLongerPassages) {
  const auto expected_after = [](const TextTokens& text) {
    CommonRates common;
    LookupProposer lookup(text.size());
    lookup.read(text, common);
    return lookup.offer(15, common).acceptance;
  };
  const CommonRates common;
  EXPECT_EQ(expected_after({1, 2, 3, 2}), common.lookup[0].value());
  EXPECT_EQ(expected_after({5, 6, 7, 5, 3, 5, 6}), common.lookup[1].value());
  EXPECT_EQ(expected_after({1, 2, 3, 4, 1, 2, 3}), common.lookup[2].value());
}

// In steps of any size, as texts grow.
TEST(LookupProposer, SaysWhatItWillExpectOfAPassageIfThatGoesOn) {
  CommonRates common;
  LookupProposer lookup(3);
  const TextTokens text = {1, 2, 3, 4, 1, 2, 3};
  lookup.read(std::span(text).first(3), common);
  EXPECT_EQ(lookup.offer_ahead(15, common).most, 0) << "nothing repeats";
  lookup.read(std::span(text).first(5), common);
  const float chance = lookup.offer(15, common).acceptance;
  const ProposalOffer ahead = lookup.offer_ahead(15, common);
  EXPECT_EQ(ahead.most, 15);
  EXPECT_EQ(ahead.chance, chance);
  lookup.read(std::span(text).first(6), common);
  EXPECT_GT(ahead.acceptance, chance);
  EXPECT_GE(lookup.offer(15, common).acceptance, ahead.acceptance);
}

TEST(LookupProposer, FindsPassagesOfLongTexts) {
  std::mt19937 random(3);
  const TextTokens passage = any_text(random, 3000, 30000);
  TextTokens text = passage;
  text.insert(text.end(), passage.begin(), passage.end());
  CommonRates common;
  LookupProposer lookup(passage.size());
  int n_fitting = 0;
  int n_reads = 0;
  for (size_t n = 1; n < text.size(); n += 1 + random() % 5) {
    const std::span<const int32_t> so_far = std::span(text).first(n);
    lookup.read(so_far, common);
    if (n <= passage.size() + 1) continue;
    ++n_reads;
    if (lookup.offer(1, common).most == 0) continue;
    n_fitting += lookup.propose(so_far, 1).front() == text[n] ? 1 : 0;
  }
  EXPECT_GT(n_reads, 900);
  EXPECT_GT(100 * n_fitting, 99 * n_reads);
}

// A text in the making, and what a gate would have it propose beside nothing else, on a device on
// which a token more takes a tenth of a step.
class Reader {
 public:
  explicit Reader(CommonRates& common) : common_(common) { gate_.measured(1, 0, 1e-3); }

  struct Counts {
    int n_steps = 0;
    int n_proposed = 0;
    int n_accepted = 0;
  };
  Counts read(const TextTokens& text, size_t n_prompt) {
    LookupProposer lookup(n_prompt);
    Counts counts;
    for (size_t n = n_prompt + 1; n < text.size(); ++counts.n_steps) {
      const std::span<const int32_t> so_far = std::span(text).first(n);
      lookup.read(so_far, common_);
      const int32_t most = std::min(7, static_cast<int32_t>(text.size() - n));
      const std::vector<ProposalOffer> offers = {lookup.offer(most, common_)};
      const int32_t n_chosen = gate_.choose(offers, 1, 64).front();
      int32_t n_fitting = 0;
      if (n_chosen > 0) {
        const std::span<const int32_t> proposed = lookup.propose(so_far, n_chosen);
        while (n_fitting < n_chosen && proposed[static_cast<size_t>(n_fitting)] ==
                                           text[n + static_cast<size_t>(n_fitting)]) {
          ++n_fitting;
        }
      }
      lookup.note(n_chosen, n_fitting, common_);
      counts.n_proposed += n_chosen;
      counts.n_accepted += n_fitting;
      n += static_cast<size_t>(n_fitting) + 1;
    }
    return counts;
  }

 private:
  CommonRates& common_;
  SpeculationGate gate_;
};

// Of words that come again in other places: what followed says nothing.
TextTokens story(std::mt19937& random) { return any_text(random, 120, 12); }
constexpr size_t kPromptOfStory = 20;

// A prompt, and the same again where now and then a token is another.
TextTokens edit(std::mt19937& random, size_t n_prompt) {
  TextTokens text = any_text(random, n_prompt, 30000);
  for (size_t i = 0; i < n_prompt; ++i) {
    const int32_t token = text[i];
    text.push_back(i % 30 == 29 ? 30000 : token);
  }
  return text;
}

TEST(LookupProposer, TextsThatDoNotRepeatTellOthersNotToPropose) {
  std::mt19937 random(5);
  CommonRates common;
  Reader reader(common);
  int n_first = 0;
  for (int i = 0; i < 20; ++i) n_first += reader.read(story(random), kPromptOfStory).n_proposed;
  int n_later = 0;
  for (int i = 0; i < 200; ++i) n_later += reader.read(story(random), kPromptOfStory).n_proposed;
  EXPECT_GT(n_first, 0) << "there is hope at first";
  EXPECT_LT(n_later, 200 * 100 / 20) << "of 100 tokens of each text";
}

TEST(LookupProposer, ATextThatRepeatsIsAsFastAfterAThousandThatDoNot) {
  std::mt19937 random(7);
  const TextTokens repeating = edit(random, 200);
  CommonRates hopeful;
  const int n_steps = Reader(hopeful).read(repeating, 200).n_steps;
  EXPECT_LT(n_steps, 200 / 3);
  CommonRates common;
  Reader reader(common);
  for (int i = 0; i < 1000; ++i) (void)reader.read(story(random), kPromptOfStory);
  EXPECT_LE(reader.read(repeating, 200).n_steps, n_steps + 10);
}

// What a text shows is known without proposals.
TEST(LookupProposer, LearnsFromTokensForWhichNothingWasProposed) {
  std::mt19937 random(9);
  const TextTokens text = edit(random, 300);
  CommonRates common;
  LookupProposer lookup(300);
  lookup.read(std::span(text).first(310), common);
  const float before = lookup.offer(7, common).acceptance;
  lookup.read(std::span(text).first(329), common);
  EXPECT_GT(lookup.offer(7, common).acceptance, std::max(0.95F, before));
  LookupProposer of_prompt(text.size());
  CommonRates others;
  of_prompt.read(text, others);
  EXPECT_EQ(others.lookup.back().value(), CommonRates().lookup.back().value())
      << "a prompt says nothing of an answer";
}

// Those of which it was told count once.
TEST(LookupProposer, DoesNotLearnTwiceFromTokensThatWereProposed) {
  const TextTokens text = {1, 2, 3, 1, 2, 3, 9};
  CommonRates common;
  LookupProposer lookup(5);
  lookup.read(std::span(text).first(5), common);
  lookup.note(7, 1, common);
  CommonRates once;
  once.lookup[1].note(7, 1);
  lookup.read(text, common);
  EXPECT_EQ(common.lookup[1].value(), once.lookup[1].value());
  EXPECT_EQ(common.lookup[2].value(), CommonRates().lookup[2].value());
}

}  // namespace
}  // namespace faststream
