// faststream-run --chat with the bundled model, on a terminal and by scripts.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "pseudo_terminal.h"
#include "run_program.h"
#include "stories.h"
#include "unit/support/set_variable.h"

namespace faststream {
namespace {

constexpr const char* kUp = "\x1b[A";
constexpr const char* kCtrlC = "\x03";
constexpr const char* kCtrlD = "\x04";

// demo/ converted, once a process. In f32 a conversation whose KV cache is computed again, after
// loading it, goes on alike; fewer bits round otherwise now and then.
std::string demo_model() {
  const auto path = scratch_folder() / "demo.bin";
  if (!std::filesystem::exists(path)) {
    const char* tests = std::getenv("FASTSTREAM_TEST_DATA");
    if (tests == nullptr) throw std::runtime_error("FASTSTREAM_TEST_DATA is not set");
    const ProgramResult result =
        run_program({"faststream-convert", (std::filesystem::path(tests).parent_path() / "demo"),
                     "-o", path.string(), "--dtype", "f32", "--quiet"});
    if (result.exit_code != 0) throw std::runtime_error(result.err);
  }
  return path.string();
}

std::vector<std::string> chat_args(const std::vector<std::string>& more = {}) {
  std::vector<std::string> args = {"faststream-run", "-m",       demo_model(),
                                   "--chat",         "--device", "cpu"};
  if (std::find(more.begin(), more.end(), "--temp") == more.end()) {
    args.insert(args.end(), {"--temp", "0"});
  }
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

ProgramResult script(const std::string& lines, const std::vector<std::string>& more = {}) {
  return run_program(chat_args(more), lines);
}

std::string last_line(const std::string& text) {
  const size_t end = text.find_last_not_of('\n');
  return end == std::string::npos ? "" : text.substr(text.rfind('\n', end) + 1, end);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// What follows `label` on its line.
int64_t number_after(const std::string& text, const std::string& label) {
  const size_t at = text.find(label);
  if (at == std::string::npos) throw std::runtime_error("no " + label + " in " + text);
  return std::stoll(text.substr(at + label.size()));
}

// Scripts. ---------------------------------------------------------------------------------------

TEST(ChatScript, AnswersEachLineAndKeepsNoticesApart) {
  const ProgramResult result =
      script("What is 7 plus 5?\r\n\n\"\"\"\nWhat is\n2 plus 2?\n\"\"\"\n/stats\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(result.out.starts_with("12\n")) << result.out;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 2) << result.out;
  EXPECT_TRUE(contains(result.err, "turns:       2")) << result.err;
  EXPECT_FALSE(contains(result.err, "> "));
}

TEST(ChatScript, RemembersWhatWasSaid) {
  const ProgramResult result = script("My name is Tom.\nWhat is my name?\n");
  EXPECT_TRUE(contains(last_line(result.out), "Tom")) << result.out;
  const ProgramResult forgotten = script("My name is Tom.\n/reset\nWhat is my name?\n");
  EXPECT_FALSE(contains(last_line(forgotten.out), "Tom")) << forgotten.out;
}

TEST(ChatScript, ProcessesOnlyWhatIsNewInATurn) {
  const std::string first = "My name is Tom. I have a red ball and a small boat.\n";
  const ProgramResult result = script(first + "/stats\nWhat is my name?\n/stats\n");
  const size_t second = result.err.rfind("turns:");
  ASSERT_GT(second, 0U) << result.err;
  const std::string before = result.err.substr(0, second);
  const std::string after = result.err.substr(second);
  const int64_t prompt = number_after(after, "last prompt: ");
  const int64_t cached = number_after(after, " tokens, ");
  // All of the first turn but the last token of its answer, of which no next one was computed.
  EXPECT_GE(cached,
            number_after(before, "last prompt: ") + number_after(before, "last answer: ") - 2);
  EXPECT_LT(cached, prompt);
  EXPECT_LT(prompt - cached, 16) << result.err;
}

TEST(ChatScript, TakesSystemPromptsFromTheCommandLine) {
  const ProgramResult result = script("/system\n", {"--system", "Answer in one word."});
  EXPECT_EQ(result.err, "Answer in one word.\n");
  EXPECT_EQ(result.out, "");
}

TEST(ChatScript, SaysThatThereIsNoSystemPromptAnyMore) {
  const ProgramResult result = script("/system \"\"\n", {"--system", "Answer in one word."});
  EXPECT_EQ(result.err, "there is no system prompt now\n");
}

TEST(ChatScript, SaysThatAModelIsNoSession) {
  const ProgramResult result = script("/load " + demo_model() + "\n");
  EXPECT_TRUE(contains(result.err, demo_model() + ": is no session of faststream-run"))
      << result.err;
}

TEST(ChatScript, FailsAtItsEndWhenALineWasRefused) {
  const ProgramResult result = script("/nothing\nWhat is 7 plus 5?\n/set top-k few\n");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "12\n");
  EXPECT_TRUE(contains(result.err, "/help")) << result.err;
  EXPECT_TRUE(contains(result.err, "2 inputs were refused")) << result.err;
}

TEST(ChatScript, GoesOnAlikeAfterSavingAndLoading) {
  const std::string file = (scratch_folder() / "saved.json").string();
  const std::string random = "/set temperature 1.5\n/set seed 11\n/set max-tokens 60\n";
  const std::string next = "Tell me a story about a fox.\n";
  const ProgramResult saved = script(random + "My name is Tom.\n/save " + file + "\n" + next);
  ASSERT_EQ(saved.exit_code, 0) << saved.err;
  const ProgramResult loaded = script("/load " + file + "\n" + next + "/stats\n");
  ASSERT_EQ(loaded.exit_code, 0) << loaded.err;
  EXPECT_TRUE(saved.out.ends_with(loaded.out)) << saved.out << "\n" << loaded.out;
  EXPECT_GT(loaded.out.size(), 40U);
  EXPECT_TRUE(contains(loaded.err, "turns:       2")) << loaded.err;

  const nlohmann::json json = nlohmann::json::parse(read_file(file));
  EXPECT_EQ(json.at("model").at("name"), "demo.bin");
  EXPECT_EQ(json.at("messages").size(), 2U);
  EXPECT_FALSE(json.at("messages").at(1).at("tokens").empty());
  EXPECT_EQ(json.at("settings").at("seed"), 11);
}

TEST(ChatScript, KeepsASession) {
  const std::string file = (scratch_folder() / "session.json").string();
  EXPECT_EQ(script("My name is Tom.\n/set max-tokens 30\n", {"--session", file}).exit_code, 0);
  const ProgramResult next =
      script("What is my name?\n/set\n", {"--session", file, "--temp", "0.5", "--top-k", "1"});
  EXPECT_TRUE(contains(next.out, "Tom")) << next.out << next.err;
  EXPECT_TRUE(contains(next.err, "max-tokens          30")) << next.err;   // the session's
  EXPECT_TRUE(contains(next.err, "temperature         0.5")) << next.err;  // the command line's
  const nlohmann::json kept = nlohmann::json::parse(read_file(file));
  EXPECT_EQ(kept.at("messages").size(), 4U);
  EXPECT_EQ(kept.at("settings").at("max-tokens"), 30);    // what /set set
  EXPECT_NE(kept.at("settings").at("temperature"), 0.5);  // what was for one chat
  EXPECT_NE(kept.at("settings").at("top-k"), 1);

  std::ofstream(file) << "{}";
  const ProgramResult damaged = script("Hello!\n", {"--session", file});
  EXPECT_EQ(damaged.exit_code, 1);
  EXPECT_TRUE(contains(damaged.err, file)) << damaged.err;
  EXPECT_EQ(read_file(file), "{}");
  EXPECT_EQ(script("", {"--session", (scratch_folder() / "no" / "s.json").string()}).exit_code, 1);
}

TEST(ChatScript, KnowsTheUsersOwnFolder) {
  const std::filesystem::path home = scratch_folder() / "home";
  std::filesystem::create_directories(home);
  const SetVariable variable("HOME", home);
  const ProgramResult result = script("My name is Tom.\n/save! ~/talk.json\n/load ~/talk.json\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(std::filesystem::exists(home / "talk.json"));
}

TEST(ChatScript, BeginsASessionInAnEmptyFile) {
  const std::string file = (scratch_folder() / "empty.json").string();
  std::ofstream(file).close();
  EXPECT_EQ(script("Hello!\n", {"--session", file}).exit_code, 0);
  EXPECT_EQ(nlohmann::json::parse(read_file(file)).at("messages").size(), 2U);
}

TEST(ChatScript, LetsNobodyElseUseItsSession) {
  const std::string file = (scratch_folder() / "locked.json").string();
  PseudoTerminal terminal(chat_args({"--session", file}));
  ASSERT_TRUE(terminal.expect_prompt());
  const ProgramResult second = script("Hello!\n", {"--session", file});
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_TRUE(contains(second.err, file + ": another chat is using it")) << second.err;
  terminal.send(kCtrlD);
  EXPECT_EQ(terminal.wait(), 0);
  EXPECT_FALSE(std::filesystem::exists(file + ".lock"));
  EXPECT_EQ(script("Hello!\n", {"--session", file}).exit_code, 0);
}

TEST(ChatScript, ShowsControlCharactersOfASessionInsteadOfObeyingThem) {
  const std::string file = (scratch_folder() / "hostile.json").string();
  ASSERT_EQ(script("Hello!\n", {"--session", file, "--system", "@"}).exit_code, 0);
  std::string text = read_file(file);
  text.replace(text.find("\"@\""), 3, R"("\u001b]0;title\u0007")");
  text.replace(text.find("demo.bin"), 8, R"(\u001b[2J)");
  text.replace(text.find("\"fingerprint\":\"") + 15, 4, "0000");
  std::ofstream(file) << text;
  const ProgramResult result = script("/system\n/undo\n", {"--session", file});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_FALSE(contains(result.err, "\x1b")) << result.err;
  EXPECT_TRUE(contains(result.err, "\\x1B]0;title\\x07\n")) << result.err;
}

TEST(ChatScript, ComputesFewTokensTwiceWhenTheContextIsFull) {
  std::string lines;
  constexpr int kMessages = 24;
  for (int i = 0; i < kMessages; ++i) lines += "What is 7 plus 5?\n/stats\n";
  const ProgramResult result = script(lines, {"-c", "192", "-n", "4"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), kMessages);
  EXPECT_EQ(number_after(result.err.substr(result.err.rfind("turns:")), "turns:"), kMessages);
  int64_t processed = 0;
  int64_t new_tokens = 0;
  int64_t notices = 0;
  for (size_t at = 0; (at = result.err.find("last prompt: ", at)) != std::string::npos; ++at) {
    const std::string line = result.err.substr(at, result.err.find('\n', at) - at);
    const int64_t prompt = number_after(line, "last prompt: ");
    if (new_tokens == 0) new_tokens = prompt;  // of one message
    processed += prompt - number_after(line, " tokens, ");
  }
  for (size_t at = 0; (at = result.err.find("the context is full", at)) != std::string::npos; ++at)
    ++notices;
  EXPECT_GE(notices, 2);
  EXPECT_LT(processed, 2 * kMessages * (new_tokens + 4)) << result.err;
}

TEST(ChatScript, RefusesAMessageThatIsTooLong) {
  std::string words;
  for (int i = 0; i < 80; ++i) words += "ball ";
  const ProgramResult refused = script("What is 7 plus 5?\n" + words + "\n/stats\n", {"-c", "64"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_TRUE(contains(refused.err, "too long")) << refused.err;
  EXPECT_EQ(number_after(refused.err, "turns: "), 1);
}

TEST(ChatScript, RefusesWhatAChatDoesNotGoWith) {
  for (const std::vector<std::string>& more :
       std::vector<std::vector<std::string>>{{"--tokenize"}, {"--output", "x"}}) {
    EXPECT_EQ(script("", more).exit_code, 2) << more.front();
  }
  EXPECT_EQ(run_program({"faststream-run", "-m", demo_model(), "--system", "x"}).exit_code, 2);
  const ProgramResult unknown = script("", {"--chat-template", "nothing-like-it"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_TRUE(contains(unknown.err, "--chat-template")) << unknown.err;
}

TEST(ChatScript, NamesTheTemplatesWhenTheModelHasNone) {
  if (stories_folder().empty()) GTEST_SKIP() << "shared/models/stories260K is not there";
  const ProgramResult result = run_program({"faststream-run", "-m", stories_model(), "--chat"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_TRUE(contains(result.err, "--chat-template NAME|FILE")) << result.err;
}

// Asking once. -----------------------------------------------------------------------------------

TEST(ChatOnce, AnswersAQuestionAndLeaves) {
  const ProgramResult result = run_program(chat_args({"-p", "What is 7 plus 5?"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "12\n");
}

TEST(ChatOnce, JoinsTheQuestionWithWhatComesInAPipe) {
  const auto shown = [](const std::vector<std::string>& more, const std::string& input) {
    std::vector<std::string> args = chat_args(more);
    args.emplace_back("--show-prompt");
    return run_program(args, input).out;
  };
  const std::string joined = shown({"-p", "Summarise:"}, "one\ntwo\n");
  EXPECT_NE(joined.find("User: Summarise:\n\none\ntwo\nAssistant:"), std::string::npos) << joined;
  EXPECT_EQ(shown({"-p", "Summarise:\n\none\ntwo"}, ""), joined);
  EXPECT_EQ(shown({"-f", "-"}, "Summarise:\n\none\ntwo\n"), joined);
  EXPECT_NE(shown({"-p", "Hi", "--system", "Be brief."}, "").find("System: Be brief.\n"),
            std::string::npos);
  EXPECT_EQ(shown({"-p", "Hi", "--system", ""}, ""), shown({"-p", "Hi"}, ""));
}

TEST(ChatOnce, GoesOnWithASession) {
  const std::string file = (scratch_folder() / "once.json").string();
  std::filesystem::remove(file);
  EXPECT_EQ(run_program(chat_args({"-p", "What is 7 plus 5?", "--session", file})).exit_code, 0);
  EXPECT_EQ(run_program(chat_args({"-p", "And 3 plus 4?", "--session", file})).exit_code, 0);
  std::ifstream stream(file);
  EXPECT_EQ(nlohmann::json::parse(stream).at("messages").size(), 4U);
}

TEST(ChatOnce, AnswersAConversationOfAFile) {
  const auto file_of = [](const std::string& text) {
    std::string file = (scratch_folder() / "messages.json").string();
    std::ofstream(file) << text;
    return file;
  };
  const std::string question =
      R"({"messages": [{"role": "user", "content": "What is 7 plus 5?"}]})";
  EXPECT_EQ(run_program(chat_args({"--messages", file_of(question)})).out, "12\n");
  EXPECT_EQ(run_program(chat_args({"--messages", "-"}), question).out, "12\n");
  for (const auto& [text, mentions] :
       {std::pair("[]", "not a JSON object"),
        {R"({"messages": []})", "\"messages\" is empty"},
        {R"({"messages": [{"role": "user"}]})", "messages[0].content"},
        {R"({"messages": [{"content": "x"}]})", "messages[0].role"},
        {R"({"messages": 3, "tool": 1})", "unknown member \"tool\""},
        {R"({"messages": [{"role": "user", "content": 3}]})", "messages[0].content"}}) {
    const ProgramResult result = run_program(chat_args({"--messages", file_of(text)}));
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_NE(result.err.find(mentions), std::string::npos) << result.err;
  }
}

TEST(ChatOnce, GivesTheTemplateToolsDocumentsAndVariables) {
  const auto file_with_text = [](const char* name, const char* text) {
    std::string file = (scratch_folder() / name).string();
    std::ofstream(file) << text;
    return file;
  };
  const std::string jinja = file_with_text("all.jinja",
                                           "{{ tools | tojson }} {{ documents | tojson }} {{ "
                                           "thinking }} {{ name }} {{ messages[0].content }}");
  const std::string tools = file_with_text("tools.json", R"([{"z": 1, "a": 2}])");
  const std::string documents = file_with_text("documents.json", R"([{"title": "T"}])");
  const ProgramResult result = run_program(chat_args(
      {"-p", "Hi", "--chat-template", jinja, "--tools", tools, "--documents", documents,
       "--template-arg", "thinking=false", "--template-arg", "name=Ada", "--show-prompt"}));
  EXPECT_EQ(result.out, R"([{"z": 1, "a": 2}] [{"title": "T"}] False Ada Hi)") << result.err;
}

TEST(ChatOnce, RefusesWhatDoesNotGoTogether) {
  const auto refused = [](const std::vector<std::string>& more, const char* mentions) {
    const ProgramResult result = run_program(chat_args(more));
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_NE(result.err.find(mentions), std::string::npos) << result.err;
  };
  refused({"--messages", "x", "-p", "y"}, "--messages and -p");
  refused({"--messages", "x", "--system", "y"}, "--system");
  refused({"--show-prompt"}, "--show-prompt needs");
  refused({"-p", "x", "--template-arg", "y"}, "NAME=VALUE");
  refused({"-p", "x", "--template-arg", "messages=[]"}, "--template-arg messages");
  refused({"-p", ""}, "the question is empty");
}

TEST(ChatOnce, NamesTheTemplateAndTheFileOfAConversationThatIsRefused) {
  const std::string jinja = (scratch_folder() / "refuses.jinja").string();
  std::ofstream(jinja) << "{{ raise_exception('No.') }}";
  const ProgramResult result =
      run_program(chat_args({"--messages", "-", "--chat-template", jinja}),
                  R"({"messages": [{"role": "user", "content": "x"}], "documents": [{"a": 1}]})");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err,
            "the chat template does not look at documents: the model will not see them\n"
            "faststream-run: --messages -: " +
                jinja + " refuses the conversation: No.\n");
}

TEST(ChatOnce, TakesNoPipeForASession) {
  const std::string pipe = (scratch_folder() / "session.pipe").string();
  std::filesystem::remove(pipe);
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const ProgramResult result = run_program(chat_args({"-p", "Hi", "--session", pipe}));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("is not a regular file"), std::string::npos) << result.err;
}

// Terminals. -------------------------------------------------------------------------------------

class ChatOnTerminal : public testing::Test {
 protected:
  PseudoTerminal start(const std::vector<std::string>& more = {}) const {
    return PseudoTerminal(
        chat_args(more),
        {{"XDG_STATE_HOME", state_.string()}, {"HOME", state_.string()}, {"LC_ALL", "C.UTF-8"}});
  }
  void SetUp() override { std::filesystem::remove_all(state_); }

  std::filesystem::path state_ = scratch_folder() / "state";
};

TEST_F(ChatOnTerminal, AnswersAndLeavesAtCtrlD) {
  PseudoTerminal terminal = start();
  EXPECT_TRUE(terminal.expect("/help lists the commands"));
  EXPECT_TRUE(terminal.expect_prompt());
  terminal.send("What is 7 plus 5?\r");
  EXPECT_TRUE(terminal.expect("12\r\n"));
  EXPECT_TRUE(terminal.expect_prompt());
  terminal.send(kCtrlD);
  EXPECT_EQ(terminal.wait(), 0);
}

TEST_F(ChatOnTerminal, ShowsWhatTheUserTypesInAColourUnlessNoneIsWanted) {
  PseudoTerminal coloured = start();
  ASSERT_TRUE(coloured.expect_prompt("\x1b[36m> "));
  coloured.send("/quit\r");
  EXPECT_TRUE(coloured.expect("\x1b[0m"));
  EXPECT_EQ(coloured.wait(), 0);
  for (const auto& plain :
       {std::pair("NO_COLOR", "1"), std::pair("TERM", "dumb"), std::pair("TERM", "unheard-of")}) {
    PseudoTerminal terminal(
        chat_args({}), {{"HOME", state_.string()}, {"XDG_STATE_HOME", state_.string()}, plain});
    ASSERT_TRUE(terminal.expect_prompt("> "));
    terminal.send("\x04");
    EXPECT_EQ(terminal.wait(), 0);
    EXPECT_EQ(terminal.output().find("[36m"), std::string::npos);
  }
}

TEST_F(ChatOnTerminal, CannotBeCommandedByAnAnswer) {
  PseudoTerminal terminal = start({"--logit-bias", "30=100", "-n", "2"});  // <0x1B>
  ASSERT_TRUE(terminal.expect_prompt());
  terminal.send("Hi\r");
  EXPECT_TRUE(terminal.expect("\\x1B\\x1B"));
}

TEST_F(ChatOnTerminal, CannotBeCommandedByATemplate) {
  const std::string jinja = (scratch_folder() / "escapes.jinja").string();
  std::ofstream(jinja) << "\x1B]0;title\x07{{ messages[0].content }}";
  PseudoTerminal terminal = start({"--chat-template", jinja, "-p", "Hi", "--show-prompt"});
  EXPECT_TRUE(terminal.expect("\\x1B]0;title\\x07Hi"));
  EXPECT_EQ(terminal.wait(), 0);
}

TEST_F(ChatOnTerminal, CarriesOutCommands) {
  PseudoTerminal terminal = start();
  const std::string file = (scratch_folder() / "terminal.json").string();
  const std::vector<std::pair<std::string, std::string>> dialogue = {
      {"/help", "/quit"},
      {"/system", "there is no system prompt"},
      {"/system Answer briefly.", "the system prompt is set"},
      {"My name is Tom.", "Tom"},
      {"/system Answer kindly.", "all of it again"},
      {"/set", "frequency-penalty"},
      {"/set top-k 5", "top-k is 5"},
      {"/set top-k no", "not a whole number"},
      {"/stats", "from the KV cache"},
      {"/save " + file, "saved"},
      {"/retry", "the temperature is 0"},
      {"/undo", "took back \"My name is Tom.\""},
      {"/undo", "no exchange"},
      {"/load " + file, "1 exchange"},
      {"/reset", "a new conversation"},
      {"/nothing", "is no command"},
  };
  for (const auto& [line, told] : dialogue) {
    ASSERT_TRUE(terminal.expect_prompt());
    terminal.send(line + "\r");
    ASSERT_TRUE(terminal.expect(told)) << line;
    ASSERT_TRUE(terminal.expect("\n"));
  }
  ASSERT_TRUE(terminal.expect_prompt());
  terminal.send("/quit\r");
  EXPECT_EQ(terminal.wait(), 0);
}

TEST_F(ChatOnTerminal, StopsAnAnswerAtCtrlCAndGoesOn) {
  const std::string file = (scratch_folder() / "stopped.json").string();
  PseudoTerminal terminal = start({"--ignore-eos", "-t", "1", "--session", file});
  ASSERT_TRUE(terminal.expect_prompt());
  terminal.send("Tell me a story about a fox.\r");
  ASSERT_TRUE(terminal.expect("fox.\r\n"));  // the message
  ASSERT_TRUE(terminal.expect(" "));         // a word of the answer
  terminal.send(kCtrlC);
  ASSERT_TRUE(terminal.expect("stopped; what there is of the answer is kept"));
  ASSERT_TRUE(terminal.expect_prompt());
  const nlohmann::json kept = nlohmann::json::parse(read_file(file)).at("messages");
  ASSERT_EQ(kept.size(), 2U);
  EXPECT_FALSE(kept.at(1).at("tokens").empty());

  terminal.send("Go on.\r");  // and once more
  ASSERT_TRUE(terminal.expect("Go on.\r\n"));
  ASSERT_TRUE(terminal.expect(" "));
  terminal.send(kCtrlC);
  ASSERT_TRUE(terminal.expect("stopped"));
  ASSERT_TRUE(terminal.expect_prompt());
  terminal.send("/stats\r");
  EXPECT_TRUE(terminal.expect("turns:       2"));
  ASSERT_TRUE(terminal.expect_prompt());
  terminal.send(kCtrlD);
  EXPECT_EQ(terminal.wait(), 0);
}

TEST_F(ChatOnTerminal, EmptiesTheLineAtCtrlC) {
  PseudoTerminal terminal = start();
  ASSERT_TRUE(terminal.expect_prompt());
  terminal.send("/quit is not what I want");
  ASSERT_TRUE(terminal.expect("I want"));
  terminal.send(kCtrlC);
  ASSERT_TRUE(terminal.expect_prompt());
  terminal.send(kCtrlC);
  ASSERT_TRUE(terminal.expect("Ctrl-D or /quit leaves"));
  ASSERT_TRUE(terminal.expect_prompt());
  terminal.send("What is 7 plus 5?\r");
  EXPECT_TRUE(terminal.expect("12\r\n"));
  ASSERT_TRUE(terminal.expect_prompt());
  terminal.send("\"\"\"\r");
  ASSERT_TRUE(terminal.expect_prompt("... "));
  terminal.send(kCtrlC);
  ASSERT_TRUE(terminal.expect_prompt());
  terminal.send("/stats\r");
  EXPECT_TRUE(terminal.expect("turns:       1"));
}

TEST_F(ChatOnTerminal, EndsAtSigterm) {
  PseudoTerminal terminal = start();
  ASSERT_TRUE(terminal.expect_prompt());
  terminal.signal(SIGTERM);
  EXPECT_EQ(terminal.wait(), 130);
}

TEST_F(ChatOnTerminal, KeepsSessionAndHistoryWhenTheTerminalGoes) {
  const std::string file = (scratch_folder() / "hangup.json").string();
  PseudoTerminal terminal = start({"--ignore-eos", "-t", "1", "--session", file});
  ASSERT_TRUE(terminal.expect_prompt());
  terminal.send("Tell me a story about a fox.\r");
  ASSERT_TRUE(terminal.expect("fox.\r\n"));
  ASSERT_TRUE(terminal.expect(" "));
  terminal.signal(SIGHUP);  // from the kernel, and once more from a shell that ends, too
  terminal.signal(SIGHUP);
  EXPECT_EQ(terminal.wait(), 130);
  EXPECT_EQ(nlohmann::json::parse(read_file(file)).at("messages").size(), 2U);
  EXPECT_TRUE(contains(read_file(state_ / "faststream" / "history"), "fox"));
}

TEST_F(ChatOnTerminal, TakesMessagesOfManyLines) {
  PseudoTerminal terminal = start();
  ASSERT_TRUE(terminal.expect_prompt());
  terminal.send("What is\\\r");
  ASSERT_TRUE(terminal.expect_prompt("... "));
  terminal.send("7 plus 5?\r");
  ASSERT_TRUE(terminal.expect_prompt());
  terminal.send("\"\"\"\r");
  ASSERT_TRUE(terminal.expect_prompt("... "));
  terminal.send("/help me\r");
  ASSERT_TRUE(terminal.expect_prompt("... "));
  terminal.send("\"\"\"\r");
  ASSERT_TRUE(terminal.expect_prompt());
  const std::string file = (scratch_folder() / "lines.json").string();
  terminal.send("/save " + file + "\r");
  ASSERT_TRUE(terminal.expect("saved"));
  const nlohmann::json messages = nlohmann::json::parse(read_file(file)).at("messages");
  EXPECT_EQ(messages.at(0).at("content"), "What is\n7 plus 5?");
  EXPECT_EQ(messages.at(2).at("content"), "/help me");
}

TEST_F(ChatOnTerminal, TakesPastedLinesAsOneMessage) {
  PseudoTerminal terminal = start();
  ASSERT_TRUE(terminal.expect("\x1b[?2004h"));
  ASSERT_TRUE(terminal.expect_prompt());
  terminal.send("Note: \x1b[200~one\r\ntwo\x07 Grüße\rthree\x1b[201~!\r");
  ASSERT_TRUE(terminal.expect("\x1b[?2004l"));
  ASSERT_TRUE(terminal.expect_prompt());
  const std::string file = (scratch_folder() / "pasted.json").string();
  terminal.send("/save " + file + "\r");
  ASSERT_TRUE(terminal.expect("saved"));
  const nlohmann::json messages = nlohmann::json::parse(read_file(file)).at("messages");
  ASSERT_EQ(messages.size(), 2U);
  EXPECT_EQ(messages.at(0).at("content"), "Note: one\ntwo Grüße\nthree!");
}

TEST_F(ChatOnTerminal, KeepsAPrivateHistory) {
  {
    PseudoTerminal terminal = start();
    ASSERT_TRUE(terminal.expect_prompt());
    terminal.send("What is 7 plus 5?\r");
    ASSERT_TRUE(terminal.expect("12\r\n"));
    ASSERT_TRUE(terminal.expect_prompt());
    terminal.send("/stats\r");
    ASSERT_TRUE(terminal.expect("last answer"));
    ASSERT_TRUE(terminal.expect_prompt());
    terminal.send(std::string(kUp) + kUp + "\r");
    EXPECT_TRUE(terminal.expect("12\r\n"));
    ASSERT_TRUE(terminal.expect_prompt());
    terminal.send(kCtrlD);
    EXPECT_EQ(terminal.wait(), 0);
  }
  struct stat status = {};
  ASSERT_EQ(stat((state_ / "faststream" / "history").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);

  PseudoTerminal terminal = start();
  ASSERT_TRUE(terminal.expect_prompt());
  terminal.send(std::string(kUp) + "\r");
  EXPECT_TRUE(terminal.expect("12\r\n"));
}

TEST_F(ChatOnTerminal, DoesWithoutAHistoryThatCannotBeWritten) {
  std::ofstream(state_) << "a file where a folder should be";
  PseudoTerminal terminal = start();
  ASSERT_TRUE(terminal.expect_prompt());
  terminal.send("/stats\r");
  ASSERT_TRUE(terminal.expect("turns:"));
  ASSERT_TRUE(terminal.expect_prompt());
  terminal.send(kCtrlD);
  EXPECT_EQ(terminal.wait(), 0);
}

TEST_F(ChatOnTerminal, LeavesAloneWhatIsNoHistory) {
  const auto path = state_ / "faststream" / "history";
  const auto chat = [&] {
    PseudoTerminal terminal = start();
    EXPECT_TRUE(terminal.expect("is no history"));
    ASSERT_TRUE(terminal.expect_prompt());
    terminal.send("/stats\r");
    ASSERT_TRUE(terminal.expect("turns:"));
    ASSERT_TRUE(terminal.expect_prompt());
    terminal.send(kCtrlD);
    EXPECT_EQ(terminal.wait(), 0);
  };
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(state_ / "victim") << "precious";
  std::filesystem::create_symlink(state_ / "victim", path);
  chat();
  EXPECT_EQ(read_file(state_ / "victim"), "precious");
  std::filesystem::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  chat();
  EXPECT_TRUE(std::filesystem::is_fifo(path));
}

TEST_F(ChatOnTerminal, EditsOnATerminalThatChangesItsSize) {
  PseudoTerminal terminal = start();
  ASSERT_TRUE(terminal.expect_prompt());
  terminal.send("What is 7");
  ASSERT_TRUE(terminal.expect("7"));
  terminal.resize(10, 20);
  terminal.send(" plus 5?\r");
  EXPECT_TRUE(terminal.expect("12\r\n"));
}

// The line is 52 columns with its prompt: rows of 20, 20 and 12, where a terminal breaks it anew.
TEST_F(ChatOnTerminal, DrawsOverAllRowsOfALineThatANarrowerTerminalHasBroken) {
  PseudoTerminal terminal = start();
  ASSERT_TRUE(terminal.expect_prompt());
  terminal.send(std::string(50, 'x'));
  ASSERT_TRUE(terminal.expect(std::string(50, 'x')));
  ASSERT_TRUE(terminal.expect_size_change(10, 20, "\x1b[5;13R", "\x1b[2A\r\x1b[J"));
  // What was typed before the terminal said where the cursor is: the line goes, a question comes.
  ASSERT_TRUE(terminal.expect_size_change(10, 100, "\x15What is 7\x1b[1;53R", "\r\x1b[J"));
  terminal.send(" plus 5?\r");
  EXPECT_TRUE(terminal.expect("12\r\n"));
}

TEST_F(ChatOnTerminal, TakesALateReportOfTheCursorForNoText) {
  PseudoTerminal terminal = start();
  ASSERT_TRUE(terminal.expect_prompt());
  terminal.send("What is");
  ASSERT_TRUE(terminal.expect("What is"));
  terminal.resize(10, 50);
  ASSERT_TRUE(terminal.expect("\x1b[6n"));
  ASSERT_TRUE(terminal.expect("What is")) << "drawn when the program has waited long enough";
  // In two pieces, the second with a key.
  terminal.send(" 7\x1b[1;");
  ASSERT_TRUE(terminal.expect("7"));
  terminal.send("10R plus 5?\r");
  EXPECT_TRUE(terminal.expect("12\r\n"));
}

TEST_F(ChatOnTerminal, AsksATerminalThatNeverAnswersAFewTimesOnly) {
  const std::string question = "\x1b[6n";
  PseudoTerminal terminal = start();
  ASSERT_TRUE(terminal.expect_prompt());
  for (unsigned short columns = 60; columns < 63; ++columns) {
    terminal.resize(10, columns);
    ASSERT_TRUE(terminal.expect(question));
    ASSERT_TRUE(terminal.expect("> "));
  }
  terminal.resize(10, 70);
  ASSERT_TRUE(terminal.expect("\r\x1b[J"));
  terminal.send("/quit\r");
  EXPECT_EQ(terminal.wait(), 0);
  const std::string& all = terminal.output();
  size_t n_questions = 0;
  for (size_t at = 0; (at = all.find(question, at)) != std::string::npos; ++at) ++n_questions;
  EXPECT_EQ(n_questions, 3U) << all;
}

TEST_F(ChatOnTerminal, EditsUtf8) {
  PseudoTerminal terminal = start();
  ASSERT_TRUE(terminal.expect_prompt());
  // Typed wrong, then taken back: one key press a character.
  terminal.send("Grüß世\x7f\x7fße.\r");
  ASSERT_TRUE(terminal.expect("\x1b[?2004l"));
  ASSERT_TRUE(terminal.expect_prompt());
  const std::string file = (scratch_folder() / "utf8.json").string();
  terminal.send("/save " + file + "\r");
  ASSERT_TRUE(terminal.expect("saved"));
  const nlohmann::json messages = nlohmann::json::parse(read_file(file)).at("messages");
  EXPECT_EQ(messages.at(0).at("content"), "Grüße.");
}

TEST_F(ChatOnTerminal, TakesAReturnAfterAByteThatIsNoCharacter) {
  PseudoTerminal terminal = start();
  ASSERT_TRUE(terminal.expect_prompt());
  terminal.send("/no\xC3\r");  // the beginning of a character alone
  ASSERT_TRUE(terminal.expect("is no command"));
  ASSERT_TRUE(terminal.expect_prompt());
}

}  // namespace
}  // namespace faststream
