// The chat's commands and its memory, with answers that the tests make up.
#include "cli/chat/chat.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <sstream>

#include "cli/chat/chat_command.h"
#include "file_helpers.h"
#include "program/output.h"

namespace faststream {
namespace {

Output made(std::string text, std::vector<int32_t> tokens, FinishReason reason) {
  Output output;
  output.text = std::move(text);
  output.tokens = std::move(tokens);
  output.finish_reason = reason;
  return output;
}

// A token is a word; roles cost nothing.
class FakeAnswerer : public Answerer {
 public:
  [[nodiscard]] int64_t context() const override { return context_tokens; }
  [[nodiscard]] int64_t max_context() const override { return max_context_tokens; }

  [[nodiscard]] int64_t count_tokens(const ChatPrompt& prompt) const override {
    ++n_counts;
    int64_t tokens = 0;
    for (const Message& message : prompt.messages) {
      if (message.role == "system" && !knows_system) {
        throw UsageError("this chat template has no system prompts");
      }
      std::istringstream words(message.content);
      const auto n_words = std::distance(std::istream_iterator<std::string>(words), {});
      tokens += message.tokens.empty() ? n_words : std::ssize(message.tokens);
    }
    return tokens;
  }

  [[nodiscard]] std::string text_of(std::span<const int32_t> tokens) const override {
    return " " + std::to_string(tokens.size()) + " tokens END";
  }

  Result answer(Request request, const std::function<bool(std::string_view)>& on_text) override {
    requests.push_back(request);
    if (!error.empty()) {
      (void)on_text("half an ");
      throw Error(error);
    }
    Output output = made("fine", {10, 11, 2}, FinishReason::eos);
    if (!outputs.empty()) {
      output = outputs.front();
      outputs.pop_front();
    }
    if (!output.text.empty() && !on_text(output.text)) {
      output.finish_reason = FinishReason::cancelled;
    }
    recompute(std::get<ChatPrompt>(request.prompt).messages, output);
    Result result;
    result.outputs = {output};
    result.prompt_tokens = 8;
    result.cached_tokens = 5;
    result.seed = request.sampling.seed.value_or(100 + requests.size());
    result.prompt_seconds = 0.5;
    result.generation_seconds = 0.25;
    return result;
  }

  // Counts the words of a prompt that are not at the beginning of the last one and its answer.
  void recompute(const std::vector<Message>& prompt, const Output& output) {
    std::vector<std::string> words;
    for (const Message& message : prompt) {
      std::istringstream content(message.content);
      words.insert(words.end(), std::istream_iterator<std::string>(content), {});
    }
    n_recomputed += words.end() - std::ranges::mismatch(words, cache).in1;
    words.push_back(output.text);
    cache = std::move(words);
  }

  int64_t context_tokens = 1000;
  int64_t max_context_tokens = 1000;
  bool knows_system = true;
  std::string error;
  std::deque<Output> outputs;  // the next answers; then "fine"
  std::vector<Request> requests;
  std::vector<std::string> cache;  // of keys and values
  int64_t n_recomputed = 0;
  mutable int n_counts = 0;
};

class ChatTest : public testing::Test {
 protected:
  // Whether the chat goes on after a line.
  bool type(const std::string& line) {
    answers.clear();
    notices.clear();
    const auto input = InputAssembler().add(line);
    return chat.take(input.value());
  }
  std::string refusal(const std::string& line) {
    const std::string before = state();
    std::string message = error_of([&] { (void)type(line); });
    EXPECT_EQ(state(), before) << line;
    return message;
  }
  // The conversation as one text.
  [[nodiscard]] std::string state() const {
    std::string text = chat.conversation().system.value_or("");
    for (const Message& message : chat.conversation().messages) {
      text += "|" + message.content;
      for (const int32_t token : message.tokens) text += "," + std::to_string(token);
    }
    return text;
  }
  [[nodiscard]] const std::vector<Message>& last_prompt() const {
    return std::get<ChatPrompt>(answerer.requests.back().prompt).messages;
  }
  [[nodiscard]] testing::AssertionResult told(const std::string& words) const {
    if (notices.find(words) != std::string::npos) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "told was: " << notices;
  }

  FakeAnswerer answerer;
  std::string answers;
  std::string notices;
  ChatOutput output{.answer = [this](std::string_view text) { answers += text; },
                    .notice = [this](std::string_view lines) { notices += lines; }};
  Chat chat{answerer,
            {.name = "m.bin", .fingerprint = "f", .vocab = 100},
            {.prompt = {}, .stop = {"END"}},
            output};
};

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
  for (const char* name : {"help", "system", "reset", "undo", "retry", "set", "save", "save!",
                           "load", "stats", "quit"}) {
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

// Context and trimming. --------------------------------------------------------------------------

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

// Files. -----------------------------------------------------------------------------------------

TEST_F(ChatTest, SavesAndLoadsConversationAndSettings) {
  const TemporaryFolder folder;
  const std::string path = folder / "a file.json";
  type("/system Be brief.");
  type("a");
  type("/set seed 3");
  type("/save " + path);
  EXPECT_TRUE(told(path));
  const std::string saved = state();
  type("/reset");
  type("/system \"\"");
  type("/set seed random");
  type("/load " + path);
  EXPECT_TRUE(told("1 exchange"));
  EXPECT_EQ(state(), saved);
  EXPECT_EQ(chat.settings().sampling.seed, 3U);
  EXPECT_TRUE(says(refusal("/load " + path + "x"), path + "x"));
  write_bytes(path, "no session");
  EXPECT_TRUE(says(refusal("/load " + path), path));
}

TEST_F(ChatTest, SavesOverAnOlderSessionOnlyWhenToldTo) {
  const TemporaryFolder folder;
  const std::string path = folder / "s.json";
  type("/save " + path);
  const std::string older = read_bytes(path);
  type("a");
  EXPECT_TRUE(says(refusal("/save " + path), path, "already exists", "/save! " + path));
  EXPECT_EQ(read_bytes(path), older);
  type("/save! " + path);
  EXPECT_TRUE(told("saved " + path));
  type("/load " + path);
  EXPECT_TRUE(told("1 exchange"));
}

TEST_F(ChatTest, SavesOverNothingButSessionsAndEmptyFiles) {
  const TemporaryFolder folder;
  const std::string path = folder / "note.txt";
  for (const char* text : {"my note", "{}", "\n"}) {
    write_bytes(path, text);
    EXPECT_TRUE(says(refusal("/save! " + path), path, "no session"));
    EXPECT_EQ(read_bytes(path), text);
  }
  const std::string fifo = folder / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_TRUE(says(refusal("/save! " + fifo), fifo, "regular"));
  write_bytes(path, "");
  type("/save! " + path);
  EXPECT_TRUE(told("saved " + path));
}

TEST_F(ChatTest, SavesOverNoSessionThatAnotherChatUses) {
  const TemporaryFolder folder;
  const std::string path = folder / "s.json";
  type("a");
  type("/save " + path);
  const std::string saved = read_bytes(path);
  const FileLock lock = lock_session(path, "--session");
  EXPECT_TRUE(says(refusal("/save! " + path), "/save! " + path + ": another chat is using it"));
  EXPECT_TRUE(says(refusal("/save! " + path + ".lock"), path + ".lock"));
  EXPECT_EQ(read_bytes(path), saved);
  EXPECT_EQ(read_bytes(path + ".lock"), "");
}

TEST_F(ChatTest, SavesOverItsOwnSessionFile) {
  const TemporaryFolder folder;
  const std::string path = folder / "s.json";
  const FileLock lock = lock_session(path, "--session");
  chat.keep_in(path);
  type("a");
  std::filesystem::create_symlink(path, folder / "link");
  type("/save! " + (folder / "link").string());
  EXPECT_TRUE(told("saved "));
}

TEST_F(ChatTest, DropsTheTokensOfAnotherModelAndSaysSo) {
  const TemporaryFolder folder;
  const std::string path = folder / "s.json";
  type("a");
  type("/save " + path);
  Chat other(answerer, {.name = "n.bin", .fingerprint = "g", .vocab = 5}, {.prompt = {}}, output);
  other.load(path, "/load");
  EXPECT_TRUE(told("m.bin"));
  EXPECT_EQ(other.conversation().messages.at(1).content, "fine");
  EXPECT_TRUE(other.conversation().messages.at(1).tokens.empty());
  other.keep_in(path);
  other.save();  // is this model's from now on
  notices.clear();
  other.load(path, "/load");
  EXPECT_FALSE(told("m.bin"));
}

TEST_F(ChatTest, RefusesASessionWhoseSystemPromptTheTemplateDoesNotKnow) {
  const TemporaryFolder folder;
  const std::string path = folder / "s.json";
  type("/system Be brief.");
  type("/save " + path);
  type("/system \"\"");
  answerer.knows_system = false;
  EXPECT_TRUE(says(refusal("/load " + path), "system"));
}

TEST_F(ChatTest, KeepsItsSessionFileUpToDate) {
  const TemporaryFolder folder;
  const std::string path = folder / "s.json";
  chat.keep_in(path);
  const auto kept = [&] {
    Chat reader(answerer, {.name = "m.bin", .fingerprint = "f", .vocab = 100}, {.prompt = {}},
                output);
    reader.load(path, "--session");
    return reader.conversation().messages.size();
  };
  type("a");
  EXPECT_EQ(kept(), 2U);
  type("b");
  EXPECT_EQ(kept(), 4U);
  type("/undo");
  EXPECT_EQ(kept(), 2U);
  type("/reset");
  EXPECT_EQ(kept(), 0U);
}

TEST_F(ChatTest, GoesOnWhenItsSessionFileCannotBeWritten) {
  const TemporaryFolder folder;
  const std::string path = folder / "no" / "s.json";
  chat.keep_in(path);
  EXPECT_THROW(chat.save(), Error);
  type("a");
  EXPECT_TRUE(told(path));
  EXPECT_EQ(state(), "|a|fine,10,11");
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
}  // namespace faststream
