// A sequence's life in caches of several kinds, as one.
#include "engine/sequence_caches.h"

#include <gtest/gtest.h>

#include <numeric>

#include "bench/random_model.h"
#include "engine/cache_kinds.h"
#include "support/error.h"
#include "unit/engine/fixed_states.h"

namespace faststream {
namespace {

constexpr int32_t kCachePages = 8;
constexpr int32_t kCacheWindow = 32;

ModelConfig config_with_window() {
  ModelConfig config = tiny_decoder(2);
  config.layer_kinds.push_back(config.layer_kinds[0]);
  config.layer_kinds[1].name = "windowed";
  config.layer_kinds[1].attention().window = kCacheWindow;
  config.layers = {0, 1};
  return config;
}

class SequenceCachesTest : public testing::Test {
 protected:
  static CacheKinds kinds() {
    CacheKinds kinds = cache_kinds(config_with_window(), DType::f32);
    kinds.push_back(std::make_unique<FixedStatesKind>(2));
    return kinds;
  }
  void step(Sequence& sequence, int32_t n) {
    caches_.begin(sequence, n);
    caches_.commit(sequence, n, n);
  }

  SequenceCaches caches_{kinds(), {.n_pages = kCachePages}};
  const StateCache& states_ = dynamic_cast<const StateCache&>(*caches_.caches()[2]);
};

TEST_F(SequenceCachesTest, AddUpWhatTokensTake) {
  Sequence sequence;
  EXPECT_EQ(caches_.missing(sequence, 40).pages, 2);
  EXPECT_EQ(caches_.missing(sequence, 40).states, 1);
  step(sequence, 33);
  EXPECT_EQ(caches_.missing(sequence, 97).pages, 2);
  EXPECT_EQ(caches_.missing(sequence, 97).states, 0);
  EXPECT_TRUE(caches_.has_room({.pages = 6, .states = 1}));
  EXPECT_FALSE(caches_.has_room({.pages = 7, .states = 1}));
  EXPECT_FALSE(caches_.has_room({.pages = 6, .states = 2}));
  caches_.release(sequence);
  EXPECT_TRUE(caches_.has_room({.pages = kCachePages, .states = 2}));
}

TEST_F(SequenceCachesTest, HaveWhatTheyHadBeforeAStepThatFails) {
  Sequence sequence;
  step(sequence, 20);
  const int32_t before = states_.states_of(sequence).from;
  caches_.begin(sequence, 5);
  EXPECT_EQ(sequence.n_cached, 25);
  EXPECT_EQ(states_.states_of(sequence).from, before) << "a step reads it";
  EXPECT_NE(states_.states_of(sequence).to, before) << "and writes another";
  caches_.abandon(sequence, 5);
  EXPECT_EQ(sequence.n_cached, 20);
  EXPECT_EQ(states_.states_of(sequence).from, before);
  caches_.begin(sequence, 5);
  const int32_t written = states_.states_of(sequence).to;
  caches_.commit(sequence, 5, 5);
  EXPECT_EQ(sequence.n_cached, 25);
  EXPECT_EQ(states_.states_of(sequence).from, written);
  caches_.release(sequence);
}

TEST_F(SequenceCachesTest, KeepOfAStepWhatAllOfThemCanKeep) {
  Sequence sequence;
  step(sequence, 20);
  const int32_t before = states_.states_of(sequence).from;
  caches_.begin(sequence, 4);
  caches_.commit(sequence, 4, 2);
  EXPECT_EQ(sequence.n_cached, 20) << "there is no state after two of four tokens";
  EXPECT_EQ(states_.states_of(sequence).from, before);
  caches_.release(sequence);

  SequenceCaches pages(cache_kinds(config_with_window(), DType::f32), {.n_pages = kCachePages});
  pages.begin(sequence, 4);
  pages.commit(sequence, 4, 2);
  EXPECT_EQ(sequence.n_cached, 2) << "pages keep any number of them";
  pages.release(sequence);
}

TEST_F(SequenceCachesTest, ForkWhatAStepReadsAndNotWhatItWrites) {
  Sequence first;
  step(first, 20);
  Sequence second = caches_.fork(first);
  EXPECT_EQ(states_.states_of(second).from, states_.states_of(first).from);
  caches_.begin(first, 1);
  caches_.begin(second, 1);
  EXPECT_NE(states_.states_of(second).to, states_.states_of(first).to);
  caches_.commit(first, 1, 1);
  caches_.commit(second, 1, 1);
  Sequence third;
  EXPECT_THROW(caches_.begin(third, 1), Error) << "there are states for two";
  EXPECT_EQ(third.n_cached, 0);
  caches_.release(first);
  caches_.begin(third, 1);
  caches_.commit(third, 1, 1);
  caches_.release(second);
  caches_.release(third);
  EXPECT_EQ(caches_.pages().n_free(), kCachePages);
}

TEST_F(SequenceCachesTest, FindATextAsFarAsEachOfThemHasIt) {
  std::vector<int32_t> text(90);
  std::iota(text.begin(), text.end(), 0);
  Sequence sequence;
  step(sequence, 32);
  step(sequence, 40);  // past the end of the second page
  caches_.remember(text, sequence);
  caches_.release(sequence);
  const auto find = [&](size_t n) { return caches_.find(std::span(text).first(n), {}); };
  EXPECT_EQ(find(90).n_tokens(), 72) << "as far as the text came, within a page";
  EXPECT_EQ(find(71).n_tokens(), 64) << "not to the middle of what came";
  EXPECT_EQ(find(50).n_tokens(), 32);
  EXPECT_EQ(find(20).n_tokens(), 0);
  for (const size_t n : {50, 90}) {
    const SequenceCaches::Prefix prefix = find(n);
    caches_.start(sequence, prefix, [](const PageCopy&) { FAIL() << "of what nobody else has"; });
    EXPECT_EQ(sequence.n_cached, prefix.n_tokens());
    EXPECT_NE(states_.states_of(sequence).from, 0);
    step(sequence, 1);
    caches_.release(sequence);
  }
  caches_.forget_texts();
  EXPECT_EQ(caches_.find(text, {}).n_tokens(), 0);
  EXPECT_EQ(caches_.pages().n_free(), kCachePages);
}

// A page that others have in part is copied, and so is what is known at its end.
TEST_F(SequenceCachesTest, GoOnWithinACopyOfAPage) {
  std::vector<int32_t> text(60);
  std::iota(text.begin(), text.end(), 0);
  Sequence first;
  step(first, 40);
  caches_.remember(text, first);
  caches_.release(first);
  std::vector<Sequence> two(2);
  for (Sequence& sequence : two) {
    caches_.start(sequence, caches_.find(text, {}), [](const PageCopy&) {});
    EXPECT_EQ(sequence.n_cached, 40);
    EXPECT_NE(states_.states_of(sequence).from, 0);
    caches_.remember(text, sequence);  // the page is the first one's until it writes to it
  }
  EXPECT_NE(two[0].pages, two[1].pages);
  EXPECT_EQ(states_.states_of(two[0]).from, states_.states_of(two[1]).from);
  for (Sequence& sequence : two) caches_.release(sequence);
  EXPECT_EQ(states_.n_sequences(), 0);
}

// Two texts with a common beginning, of which the second one cannot use the first one's states.
TEST_F(SequenceCachesTest, KeepAStateWhereTextsBranch) {
  std::vector<int32_t> first(80);
  std::iota(first.begin(), first.end(), 0);
  std::vector<int32_t> second = first;
  second[50] = 99;
  Sequence sequence;
  step(sequence, 80);
  caches_.remember(first, sequence);
  caches_.release(sequence);

  caches_.start(sequence, caches_.find(second, {}), [](const PageCopy&) {});
  EXPECT_EQ(sequence.n_cached, 0);
  EXPECT_EQ(sequence.branch, 32) << "a piece is to end here";
  step(sequence, 32);
  caches_.remember(second, sequence);
  step(sequence, 48);
  caches_.remember(second, sequence);
  caches_.release(sequence);
  EXPECT_EQ(caches_.find(second, {}).n_tokens(), 80) << "below the first one's page";
  second[40] = 98;
  EXPECT_EQ(caches_.find(second, {}).n_tokens(), 32);
  EXPECT_EQ(caches_.find(first, {}).n_tokens(), 80);
}

// There are two states more than two sequences need.
TEST_F(SequenceCachesTest, ForgetStatesInsideOfTextsFirst) {
  const auto text_of = [](int32_t first) {
    std::vector<int32_t> text(96);
    std::iota(text.begin(), text.end(), first);
    return text;
  };
  const auto process = [&](const std::vector<int32_t>& text, std::initializer_list<int32_t> steps) {
    Sequence sequence;
    for (const int32_t n : steps) step(sequence, n);
    caches_.remember(text, sequence);
    caches_.release(sequence);
  };
  process(text_of(0), {64});
  process(text_of(1000), {32, 32, 32});
  EXPECT_EQ(caches_.find(text_of(1000), {}).n_tokens(), 96);
  const size_t kept = states_.n_snapshots();
  for (int n = 0; n < 3; ++n) process(text_of(2000 + n), {32});
  EXPECT_GT(states_.n_snapshots(), kept);
  EXPECT_EQ(caches_.find(text_of(1000), {}).n_tokens(), 96) << "the last one stays";
}

TEST(CacheKinds, SayWhatMemoryTheyTake) {
  const ModelConfig config = config_with_window();
  const CacheKinds kinds = cache_kinds(config, DType::f32);
  ASSERT_EQ(kinds.size(), 2U);
  constexpr size_t kPageBytes = size_t{2} * 8 * 4 * kPageTokens;
  EXPECT_EQ(kinds[0]->bytes({.n_pages = 100}), 100 * kPageBytes);
  const int32_t frames = window_frames(kv_groups(config, DType::f32)[1], 2, 64);
  EXPECT_LT(frames, 100);
  EXPECT_EQ(kinds[1]->bytes({.n_pages = 100, .sequences = 2, .step_tokens = 64}),
            static_cast<size_t>(frames) * kPageBytes);
  EXPECT_EQ(kinds[1]->bytes({.n_pages = 3, .sequences = 2, .step_tokens = 64}), 3 * kPageBytes)
      << "no more than there are pages";
  EXPECT_EQ(bytes_of(kinds, {.n_pages = 100}), 200 * kPageBytes) << "of any number of sequences";
}

}  // namespace
}  // namespace faststream
