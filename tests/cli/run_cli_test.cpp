// faststream-run as a user starts it.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <thread>

#include "run_program.h"
#include "stories.h"
#include "unit/backend/test_backends.h"
#include "unit/engine/engine_model.h"

namespace faststream {
namespace {

#define REQUIRE_STORIES() \
  if (stories_folder().empty()) GTEST_SKIP() << "shared/models/stories260K is not there"

size_t count_lines(const std::string& text) {
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

// A refusal is one sentence on stderr and nothing on stdout.
void expect_refusal(const ProgramResult& result, int exit_code, const std::string& mentions) {
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(count_lines(result.err), 1U) << result.err;
  EXPECT_NE(result.err.find(mentions), std::string::npos) << result.err;
}

std::vector<int32_t> tokenize_with_run(const std::string& model, const std::string& prompt) {
  const ProgramResult result =
      run_program({"faststream-run", "-m", model, "-p", prompt, "--tokenize"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return nlohmann::json::parse(result.out).get<std::vector<int32_t>>();
}

TEST(RunCli, AnswersFollowARule) {
  const TemporaryFolder folder;
  const std::string schema = folder / "schema.json";
  std::ofstream(schema) << R"({"type": "object", "properties": {"b": {"type": "integer"},
      "a": {"enum": ["x", "y"]}}, "required": ["b", "a"], "additionalProperties": false})";
  const auto run = [](std::vector<std::string> more) {
    std::vector<std::string> args = {
        "faststream-run", "-m", demo_model(), "-p",  "One day", "--device", "cpu",
        "--seed",         "3",  "-n",         "200", "--temp",  "1.5"};
    args.insert(args.end(), more.begin(), more.end());
    return run_program(args);
  };
  const ProgramResult json = run({"--json-schema", schema});
  EXPECT_EQ(json.exit_code, 0) << json.err;
  const auto value = nlohmann::json::parse(json.out);
  EXPECT_TRUE(value.at("b").is_number_integer() && value.size() == 2) << json.out;
  EXPECT_LT(json.out.find("\"b\""), json.out.find("\"a\""));
  const ProgramResult regex = run({"--regex", "[a-c]{5}(xyz|uvw)"});
  EXPECT_TRUE(std::regex_match(regex.out, std::regex("[a-c]{5}(xyz|uvw)\n"))) << regex.out;
  expect_refusal(run({"--regex", "(?=a)"}), 1, "looks ahead");
  expect_refusal(run({"--regex", "a", "--beams", "2"}), 2, "beam");
}

// Of these an indexer, which is left out, would choose what tokens attend to.
TEST(RunCli, SaysWhyAModelWithSparseAttentionTakesNoLongerTexts) {
  const TemporaryFolder folder;
  const std::string why =
      "this version does not know the sparse attention that the model has for longer texts";
  for (const char* name : {"deepseek_v32", "glm_moe_dsa"}) {
    const std::string model = folder / name;
    convert_golden(std::string("families/") + name, model);
    const auto run = [&](const std::string& prompt, std::vector<std::string> more) {
      std::vector<std::string> args = {"faststream-run", "-m",  model,    "-p", prompt,
                                       "--device",       "cpu", "--temp", "0"};
      args.insert(args.end(), more.begin(), more.end());
      return run_program(args);
    };
    expect_refusal(run("a", {"--context", "81"}), 2,
                   "the model takes 1 to 80 tokens, since " + why);
    const ProgramResult long_prompt = run(std::string(500, 'a'), {});
    expect_refusal(long_prompt, 1, "only 80; shorten the prompt, since " + why);
    const ProgramResult to_the_end = run("a", {"-n", "200", "--ignore-eos"});
    EXPECT_EQ(to_the_end.exit_code, 0) << to_the_end.err;
    EXPECT_NE(to_the_end.err.find("the context of 80 tokens is full, and " + why),
              std::string::npos)
        << to_the_end.err;
    const ProgramResult shown = run_program({"faststream-convert", "--show", model});
    EXPECT_NE(shown.out.find("context 80, since " + why), std::string::npos) << shown.out;
  }
}

class StoriesOn : public DeviceTest {
 protected:
  void SetUp() override {
    REQUIRE_STORIES();
    DeviceTest::SetUp();
  }
  // The text of 200 positions, the prompt included, as llama2.c's program counts them.
  std::string greedy(const std::string& prompt) {
    const std::string model = stories_model();
    const size_t n = 201 - tokenize_with_run(model, prompt).size();
    const ProgramResult result =
        run_program({"faststream-run", "-m", model, "-p", prompt, "-n", std::to_string(n), "--temp",
                     "0", "--echo", "--device", GetParam()});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  }
};

TEST_P(StoriesOn, EqualTheReferenceProgramsText) {
  const auto folder = stories_folder();
  EXPECT_EQ(greedy(""), read_file(folder / "expected-empty-prompt.txt"));
  for (const char* number : {"1", "2"}) {
    std::string prompt = read_file(folder / ("prompt-" + std::string(number) + ".txt"));
    if (prompt.ends_with('\n')) prompt.pop_back();
    EXPECT_EQ(greedy(prompt), read_file(folder / ("expected-" + std::string(number) + ".txt")));
  }
}

TEST_P(StoriesOn, AreTheSameForTheSameSeedAndDifferForAnother) {
  const auto text = [&](const std::string& seed, const std::string& device) {
    return run_program({"faststream-run", "-m", stories_model(), "-p", "One day", "-n", "150",
                        "--seed", seed, "--device", device})
        .out;
  };
  const std::string first = text("1", GetParam());
  EXPECT_GT(first.size(), 100U);
  EXPECT_EQ(text("1", GetParam()), first);
  EXPECT_EQ(text("1", "cpu"), first);  // also when GetParam() is a GPU
  EXPECT_NE(text("2", GetParam()), first);
}

TEST_P(StoriesOn, RunInEveryType) {
  for (const char* dtype : {"f16", "bf16", "int8"}) {
    const ProgramResult result =
        run_program({"faststream-run", "-m", stories_model(dtype), "-p", "Once upon a time", "-n",
                     "60", "--temp", "0", "--device", GetParam()});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.out.find("little girl"), std::string::npos) << dtype << ": " << result.out;
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, StoriesOn, testing::Values("cpu"));
INSTANTIATE_TEST_SUITE_P(Cuda, StoriesOn, testing::Values("cuda"));

TEST(Run, ReadsThePromptFromAFileOrStandardInput) {
  REQUIRE_STORIES();
  const std::vector<std::string> common = {
      "faststream-run", "-m", stories_model(), "-n",  "20",
      "--temp",         "0",  "--device",      "cpu", "--echo"};
  const auto with = [&](std::vector<std::string> more, const std::string& input) {
    std::vector<std::string> args = common;
    args.insert(args.end(), more.begin(), more.end());
    const ProgramResult result = run_program(args, input);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    return result.out;
  };
  const auto file = scratch_folder() / "prompt.txt";
  std::ofstream(file) << "The cat\n";
  const std::string expected = with({"-p", "The cat"}, "");
  EXPECT_TRUE(expected.starts_with("The cat"));
  EXPECT_EQ(with({"-f", file.string()}, ""), expected);
  EXPECT_EQ(with({"-f", "-"}, "The cat\n"), expected);
  EXPECT_EQ(with({}, "The cat\n"), expected);
  EXPECT_EQ(with({}, "The cat"), expected);
}

TEST(Run, PrintsOnlyTheCompletionWithoutEcho) {
  REQUIRE_STORIES();
  const auto text = [](bool echo) {
    std::vector<std::string> args = {
        "faststream-run", "-m", stories_model(), "-p", "The cat", "-n", "20",
        "--temp",         "0",  "--device",      "cpu"};
    if (echo) args.emplace_back("--echo");
    return run_program(args).out;
  };
  EXPECT_EQ("The cat" + text(false), text(true));
}

TEST(Run, CountsTokens) {
  REQUIRE_STORIES();
  EXPECT_EQ(run_program({"faststream-run", "-m", stories_model(), "-p", "Hi", "-n", "0"}).out,
            "\n");
  const std::vector<int32_t> empty = tokenize_with_run(stories_model(), "");
  EXPECT_EQ(empty, std::vector<int32_t>{1});  // BOS alone
  EXPECT_GT(tokenize_with_run(stories_model(), "Once upon a time").size(), 2U);
}

TEST(Run, ShowsAndParsesSpecialTokensWhenAsked) {
  REQUIRE_STORIES();
  EXPECT_EQ(run_program({"faststream-run", "-m", stories_model(), "-p", "<s>Hi</s>",
                         "--parse-special", "--tokenize"})
                .out,
            "[1,320,417,2]\n");
  EXPECT_EQ(run_program({"faststream-run", "-m", stories_model(), "-p", "Hi", "--logit-bias",
                         "2=100", "--special", "--device", "cpu"})
                .out,
            "</s>\n");
}

TEST(Run, GoesOnAfterEosWhenAsked) {
  REQUIRE_STORIES();
  const ProgramResult result =
      run_program({"faststream-run", "-m", stories_model(), "-p", "Once", "--temp", "0", "--device",
                   "cpu", "--ignore-eos", "--stats", "-c", "300"});
  EXPECT_EQ(result.exit_code, 0);
  // Prompt and answer fill the context; the first token of the answer comes with the prompt.
  const size_t prompt = tokenize_with_run(stories_model(), "Once").size();
  const std::string expected = "generation: " + std::to_string(300 - prompt) + " tokens, " +
                               std::to_string(299 - prompt) + " in ";
  EXPECT_NE(result.err.find(expected), std::string::npos) << expected << "\n" << result.err;
}

TEST(Run, EndsItsTextAtAStopString) {
  REQUIRE_STORIES();
  const auto text = [](const std::vector<std::string>& more) {
    std::vector<std::string> args = {
        "faststream-run", "-m", stories_model(), "-p", "Once upon a time", "-n", "60",
        "--temp",         "0",  "--device",      "cpu"};
    args.insert(args.end(), more.begin(), more.end());
    const ProgramResult result = run_program(args);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const std::string whole = text({});
  const size_t girl = whole.find(" girl");
  ASSERT_NE(girl, std::string::npos) << whole;
  EXPECT_EQ(text({"--stop", "dragon", "--stop", " girl"}), whole.substr(0, girl) + "\n");
}

TEST(Run, ForcesATokenByItsBias) {
  REQUIRE_STORIES();
  const ProgramResult result =
      run_program({"faststream-run", "-m", stories_model(), "-p", "Once", "-n", "1", "--device",
                   "cpu", "--logit-bias", "5=-100", "--logit-bias", "300=100"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, " ha\n");
}

TEST(Run, PrintsStatisticsToStandardError) {
  REQUIRE_STORIES();
  const ProgramResult result =
      run_program({"faststream-run", "-m", stories_model(), "-p", "Once", "-n", "5", "--stats",
                   "--device", "cpu", "--seed", "9"});
  EXPECT_EQ(result.exit_code, 0);
  for (const char* label :
       {"device:     CPU", "load:", "prompt:", "tokens/s", "generation: 5 tokens, 4 in ",
        "steps:      5, ", "memory:", "seed:       9"}) {
    EXPECT_NE(result.err.find(label), std::string::npos) << label << "\n" << result.err;
  }
}

TEST(Run, RefusesAPromptLongerThanTheContext) {
  REQUIRE_STORIES();
  std::string prompt;
  for (int i = 0; i < 600; ++i) prompt += "word ";
  expect_refusal(
      run_program({"faststream-run", "-m", stories_model(), "-p", prompt, "--device", "cpu"}), 1,
      "context");
  expect_refusal(run_program({"faststream-run", "-m", stories_model(), "-p", "Once upon a time",
                              "-c", "3", "--device", "cpu"}),
                 1, "context");
}

TEST(Run, SaysWhichNumbersAnOptionTakes) {
  expect_refusal(run_program({"faststream-run", "-m", "x.bin", "-p", "x", "--top-k", "2147483648"}),
                 2, "from 0 to 2147483647");
}

TEST(Run, RefusesBadOptions) {
  REQUIRE_STORIES();
  const std::string model = stories_model();
  const std::vector<std::vector<std::string>> cases = {{"-n", "-1"},
                                                       {"-n", "many"},
                                                       {"-n", "99999999999999999999"},
                                                       {"-t", "0"},
                                                       {"-t", "-2"},
                                                       {"-t", "1000000"},
                                                       {"-t", "two"},
                                                       {"--temp", "-1"},
                                                       {"--temp", "hot"},
                                                       {"--temp", "nan"},
                                                       {"--temp", "inf"},
                                                       {"--top-k", "-1"},
                                                       {"--top-k", "1.5"},
                                                       {"--top-p", "1.1"},
                                                       {"--top-p", "-0.1"},
                                                       {"--top-p", "nan"},
                                                       {"--min-p", "1.5"},
                                                       {"--repetition-penalty", "0"},
                                                       {"--presence-penalty", "1000"},
                                                       {"--frequency-penalty", "nan"},
                                                       {"--logit-bias", "5"},
                                                       {"--logit-bias", "5=x"},
                                                       {"--logit-bias", "=1"},
                                                       {"--logit-bias", "5=101"},
                                                       {"--logit-bias", "5=1", "6=1"},
                                                       {"--stop", ""},
                                                       {"--kv-tokens", "-1"},
                                                       {"--seed", "-1"},
                                                       {"--seed", "x"},
                                                       {"-c", "0"},
                                                       {"-c", "-5"},
                                                       {"-c", "100000"},
                                                       {"--device", "tpu"},
                                                       {"--device", "cuda:"},
                                                       {"--device", "cuda:x"},
                                                       {"--device", "cuda:-1"},
                                                       {"--device", ""},
                                                       {"--unknown"},
                                                       {"-f", "also.txt"},
                                                       {"stray"}};
  for (const std::vector<std::string>& options : cases) {
    std::vector<std::string> args = {"faststream-run", "-m", model, "-p", "x"};
    args.insert(args.end(), options.begin(), options.end());
    SCOPED_TRACE(testing::PrintToString(options));
    expect_refusal(run_program(args), 2, "");
  }
  expect_refusal(run_program({"faststream-run", "-p", "x"}), 2, "--model");
}

TEST(Run, RefusesOptionsThatContradict) {
  const std::string model = scratch_folder() / "not-even-read.bin";
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"-p", "x", "--chat-template", "chatml"}, "--chat-template needs --batch or --chat"},
      {{"-p", "x", "-o", "x"}, "--output needs --embed or --rank or --batch"},
      {{"-f", "x", "--system", "Be brief."}, "--system needs --chat"},
      {{"-p", "x", "--against", "x"}, "--against needs --perplexity"},
      {{"-p", "x", "--json"}, "--json needs --list-devices or --perplexity"},
      {{"--list-devices"}, "--model does not go together with --list-devices"},
      {{"--batch", "-", "--session", "x"}, "--session does not go together with --batch"},
      {{"--chat", "--batch", "-"}, "--batch and --chat do not go together"},
      {{"-p", "x", "-f", "x"}, "--prompt and --file do not go together"},
      {{"--chat", "--session", ""}, "--session: is empty"},
      {{"--batch", ""}, "--batch: is empty"}};
  for (const auto& [options, words] : cases) {
    std::vector<std::string> args = {"faststream-run", "-m", model};
    args.insert(args.end(), options.begin(), options.end());
    SCOPED_TRACE(testing::PrintToString(options));
    expect_refusal(run_program(args), 2, words);
  }
}

TEST(Run, TellsOfOptionsThatHaveNoEffectAndGoesOn) {
  const std::string model = engine_model();
  const std::string text = scratch_folder() / "told.txt";
  std::ofstream(text) << "the text\n";
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"-p", "x", "-n", "1", "--device", "cpu", "--slots", "4"},
       "--slots has no effect without --batch\n"},
      {{"-p", "x", "--tokenize", "--device", "cpu", "--temp", "0"},
       "--temp has no effect with --tokenize\n--device has no effect with --tokenize\n"},
      {{"--perplexity", text, "--device", "cpu", "--seed", "7"},
       "--seed has no effect with --perplexity\n"},
      {{"--batch", text, "-n", "1", "--device", "cpu", "--echo"},
       "--echo has no effect with --batch\n"}};
  for (const auto& [options, words] : cases) {
    std::vector<std::string> args = {"faststream-run", "-m", model};
    args.insert(args.end(), options.begin(), options.end());
    SCOPED_TRACE(testing::PrintToString(options));
    const ProgramResult result = run_program(args);
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_NE(result.out, "");
    EXPECT_TRUE(result.err.starts_with(words)) << result.err;
  }
}

TEST(Run, SaysInItsOwnWordsWhatIsWrongWithACommandLine) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--hlep"}, "there is no option --hlep; did you mean --help?"},
      {{"-m", "x", "--tokns=5", "-p", "x"}, "there is no option --tokns; did you mean --tokens?"},
      {{"-m", "x", "--nothing-like-it"}, "there is no option --nothing-like-it (see"},
      {{"-m", "x", "--temperature", "0"}, "no option --temperature; did you mean --temp?"},
      {{"-m", "x", "--max-tokens", "5"}, "no option --max-tokens; did you mean --tokens?"},
      {{"-m", "x", "--repeat-penalty=2"}, "did you mean --repetition-penalty?"},
      {{"-m", "x", "--rep"}, "no option --rep; did you mean --rep"},
      {{"-m", "x", "-temp", "0", "-p", "x"}, "no option -temp; did you mean --temp?"},
      {{"-m", "x", "-ngl", "99", "-p", "x"}, "no option -ngl; did you mean --device?"},
      {{"-m", "x", "-v"}, "there is no option -v (see"},
      {{"-m", "x", "-nx", "-p", "x"}, "--tokens: \"x\" is not a whole number"},
      {{"-m", "x", "-p", "Once", "upon", "a"}, "the argument \"upon\" belongs to no option"},
      {{"/proc/self/cmdline", "-p", "x"}, "belongs to no option; give a model file after -m"},
      {{"-m", "x", "--temp", "1", "--temp", "2"}, "--temp is given 2 times; give it once"},
      {{"-m", "x", "-p"}, "--prompt needs a value, TEXT"},
      {{"-p", "x"}, "--model is required"},
      {{"-m", "x", "-p", "x", "--temp", "-1"}, "--temp: \"-1\" is not a number from 0 to 100"},
      {{"-m", "x", "-p", "x", "--top-p", "1.1"}, "--top-p: \"1.1\" is not a number from 0 to 1"},
      {{"-m", "x", "-p", "x", "--stop", ""}, "--stop: is empty"},
      {{"-m", "x", "-p", "\xE9"}, "--prompt: is not UTF-8 text"},
      {{"-m", "x", "-p", "x", "--logit-bias", "5=101"}, "--logit-bias: \"5=101\" is not"},
      {{"-m", "x", "-p", "x", "--logit-bias", "-5=1"}, "--logit-bias: \"-5=1\" is not"},
      {{"-m", "x", "-p", "x", "--logit-bias", "5=1", "--logit-bias", "5=2"},
       "--logit-bias: \"5=2\" is the second bias"},
      {{"-m", "x", "--batch", "-", "--slots", "8193"}, "from 1 to 8192"},
      {{"-m", "x", "--batch", "-", "--chunk", "2049"}, "from 4 to 2048"},
      {{"-m", "x", "--batch", "-", "--logprobs", "21"}, "from 0 to 20"}};
  for (const auto& [options, words] : cases) {
    std::vector<std::string> args = {"faststream-run"};
    args.insert(args.end(), options.begin(), options.end());
    SCOPED_TRACE(testing::PrintToString(options));
    expect_refusal(run_program(args), 2, words);
  }
}

TEST(Run, SaysThatATextEndsWithItsContext) {
  const auto errors = [](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"faststream-run", "-m",  engine_model(), "-p", "x",
                                     "--device",       "cpu", "--ignore-eos"};
    args.insert(args.end(), more.begin(), more.end());
    return run_program(args).err;
  };
  EXPECT_EQ(errors({"-c", "64"}),
            "the text ends here because the context of 64 tokens is full; a larger --context has "
            "room for more\n");
  EXPECT_EQ(errors({"-c", "64", "-n", "3"}), "");
}

// The numbers differ from run to run in their last digits, the speed wholly.
TEST(Run, PrintsPerplexityAndSpeedAndHowFarTheOtherModelIs) {
  const std::string text = scratch_folder() / "predicted.txt";
  std::ofstream(text) << "the text";
  std::vector<std::string> args = {"faststream-run", "-m", engine_model(), "--perplexity", text,
                                   "--device",       "cpu"};
  const auto expect_lines = [&](const std::vector<std::string>& patterns) {
    const ProgramResult result = run_program(args);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::string pattern;
    for (const std::string& line : patterns) pattern += line + "\n";
    EXPECT_TRUE(std::regex_match(result.out, std::regex(pattern))) << result.out;
  };
  const std::string number = "[0-9.e+-]+";
  const std::vector<std::string> alone = {
      "perplexity            " + number + " ± " + number + R"( \([0-9]+ tokens\))",
      R"(speed                 [1-9][0-9]*\.[0-9] tokens/s)",
      R"(size                  [0-9.]+ [kMG]?B, 32\.00 bits a weight)"};
  expect_lines(alone);

  for (const WeightFormat format : {WeightFormat::f32, WeightFormat::bf16, WeightFormat::int8}) {
    SCOPED_TRACE(format_name(format));
    args.resize(7);
    args.insert(args.end(), {"--against", engine_model(format).string()});
    std::vector<std::string> both = alone;
    both.insert(both.end(),
                {"reference perplexity  " + number + R"( \(ratio [01]\.[0-9]{6}\))",
                 R"(reference size        [0-9.]+ [kMG]?B, [0-9]+\.[0-9]{2} bits a weight)",
                 "KL divergence         mean " + number + ", 99th percentile " + number + " nats",
                 R"(top token agrees      [0-9]+\.[0-9]{3} %)"});
    expect_lines(both);
  }
}

TEST(Run, PrintsPerplexityAsJson) {
  const std::string text = scratch_folder() / "predicted.txt";
  std::ofstream(text) << "the text";
  std::vector<std::string> args = {"faststream-run", "-m",  engine_model(), "--perplexity", text,
                                   "--device",       "cpu", "--json"};
  const auto members = [&] {
    const ProgramResult result = run_program(args);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(std::ranges::count(result.out, '\n'), 1);
    return nlohmann::json::parse(result.out);
  };
  const nlohmann::json alone = members();
  EXPECT_EQ(alone.at("measurement"), "perplexity");
  EXPECT_EQ(alone.at("model"), engine_model().string());
  EXPECT_EQ(alone.at("bits_a_weight"), 32);
  EXPECT_GT(alone.at("perplexity"), 1);
  EXPECT_GT(alone.at("perplexity_standard_error"), 0);
  EXPECT_GT(alone.at("tokens"), 1);
  EXPECT_GT(alone.at("scored_tokens_per_second"), 0);
  EXPECT_FALSE(alone.contains("kl_mean"));

  args.insert(args.end(), {"--against", engine_model(WeightFormat::f32).string()});
  const nlohmann::json both = members();
  EXPECT_EQ(both.at("perplexity"), alone.at("perplexity"));
  EXPECT_EQ(both.at("perplexity_ratio"), 1);
  EXPECT_EQ(both.at("kl_mean"), 0);
  EXPECT_EQ(both.at("top_token_agrees"), 1);

  std::ofstream(text) << "the";
  const nlohmann::json of_one = members();
  ASSERT_EQ(of_one.at("tokens"), 1);
  EXPECT_TRUE(of_one.at("perplexity_standard_error").is_null()) << "of one token nobody knows it";
}

TEST(Run, ListsDevicesWithoutAModel) {
  const ProgramResult lines = run_program({"faststream-run", "--list-devices"});
  EXPECT_EQ(lines.exit_code, 0) << lines.err;
  EXPECT_TRUE(std::regex_search(lines.out, std::regex(R"(^cpu     CPU \([0-9]+ threads?[^\n]*, )"
                                                      R"([0-9.]+ [kMGT]?B free\n)")))
      << lines.out;
  const ProgramResult json = run_program({"faststream-run", "--list-devices", "--json"});
  EXPECT_EQ(json.exit_code, 0) << json.err;
  const nlohmann::json cpu = nlohmann::json::parse(json.out.substr(0, json.out.find('\n')));
  EXPECT_EQ(cpu.at("device"), "cpu");
  EXPECT_TRUE(cpu.at("description").get<std::string>().starts_with("CPU (")) << cpu;
  EXPECT_GT(cpu.at("free_bytes"), 0);
  const bool has_gpu = lines.out.find("\ncuda:0  CUDA 0 (") != std::string::npos;
  EXPECT_EQ(lines.err.find("no NVIDIA GPU can be used, ") == std::string::npos, has_gpu)
      << lines.err;
}

TEST(Run, ReadsTextsWithoutAByteOrderMark) {
  REQUIRE_STORIES();
  const auto file = scratch_folder() / "mark.txt";
  const std::vector<std::string> tokenize = {"faststream-run", "-m", stories_model(), "--tokenize"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = tokenize;
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  const std::string expected = run_program(with({"-p", "Once"})).out;
  std::ofstream(file) << "\xEF\xBB\xBFOnce\n";
  EXPECT_EQ(run_program(with({"-f", file.string()})).out, expected);
  EXPECT_EQ(run_program(tokenize, "\xEF\xBB\xBFOnce").out, expected);
  std::ofstream(file) << std::string("\xFE\xFF\0O\0n", 6);
  expect_refusal(run_program(with({"-f", file.string()})), 1, "UTF-16");
}

TEST(Run, RefusesTextThatIsNotUtf8) {
  const std::string file = (scratch_folder() / "latin1.txt").string();
  std::ofstream(file) << "caf\xE9";
  for (const char* option : {"-f", "--perplexity"}) {
    const ProgramResult result = run_program({"faststream-run", "-m", "/none", option, file});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_NE(result.err.find("latin1.txt is not UTF-8 text"), std::string::npos) << result.err;
  }
}

TEST(Run, SaysWhichFileItCannotRead) {
  const auto missing = scratch_folder() / "missing.bin";
  expect_refusal(run_program({"faststream-run", "-m", missing.string(), "-p", "x"}), 1,
                 missing.string());
  const auto text = scratch_folder() / "text.bin";
  std::ofstream(text) << "This is a text.\n";
  expect_refusal(run_program({"faststream-run", "-m", text.string(), "-p", "x"}), 1, text.string());
  const auto empty = scratch_folder() / "empty.bin";
  std::ofstream(empty).flush();
  expect_refusal(run_program({"faststream-run", "-m", empty.string(), "-p", "x"}), 1,
                 empty.string());
  expect_refusal(run_program({"faststream-run", "-m", scratch_folder().string(), "-p", "x"}), 1,
                 scratch_folder().string());
  expect_refusal(run_program({"faststream-run", "-m", "x", "-f", missing.string()}), 1,
                 missing.string());
}

TEST(Run, RefusesATruncatedModelAtEverySixteenth) {
  REQUIRE_STORIES();
  const std::string whole = read_file(stories_model());
  const auto path = scratch_folder() / "truncated.bin";
  for (size_t part = 0; part < 16; ++part) {
    std::ofstream(path, std::ios::binary | std::ios::trunc)
        .write(whole.data(), static_cast<std::streamsize>(whole.size() * part / 16));
    SCOPED_TRACE(part);
    expect_refusal(run_program({"faststream-run", "-m", path.string(), "-p", "x"}), 1,
                   path.string());
  }
}

TEST(Run, RefusesFlippedBytesInHeaderAndTable) {
  REQUIRE_STORIES();
  const std::string whole = read_file(stories_model());
  const auto path = scratch_folder() / "flipped.bin";
  for (size_t at = 0; at < 4096; at += 61) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x40);
    std::ofstream(path, std::ios::binary | std::ios::trunc) << damaged;
    SCOPED_TRACE(at);
    expect_refusal(run_program({"faststream-run", "-m", path.string(), "-p", "x"}), 1,
                   path.string());
  }
}

TEST(Run, SaysThatThereIsNoGpu) {
  REQUIRE_STORIES();
  if (cuda_device_count() > 0) GTEST_SKIP() << "this machine has a GPU";
  expect_refusal(
      run_program({"faststream-run", "-m", stories_model(), "-p", "x", "--device", "cuda"}), 1,
      "GPU");
}

TEST(Run, FallsBackToTheCpuAndSaysSo) {
  REQUIRE_STORIES();
  if (cuda_device_count() > 0) GTEST_SKIP() << "this machine has a GPU";
  const ProgramResult result =
      run_program({"faststream-run", "-m", stories_model(), "-p", "x", "-n", "1"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err.rfind("device: CPU", 0), 0U) << result.err;
}

TEST(Run, SaysThatStandardOutputIsFull) {
  REQUIRE_STORIES();
  const std::string command = programs_folder() + "/faststream-run -m " + stories_model() +
                              " -p x -n 5 --device cpu > /dev/full 2> " +
                              (scratch_folder() / "full.txt").string();
  const int status = std::system(command.c_str());  // NOLINT(cert-env33-c): the shell redirects
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_NE(read_file(scratch_folder() / "full.txt").find("standard output"), std::string::npos);
}

TEST(Run, TeachesInItsHelp) {
  for (const char* program : {"faststream-run", "faststream-convert", "faststream-bench"}) {
    const ProgramResult result = run_program({program, "--help"});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_NE(result.out.find("Examples:"), std::string::npos) << program;
    EXPECT_EQ(result.err, "");
  }
}

// A child process with pipes on standard input and output.
class Child {
 public:
  explicit Child(const std::vector<std::string>& args) {
    std::array<int, 2> in{};
    std::array<int, 2> out{};
    if (pipe2(in.data(), O_CLOEXEC) != 0 || pipe2(out.data(), O_CLOEXEC) != 0) {
      throw std::runtime_error("no pipes");
    }
    pid_ = fork();
    if (pid_ == 0) {
      std::signal(SIGINT, SIG_DFL);  // whatever the test inherited
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      const std::string program = programs_folder() + "/" + args[0];
      std::vector<char*> argv;
      for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
      argv.push_back(nullptr);
      execv(program.c_str(), argv.data());
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    in_ = in[1];
    out_ = out[0];
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    close(in_);
    close(out_);
  }

  void close_input() {
    close(in_);
    in_ = -1;
  }
  std::string read_some() {
    std::array<char, 4096> buffer{};
    const ssize_t n = read(out_, buffer.data(), buffer.size());
    return {buffer.data(), static_cast<size_t>(std::max<ssize_t>(n, 0))};
  }
  // As these programs do only for input, or the other end of a FIFO, before they load a model.
  void wait_until_it_waits() const {
    const std::string process = "/proc/" + std::to_string(pid_);
    for (char state = 0; state != 'S' && state != 'Z'; std::this_thread::yield()) {
      const std::string status = read_file(process + "/stat");
      state = status.at(status.rfind(')') + 2);
    }
  }
  void interrupt() const { kill(pid_, SIGINT); }
  int wait() {
    std::string rest;
    while (!(rest = read_some()).empty()) text_ += rest;
    int status = 0;
    waitpid(pid_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  pid_t pid_ = 0;
  int in_ = -1;
  int out_ = -1;
  std::string text_;
};

TEST(Run, EndsItsTextCleanlyOnCtrlC) {
  REQUIRE_STORIES();
  Child child(
      {"faststream-run", "-m", stories_model(), "-p", "Once", "--ignore-eos", "--device", "cpu"});
  EXPECT_NE(child.read_some(), "");
  child.interrupt();
  EXPECT_EQ(child.wait(), 130);
  EXPECT_TRUE(child.text().ends_with('\n'));
}

TEST(Run, EndsOnCtrlCWhileItWaitsForThePrompt) {
  REQUIRE_STORIES();
  Child child({"faststream-run", "-m", stories_model(), "--device", "cpu"});
  child.wait_until_it_waits();
  child.interrupt();
  EXPECT_EQ(child.wait(), 130);
  EXPECT_EQ(child.text(), "");
}

TEST(Run, EndsOnCtrlCWhileItWaitsForTheOtherEndOfAFifo) {
  REQUIRE_STORIES();
  const std::string fifo = (scratch_folder() / "fifo").string();
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const std::string lines = (scratch_folder() / "lines.txt").string();
  std::ofstream(lines) << "Once\n";
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"-f", fifo}, {"--batch", fifo}, {"--batch", lines, "-o", fifo}}) {
    std::vector<std::string> args = {"faststream-run", "-m", stories_model(), "--device", "cpu"};
    args.insert(args.end(), more.begin(), more.end());
    Child child(args);
    child.wait_until_it_waits();
    child.interrupt();
    EXPECT_EQ(child.wait(), 130) << more.front();
  }
}

TEST(Run, EndsOnCtrlCWhileItPrintsTokens) {
  REQUIRE_STORIES();
  const std::string text = (scratch_folder() / "long.txt").string();
  std::ofstream(text) << std::string(1 << 20, 'q');
  Child child({"faststream-run", "-m", stories_model(), "-f", text, "--tokenize"});
  EXPECT_NE(child.read_some(), "");
  child.interrupt();
  EXPECT_EQ(child.wait(), 130);
  EXPECT_FALSE(child.text().ends_with("]\n"));
}

}  // namespace
}  // namespace faststream
