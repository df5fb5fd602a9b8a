// --speculate changes how fast texts come, and nothing of what programs print.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/batch_program.h"

namespace faststream {
namespace {

std::string printed(std::vector<std::string> args, const std::string& how,
                    const std::string& input = "") {
  args.insert(args.begin(), {"faststream-run", "-m", demo_model(), "--device", "cpu"});
  args.insert(args.end(), {"--speculate", how});
  const ProgramResult result = run_program(args, input);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_GT(result.out.size(), 20U);
  return result.out;
}

std::vector<std::string> ways() { return {"auto", "lookup", "draft=" + demo_model()}; }

TEST(Speculate, ChangesNoTextOfAPrompt) {
  const std::string repeated =
      "The cat sat on the mat. The cat sat on the mat. The cat sat on the mat. The cat";
  for (const std::string temperature : {"0", "0.7"}) {
    const std::vector<std::string> args = {"-p",        repeated, "-n", "80",          "--temp",
                                           temperature, "--seed", "3",  "--ignore-eos"};
    const std::string expected = printed(args, "off");
    for (const std::string& how : ways()) EXPECT_EQ(printed(args, how), expected) << how;
  }
}

TEST(Speculate, ChangesNoLineOfABatch) {
  std::string lines;
  for (int i = 0; i < 12; ++i) {
    lines += R"({"prompt": "One day, one day, one day", "max_tokens": 30, "seed": )" +
             std::to_string(i) + (i % 2 == 0 ? R"(, "temperature": 0})" : "}") + "\n";
  }
  const std::vector<std::string> args = {"--batch", "-", "--slots", "4"};
  const std::string expected = printed(args, "off", lines);
  for (const std::string& how : ways()) EXPECT_EQ(printed(args, how, lines), expected) << how;
}

TEST(Speculate, ChangesNoAnswerOfAChat) {
  const std::vector<std::string> args = {"--chat", "-p", "Tell me of a dog.", "-n", "40",
                                         "--seed", "2"};
  const std::string expected = printed(args, "off");
  for (const std::string& how : ways()) EXPECT_EQ(printed(args, how), expected) << how;
}

TEST(Speculate, RefusesWhatCannotPropose) {
  const auto refusal = [](const std::string& how, int exit_code) {
    const ProgramResult result =
        run_program({"faststream-run", "-m", demo_model(), "-p", "One", "--speculate", how});
    EXPECT_EQ(result.exit_code, exit_code);
    return result.err;
  };
  EXPECT_NE(refusal("guess", 2).find("\"guess\" is no way to speculate"), std::string::npos);
  EXPECT_NE(refusal("draft=", 2).find("is no way to speculate"), std::string::npos);
  EXPECT_NE(refusal("draft=nothing.bin", 1).find("nothing.bin: there is no such file"),
            std::string::npos);
  EXPECT_NE(refusal("mtp", 1).find("has no heads that predict further tokens"), std::string::npos);
}

}  // namespace
}  // namespace faststream
