// What of a long chat the model still sees.
#include <gtest/gtest.h>

#include "unit/cli/chat/chat_fixture.h"

namespace faststream::cli {
namespace {

TEST_F(ChatTest, FreesHalfOfTheRoomWhenTheContextIsFull) {
  answerer.context_tokens = 40;  // a quarter of it is the answer's
  type("/system one two three four five");
  for (int i = 0; i < 5; ++i) {  // each adds 5 tokens
    type("a b c");
    EXPECT_EQ(notices, "") << i;
  }
  type("a b c d");  // 5 + 25 + 4 of 30: exchanges may have (30 - 9) / 2
  EXPECT_EQ(notices, "the context is full: the model no longer sees the oldest 3 of 5 exchanges\n");
  EXPECT_EQ(last_prompt().size(), 1U + 2 * 2 + 1);
  EXPECT_EQ(last_prompt()[0].role, "system");
  EXPECT_EQ(last_prompt()[1].role, "user");
  type("/stats");
  EXPECT_TRUE(told("turns:       6, the last 3 in the context\n"));
  EXPECT_TRUE(told("context:     21 of 40 tokens"));

  type("a b c d e f g h i j k l m n o p q r s");  // 5 + 19 + 16 of 30: exchanges may have 3
  EXPECT_TRUE(told("the oldest 6 of 6 exchanges"));
  EXPECT_EQ(last_prompt().size(), 2U);
}

TEST_F(ChatTest, ComputesFewTokensTwiceInALongChat) {
  answerer.context_tokens = 400;
  int64_t n_new = 0;
  for (int i = 0; i < 500; ++i) {
    type("message " + std::to_string(i) + " of them");
    n_new += 5;  // and an answer of one word
  }
  EXPECT_LT(answerer.n_recomputed, 2 * n_new);
}

TEST_F(ChatTest, KeepsTheExchangesThatTheModelNoLongerSees) {
  const TemporaryFolder folder;
  const std::string path = folder / "s.json";
  chat.keep_in(path);
  answerer.context_tokens = 40;
  for (int i = 0; i < 30; ++i) type("a b " + std::to_string(i));
  EXPECT_EQ(chat.conversation().messages.size(), 60U);
  Chat next(answerer, {.name = "m.bin", .fingerprint = "f", .vocab = 100}, {.prompt = {}}, output);
  next.load(path, "--session");
  EXPECT_EQ(next.conversation().messages.size(), 60U);
  EXPECT_EQ(next.conversation().messages.front().content, "a b 0");

  answerer.context_tokens = 1000;  // has room for all of them
  EXPECT_TRUE(next.take({.command = {}, .text = "next"}));
  EXPECT_EQ(last_prompt().size(), 61U);
}

TEST_F(ChatTest, ShowsOlderExchangesAgainWhenTheLaterOnesAreTakenBack) {
  answerer.context_tokens = 40;
  for (int i = 0; i < 7; ++i) type("a b c");
  ASSERT_LT(last_prompt().size(), 13U);
  const size_t n_seen = last_prompt().size() / 2 + 1;
  for (size_t i = 0; i < n_seen; ++i) type("/undo");
  type("x");
  EXPECT_EQ(last_prompt().size(), 2 * (7 - n_seen) + 1);
}

TEST_F(ChatTest, StaysAsItWasWhenAnAnswerIsStoppedAfterTheContextWasFull) {
  answerer.context_tokens = 40;
  for (int i = 0; i < 6; ++i) type("a b c");
  answerer.outputs = {made("", {}, FinishReason::cancelled)};
  type("a b c d");
  EXPECT_TRUE(told("no longer sees"));
  type("/stats");
  EXPECT_TRUE(told("turns:       6\n"));
}

TEST_F(ChatTest, ReservesNoMoreThanAnAnswerMayHave) {
  answerer.context_tokens = 40;
  type("/set max-tokens 1");
  for (int i = 0; i < 7; ++i) type("a b c");
  type("a b c d");  // 35 + 4 + 1
  EXPECT_EQ(notices, "");
}

TEST_F(ChatTest, CutsTheReserveForTheOnlyMessage) {
  answerer.context_tokens = 8;
  type("a b");
  type("1 2 3 4 5 6 7");
  EXPECT_TRUE(told("the oldest 1 of 1 exchange\n"));
  EXPECT_EQ(last_prompt().size(), 1U);
}

TEST_F(ChatTest, RefusesAMessageThatIsTooLongAlone) {
  answerer.context_tokens = 8;
  type("/system x");
  type("a b");
  EXPECT_TRUE(says(refusal("1 2 3 4 5 6 7"), "too long", "8", "context"));
  EXPECT_EQ(state(), "x|a b|fine,10,11");
}

TEST_F(ChatTest, FindsWhatFitsWithoutTryingAll) {
  for (int i = 0; i < 300; ++i) type("a");  // 3 tokens each
  answerer.context_tokens = 100;
  answerer.n_counts = 0;
  type("a");
  EXPECT_EQ(last_prompt().size(), 2U * 12 + 1);  // half of 74
  EXPECT_LT(answerer.n_counts, 15);
}

}  // namespace
}  // namespace faststream::cli
