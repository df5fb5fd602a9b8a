// Beam searches as a user asks for them.

#include "batch_program.h"

namespace faststream {
namespace {

std::vector<std::string> beam_args(const std::vector<std::string>& more) {
  std::vector<std::string> args = {"faststream-run", "-m",  demo_model(), "-p", "Tom and Anna",
                                   "--device",       "cpu", "-n",         "12"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

TEST(Beams, GiveThePromptItsBestText) {
  const ProgramResult result = run_program(beam_args({"--beams", "4", "--stats"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("score:      -"), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("seed:"), std::string::npos) << result.err;
  const ProgramResult batch = run_batch("-", {"--beams", "4"}, "Tom and Anna\n");
  const json record = records(batch.out).at(0);
  EXPECT_EQ(record.at("text").get<std::string>() + "\n", result.out);
  const std::string score = std::to_string(record.at("score").get<double>());
  EXPECT_NE(result.err.find(score), std::string::npos) << result.err;
}

TEST(Beams, OfALineReturnTheBestTextsWithTheirScores) {
  const ProgramResult result = run_batch(
      "-", {},
      R"({"prompt":"The cat","beams":4,"n":3,"length_penalty":0.6,"early_stopping":true,"logprobs":0})"
      "\n"
      R"({"custom_id":"c","body":{"prompt":"The cat","beams":4,"beam_groups":2,"diversity_penalty":1,"early_stopping":"never"}})"
      "\n"
      R"({"prompt":"The cat"})"
      "\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::vector<json> all = records(result.out);
  ASSERT_EQ(all.size(), 3U);
  const json& choices = all[0].at("choices");
  ASSERT_EQ(choices.size(), 3U);
  double last = 0;
  for (const json& choice : choices) {
    EXPECT_LE(choice.at("score"), last);
    last = choice.at("score");
    EXPECT_EQ(choice.at("logprobs").size(), choice.at("completion_tokens").get<size_t>());
  }
  EXPECT_TRUE(all[1].contains("score"));
  EXPECT_FALSE(all[2].contains("score"));
}

TEST(Beams, GoOnWithTheSameResultsAfterABreak) {
  std::string lines;
  for (int i = 0; i < 20; ++i) {
    lines += json{{"prompt", "Tom has " + std::to_string(i)}, {"beams", 2 + i % 3}}.dump() + "\n";
  }
  const fs::path input = file_with("beams.jsonl", lines);
  const std::string output = new_output("beams-out.jsonl");
  const std::string whole = run_batch(input.string(), {"-o", output}).err;
  const std::string text = read_file(output);
  ASSERT_EQ(split(text).size(), 20U) << whole;
  std::ofstream(output, std::ios::binary) << text.substr(0, text.size() / 2);
  const ProgramResult resumed = run_batch(input.string(), {"-o", output, "--resume"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  std::vector<json> expected = records(text);
  std::vector<json> actual = records(read_file(output));
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    // The last digit of a score may be another in another batch, as that of a log-probability.
    EXPECT_NEAR(actual[i].at("score"), expected[i].at("score"), 2e-6);
    actual[i].erase("score");
    expected[i].erase("score");
    EXPECT_EQ(actual[i], expected[i]);
  }
}

TEST(Beams, SayWhatIsWrongWithALine) {
  const ProgramResult result = run_batch("-", {"--beams", "3"},
                                         R"({"prompt":"x","temperature":0.5})"
                                         "\n"
                                         R"({"prompt":"x","temperature":0.5,"beams":1})"
                                         "\n"
                                         R"({"prompt":"x","n":4})"
                                         "\n"
                                         R"({"prompt":"x","early_stopping":"now"})"
                                         "\n"
                                         R"({"prompt":"x","beams":0})"
                                         "\n"
                                         R"({"prompt":"x","beams":1,"length_penalty":2})"
                                         "\n");
  const std::vector<json> all = records(result.out);
  ASSERT_EQ(all.size(), 6U);
  const auto error = [&](size_t i) { return all[i].value("error", std::string()); };
  EXPECT_EQ(error(0), "");
  EXPECT_EQ(error(1), "");
  EXPECT_NE(error(2).find("cannot return 4 texts"), std::string::npos);
  EXPECT_NE(error(3).find("early_stopping"), std::string::npos);
  EXPECT_NE(error(4).find("beams"), std::string::npos);
  EXPECT_EQ(error(5), "");
}

TEST(Beams, TellOnceOfKeysThatHaveNoEffect) {
  std::string lines;
  for (int i = 0; i < 3; ++i)
    lines += R"({"prompt":"x","temperature":0,"best_of":1})"
             "\n";
  const ProgramResult result = run_batch("-", {"--beams", "3"}, lines);
  EXPECT_EQ(result.exit_code, 0);
  for (const json& record : records(result.out)) EXPECT_TRUE(record.contains("score")) << record;
  const std::string told = "line 1: \"temperature\" has no effect with beams";
  EXPECT_NE(result.err.find(told), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("line 2"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("3 lines done, 0 failed"), std::string::npos) << result.err;
}

TEST(Beams, TellOfOptionsThatHaveNoEffect) {
  const std::string expected = run_program(beam_args({"--beams", "4"})).out;
  const ProgramResult with_draws =
      run_program(beam_args({"--beams", "4", "--temp", "0.5", "--seed", "1"}));
  EXPECT_EQ(with_draws.exit_code, 0);
  EXPECT_EQ(with_draws.out, expected);
  EXPECT_EQ(with_draws.err,
            "--temp has no effect with beams, which draw nothing\n"
            "--seed has no effect with beams, which draw nothing\n");
  const ProgramResult with_search = run_program(
      beam_args({"--length-penalty", "2", "--beam-groups", "2", "--diversity-penalty", "1"}));
  EXPECT_EQ(with_search.exit_code, 0);
  EXPECT_EQ(with_search.err,
            "--length-penalty has no effect without beams, 2 or more\n"
            "--beam-groups has no effect without beams, 2 or more\n"
            "--diversity-penalty has no effect without groups of beams\n");
}

TEST(Prompt, TellsOfOptionsThatOtherOptionsLeaveWithoutEffect) {
  EXPECT_EQ(run_program(beam_args({"--temp", "0", "--top-k", "3", "--seed", "1"})).err,
            "--top-k has no effect at temperature 0, which draws nothing\n"
            "--seed has no effect at temperature 0, which draws nothing\n");
  EXPECT_EQ(run_program(beam_args({"--min-tokens", "1000"})).err,
            "--min-tokens has no effect beyond the limit of tokens, which is lower\n");
}

TEST(Beams, RefuseValuesThatMakeNoSense) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--beams", "4", "--early-stopping", "now"}, "--early-stopping: \"now\" is not true"},
      {{"--beams", "4", "--beam-groups", "3"}, "4 beams do not make 3 groups of equal size"},
      {{"--beams", "0"}, "--beams"},
      {{"--beams", "129"}, "--beams: \"129\" is not a whole number from 1 to 128"},
      {{"--beams", "4", "--length-penalty", "nan"}, "--length-penalty"},
      {{"--no-repeat-ngram", "-1"}, "--no-repeat-ngram"},
      {{"--min-tokens", "-1"}, "--min-tokens"}};
  for (const auto& [options, words] : cases) {
    SCOPED_TRACE(testing::PrintToString(options));
    expect_refusal(run_program(beam_args(options)), 2, words);
  }
}

TEST(Beams, NeedRoomForATokenEach) {
  expect_refusal(run_program(beam_args({"--beams", "4", "--kv-tokens", "96"})), 1,
                 "no room for 4 beams");
  const ProgramResult result = run_program(beam_args({"--beams", "4", "--kv-tokens", "128"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, run_program(beam_args({"--beams", "4"})).out);
}

TEST(Beams, AnswerInAChat) {
  const auto answer = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = beam_args({"--chat", "--chat-template", "plain"});
    args.insert(args.end(), more.begin(), more.end());
    return run_program(args);
  };
  const ProgramResult first = answer({"--beams", "3"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(answer({"--beams", "3"}).out, first.out);
  EXPECT_NE(first.out, "\n");
}

}  // namespace
}  // namespace faststream
