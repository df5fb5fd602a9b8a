// The chat's commands and its loop.
#include "cli/chat/chat.h"

#include <gtest/gtest.h>

#include <deque>

#include "cli/chat/chat_command.h"
#include "program/output.h"
#include "unit/cli/chat/chat_fixture.h"

namespace faststream::cli {
namespace {

TEST_F(ChatTest, AnswersAndRemembersTheTokensButTheLast) {
  EXPECT_TRUE(type("How are you?"));
  EXPECT_EQ(answers, "fine\n");
  EXPECT_EQ(notices, "");
  EXPECT_EQ(state(), "|How are you?|fine,10,11");
  type("And now?");
  ASSERT_EQ(last_prompt().size(), 3U);
  EXPECT_EQ(last_prompt()[0].role, "user");
  EXPECT_EQ(last_prompt()[1].role, "assistant");
  EXPECT_EQ(last_prompt()[1].tokens, (std::vector<int32_t>{10, 11}));
  EXPECT_EQ(answerer.requests.back().stop, std::vector<std::string>{"END"});
}

TEST_F(ChatTest, KeepsAllTokensOfAnAnswerThatWasCut) {
  answerer.outputs = {made("so", {4, 5}, FinishReason::length),
                      made("so", {4, 5}, FinishReason::cancelled),
                      made("so", {4, 5}, FinishReason::context)};
  type("/set max-tokens 2");
  type("a");
  EXPECT_TRUE(told("max-tokens is 2"));
  type("b");
  EXPECT_TRUE(told("stopped"));
  type("c");
  EXPECT_TRUE(told("context is full"));
  EXPECT_EQ(state(), "|a|so,4,5|b|so,4,5|c|so,4,5");
}

TEST_F(ChatTest, KeepsOnlyTheTextBeforeAStopString) {
  answerer.outputs = {made("so", {4, 5, 6}, FinishReason::stop_string)};
  type("a");
  EXPECT_EQ(state(), "|a|so");
}

TEST_F(ChatTest, KeepsAnswersWithoutTheSpecialTokensThatItShows) {
  Chat special(answerer, {}, {.prompt = {}, .show_special = true}, output);
  answerer.outputs = {made("so</s>", {4, 5, 2}, FinishReason::eos),
                      made("so", {4, 5, 6}, FinishReason::stop_string)};
  answerer.outputs.back().stop = "END";
  for (const char* message : {"a", "b"}) (void)special.take({.command = {}, .text = message});
  EXPECT_EQ(answers, "so</s>\nso\n");
  EXPECT_EQ(special.conversation().messages[1].content, "3 tokens END");
  EXPECT_EQ(special.conversation().messages[1].tokens, (std::vector<int32_t>{4, 5}));
  EXPECT_EQ(special.conversation().messages[3].content, "3 tokens ");
}

TEST_F(ChatTest, TakesAMessageBackThatWasStoppedBeforeItsAnswer) {
  type("a");
  answerer.outputs = {made("", {}, FinishReason::cancelled)};
  type("b");
  EXPECT_TRUE(told("as before"));
  EXPECT_EQ(state(), "|a|fine,10,11");
}

TEST_F(ChatTest, StaysAsItWasWhenTheEngineFails) {
  type("a");
  answerer.error = "the device failed";
  EXPECT_TRUE(says(refusal("b"), "the device failed"));
  EXPECT_EQ(answers, "half an \n");
  EXPECT_TRUE(says(refusal("/retry"), "the device failed"));
}

TEST_F(ChatTest, ListsAllCommandsInItsHelp) {
  type("/help");
  for (const char* name : {"help", "system", "reset", "undo", "retry", "set", "adapter", "save",
                           "save!", "load", "stats", "quit"}) {
    EXPECT_TRUE(told("/" + std::string(name)));
  }
  EXPECT_EQ(answers, "");
}

TEST_F(ChatTest, RefusesWhatItDoesNotKnow) {
  EXPECT_TRUE(says(refusal("/hlep"), "/hlep", "/help"));
  EXPECT_TRUE(says(refusal("/"), "/help"));
  EXPECT_TRUE(says(refusal("/Help"), "/help"));
  EXPECT_TRUE(says(refusal("/undo 2"), "/undo"));
  EXPECT_TRUE(says(refusal("/save"), "/save", "file"));
  EXPECT_TRUE(says(refusal("/load"), "/load", "file"));
  EXPECT_TRUE(says(refusal("/undo"), "no exchange"));
  EXPECT_TRUE(says(refusal("/retry"), "no message"));
  EXPECT_TRUE(says(refusal("not UTF-8: \xFF"), "UTF-8"));
  EXPECT_TRUE(says(refusal("/system \xC3"), "UTF-8"));
  EXPECT_TRUE(says(refusal("/set top-k many"), "top-k"));
}

TEST_F(ChatTest, Quits) { EXPECT_FALSE(type("/quit")); }

TEST_F(ChatTest, SendsAMessageThatBeginsWithASlash) {
  type("//help");
  EXPECT_EQ(last_prompt().back().content, "/help");
}

TEST_F(ChatTest, ShowsAndChangesTheSystemPrompt) {
  type("/system");
  EXPECT_TRUE(told("no system prompt"));
  type("/system Be brief.");
  EXPECT_FALSE(told("all of it again"));
  type("a");
  EXPECT_EQ(last_prompt()[0].role, "system");
  EXPECT_EQ(last_prompt()[0].content, "Be brief.");
  type("/system Be kind.");
  EXPECT_TRUE(told("all of it again"));
  type("/system");
  EXPECT_EQ(notices, "Be kind.\n");
  type("/system \"\"");
  type("b");
  EXPECT_EQ(last_prompt()[0].role, "user");
}

TEST_F(ChatTest, RefusesASystemPromptThatTheTemplateDoesNotKnow) {
  answerer.knows_system = false;
  EXPECT_TRUE(says(refusal("/system Be brief."), "system"));
  EXPECT_FALSE(chat.conversation().system);
  type("/system \"\"");
}

TEST_F(ChatTest, ResetsAllButSystemPromptAndSettings) {
  type("/system Be brief.");
  type("/set top-k 3");
  type("a");
  type("/reset");
  EXPECT_EQ(state(), "Be brief.");
  EXPECT_EQ(chat.settings().sampling.top_k, 3);
}

TEST_F(ChatTest, TakesTheLastExchangeBack) {
  type("a");
  type("b\nof two lines");
  type("/undo");
  EXPECT_TRUE(told("\"b\\nof two lines\""));
  EXPECT_EQ(state(), "|a|fine,10,11");
  type("/undo");
  EXPECT_EQ(state(), "");
}

TEST_F(ChatTest, AnswersTheLastMessageAgainWithAnotherSeed) {
  type("a");
  type("b");
  answerer.outputs = {made("new", {7, 2}, FinishReason::eos)};
  type("/retry");
  EXPECT_EQ(answers, "new\n");
  EXPECT_EQ(state(), "|a|fine,10,11|b|new,7");
  EXPECT_TRUE(told("seed 103"));
  EXPECT_FALSE(answerer.requests.back().sampling.seed);
}

TEST_F(ChatTest, SaysWhenAnotherTryGivesTheSame) {
  type("a");
  type("/set seed 5");
  type("/retry");
  EXPECT_TRUE(told("seed is fixed, 5"));
  EXPECT_EQ(answerer.requests.back().sampling.seed, 5U);
  type("/set temperature 0");
  type("/retry");
  EXPECT_TRUE(told("temperature is 0"));
}

TEST_F(ChatTest, KeepsTheOldAnswerWhenAnotherTryIsStopped) {
  type("a");
  answerer.outputs = {made("", {}, FinishReason::cancelled)};
  type("/retry");
  EXPECT_EQ(state(), "|a|fine,10,11");
}

TEST_F(ChatTest, ShowsAndChangesSettings) {
  type("/set");
  EXPECT_TRUE(told("temperature         0.8"));
  EXPECT_TRUE(told("seed                random"));
  type("/set  temperature   0.25");
  EXPECT_EQ(notices, "temperature is 0.25\n");
  type("/set temperature");
  EXPECT_EQ(notices, "temperature is 0.25\n");
  type("/set max-tokens 7");
  type("a");
  EXPECT_EQ(answerer.requests.back().sampling.temperature, 0.25F);
  EXPECT_EQ(answerer.requests.back().max_tokens, 7);
}

TEST_F(ChatTest, AnswersWithTheAdapterThatIsChosen) {
  EXPECT_TRUE(says(refusal("/adapter"), "no adapters", "--adapter NAME=FILE"));
  answerer.adapter_names = {"bot", "poet"};
  type("/adapter");
  EXPECT_EQ(notices, "bot (answers now)\npoet\n");
  type("a");
  EXPECT_EQ(answerer.requests.back().adapter, std::nullopt);
  type("/adapter poet");
  EXPECT_TRUE(told("the adapter is poet now: the next message processes"));
  type("/retry");
  EXPECT_EQ(answerer.requests.back().adapter, "poet");
  EXPECT_TRUE(says(refusal("/adapter nobody"), "\"nobody\"", "bot, poet", "\"\""));
  type("/adapter \"\"");
  type("b");
  EXPECT_EQ(answerer.requests.back().adapter, "");
  notices.clear();
  type("/adapter");
  EXPECT_EQ(notices, "bot\npoet\nnone of them answers now; /adapter NAME chooses one\n");
}

TEST_F(ChatTest, TellsOfSettingsThatHaveNoEffect) {
  type("/set temperature 0.5");
  EXPECT_EQ(notices, "temperature is 0.5\n");
  type("/set seed 7");
  type("/set temperature 0");
  EXPECT_EQ(notices,
            "temperature is 0\nseed has no effect at temperature 0, which draws nothing\n");
  type("/set top-k 5");
  EXPECT_EQ(notices, "top-k is 5\ntop-k has no effect at temperature 0, which draws nothing\n");
  type("/set top-k");
  EXPECT_EQ(notices, "top-k is 5\n") << "once is enough";

  Chat searching(answerer, {.name = "m.bin", .fingerprint = "f", .vocab = 100},
                 {.prompt = {}, .min_tokens = 3, .search = {.beams = 4}}, output);
  const auto told_of = [&](const std::string& setting) {
    notices.clear();
    searching.take({.command = "set", .text = setting});
    return notices;
  };
  const std::string idle = "temperature has no effect with beams, which draw nothing\n";
  EXPECT_EQ(told_of("temperature 0.5"), "temperature is 0.5\n" + idle);
  EXPECT_EQ(told_of("temperature 0.8"), "temperature is 0.8\n" + idle);
  EXPECT_EQ(told_of("max-tokens 2"),
            "max-tokens is 2\n"
            "min-tokens has no effect beyond the limit of tokens, which is lower\n");
  EXPECT_EQ(told_of("max-tokens 3"), "max-tokens is 3\n");
}

TEST_F(ChatTest, CountsTurnsTokensAndSpeed) {
  type("/stats");
  EXPECT_TRUE(told("turns:       0"));
  type("two words");
  type("/stats");
  EXPECT_TRUE(told("turns:       1"));
  EXPECT_TRUE(told("context:     4 of 1000 tokens"));
  EXPECT_TRUE(told("last prompt: 8 tokens, 5 from the KV cache, 3 in 0.500 s, 6.0 tokens/s"));
  EXPECT_TRUE(told("last answer: 3 tokens, 2 in 0.250 s, 8.0 tokens/s"));
}

// The loop. --------------------------------------------------------------------------------------

class FakeLines : public LineSource {
 public:
  explicit FakeLines(std::deque<std::string> all) : lines(std::move(all)) {}

  Event next(bool continues, std::string& line) override {
    prompts += continues ? '.' : '>';
    if (lines.empty()) return Event::end;
    line = lines.front();
    lines.pop_front();
    return line == "^C" ? Event::interrupted : Event::line;
  }
  void remember(const std::string& text) override { history.push_back(text); }

  std::deque<std::string> lines;
  std::string prompts;
  std::vector<std::string> history;
};

TEST_F(ChatTest, TakesLinesUntilTheirEnd) {
  FakeLines lines({"a", "", "b\\", "c", "/stats"});
  EXPECT_EQ(converse(chat, lines, output, false), 0U);
  EXPECT_EQ(answers, "fine\nfine\n");
  EXPECT_EQ(state(), "|a|fine,10,11|b\nc|fine,10,11");
  EXPECT_EQ(lines.prompts, ">>>.>>");
  EXPECT_EQ(lines.history, (std::vector<std::string>{"a", "b\nc", "/stats"}));
}

TEST_F(ChatTest, LeavesAtQuit) {
  FakeLines lines({"a", "/quit", "b"});
  EXPECT_EQ(converse(chat, lines, output, true), 0U);
  EXPECT_EQ(lines.lines.size(), 1U);
}

TEST_F(ChatTest, CountsWhatItRefusesAndGoesOn) {
  FakeLines lines({"/nothing", "a", "/load /no/such/file"});
  EXPECT_EQ(converse(chat, lines, output, false), 2U);
  EXPECT_TRUE(told("/nothing"));
  EXPECT_TRUE(told("/no/such/file"));
  EXPECT_EQ(state(), "|a|fine,10,11");
}

TEST_F(ChatTest, EmptiesTheLineOnCtrlCAndHintsAtTheSecond) {
  FakeLines lines({"\"\"\"", "lost", "^C", "a", "^C"});
  EXPECT_EQ(converse(chat, lines, output, true), 0U);
  EXPECT_EQ(state(), "|a|fine,10,11");
  EXPECT_EQ(notices, "");
  FakeLines twice({"^C", "^C", "^C"});
  EXPECT_EQ(converse(chat, twice, output, true), 0U);
  EXPECT_EQ(notices, "Ctrl-D or /quit leaves\n");
}

TEST_F(ChatTest, EndsWhenStandardOutputIsClosedAndKeepsTheAnswer) {
  const TemporaryFolder folder;
  const std::string path = folder / "s.json";
  const ChatModel model{.name = "m.bin", .fingerprint = "f", .vocab = 100};
  Chat closed(
      answerer, model, {.prompt = {}},
      {.answer = [](std::string_view) { throw OutputError("closed"); }, .notice = output.notice});
  closed.keep_in(path);
  FakeLines lines({"a", "b"});
  EXPECT_THROW(converse(closed, lines, output, false), OutputError);
  EXPECT_EQ(lines.lines.size(), 1U);
  chat.load(path, "--session");
  EXPECT_EQ(state(), "|a|fine,10,11,2");
}

}  // namespace
}  // namespace faststream::cli
