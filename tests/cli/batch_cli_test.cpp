// faststream-run --batch: what it reads and what it writes.

#include <sys/resource.h>

#include <chrono>
#include <string_view>
#include <thread>

#include "batch_program.h"
#include "pseudo_terminal.h"

namespace faststream {
namespace {

TEST(Batch, AnswersLinesInTheirOrder) {
  const fs::path input = file_with("order.jsonl", many_lines(60));
  const ProgramResult result = run_batch(input.string());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::vector<json> all = records(result.out);
  ASSERT_EQ(all.size(), 60U);
  uint64_t last = 0;
  for (size_t i = 1; i <= all.size(); ++i) {
    const json& record = all[i - 1];
    EXPECT_GT(record.at("line"), last);
    last = record.at("line");
    const std::string number = std::to_string(i);
    const json expected_id = i % 3 == 0   ? json("request-" + number)
                             : i % 3 == 1 ? json("own-" + number)
                                          : record.at("line");
    EXPECT_EQ(record.at("id"), expected_id);
    EXPECT_EQ(record.contains("error"), i % 11 == 0) << record;
    EXPECT_EQ(record.contains("choices"), i % 5 == 0 && i % 11 != 0) << record;
    if (record.contains("text")) {
      EXPECT_LE(record.at("completion_tokens"), 4 + i * 7 % 13);
      EXPECT_NE(record.at("finish_reason"), "cancelled");
    }
  }
  EXPECT_NE(result.err.find("batch: 60 lines done, 5 failed, "), std::string::npos) << result.err;
  EXPECT_EQ(split(result.err).size(), 1U) << result.err;
}

TEST(Batch, SaysHowItWasComputedWhereAsked) {
  const fs::path input = file_with("stats.jsonl", many_lines(3));
  const ProgramResult result = run_batch(input.string(), {"--stats"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, run_batch(input.string()).out);
  for (const char* label :
       {"batch: 3 lines done", "device:     CPU", "load:", "steps:", "memory:"}) {
    EXPECT_NE(result.err.find(label), std::string::npos) << label << "\n" << result.err;
  }
}

TEST(Batch, GivesTheSameUnorderedAndInAnyNumberOfSlots) {
  const fs::path input = file_with("unordered.jsonl", many_lines(40));
  const std::string ordered = run_batch(input.string()).out;
  EXPECT_EQ(split(ordered).size(), 40U);
  EXPECT_EQ(sorted(run_batch(input.string(), {"--unordered"}).out), sorted(ordered));
  EXPECT_EQ(run_batch(input.string(), {"--slots", "1"}).out, ordered);
}

TEST(Batch, GivesInPartsWhatItGivesAsAWhole) {
  const fs::path input = file_with("parts.jsonl", "\n" + many_lines(7) + "\n\n");
  const std::string whole = run_batch(input.string()).out;
  ASSERT_EQ(split(whole).size(), 7U);
  for (const int count : {1, 2, 10}) {
    std::string together;
    for (int k = 1; k <= count; ++k) {
      const std::string part = std::to_string(k) + "/" + std::to_string(count);
      const ProgramResult result = run_batch(input.string(), {"--part", part});
      EXPECT_EQ(result.exit_code, 0) << result.err;
      together += result.out;
    }
    EXPECT_EQ(together, whole) << count;
  }
}

TEST(Batch, ResumesAPartAlone) {
  const fs::path input = file_with("resumed-part.jsonl", many_lines(12));
  const std::string output = new_output("resumed-part.out");
  const auto run_part = [&](const std::string& part) {
    return run_batch(input.string(), {"-o", output, "--resume", "--part", part});
  };
  EXPECT_EQ(run_part("2/3").exit_code, 0);
  const std::string all = read_file(output);
  ASSERT_GT(split(all).size(), 2U);
  std::ofstream(output, std::ios::binary) << all.substr(0, all.size() - 30);
  EXPECT_EQ(run_part("2/3").exit_code, 0);
  EXPECT_EQ(read_file(output), all);
  const ProgramResult other = run_part("1/3");
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_NE(other.err.find("which is in another part of the input"), std::string::npos)
      << other.err;
  EXPECT_EQ(read_file(output), all);
}

TEST(Batch, TakesPartsOfFilesAlone) {
  const fs::path input = file_with("parts.jsonl", many_lines(3));
  for (const char* part :
       {"", "0/2", "3/2", "1", "1/", "/2", "1/2/3", "-1/2", "1/2000000", "a/b"}) {
    const ProgramResult result = run_batch(input.string(), {"--part", part});
    EXPECT_EQ(result.exit_code, 2) << part;
    EXPECT_NE(result.err.find("is not a part K/N"), std::string::npos) << result.err;
  }
  const ProgramResult piped = run_batch("/dev/null", {"--part", "1/2"});
  EXPECT_EQ(piped.exit_code, 2);
  EXPECT_NE(piped.err.find("--part is of a file"), std::string::npos) << piped.err;
}

TEST(Batch, DoesNotLetALongAnswerHoldBackOthersIfUnordered) {
  const ProgramResult result = run_batch("-", {"--unordered", "--slots", "2", "--ignore-eos"},
                                         "{\"prompt\":\"a\",\"max_tokens\":200}\n"
                                         "{\"prompt\":\"b\",\"max_tokens\":1}\n");
  ASSERT_EQ(split(result.out).size(), 2U) << result.err;
  EXPECT_EQ(records(result.out)[0].at("line"), 2);
}

TEST(Batch, ReadsPromptsFromStandardInput) {
  const ProgramResult result =
      run_batch("-", {}, "Tom and Anna\n\n  \nThe {cat}\r\n{\"prompt\":1}");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::vector<json> all = records(result.out);
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0].at("id"), 1);
  EXPECT_EQ(all[1].at("id"), 4);
  EXPECT_EQ(all[2].at("id"), 5);
  for (const json& record : all) EXPECT_TRUE(record.contains("text")) << record;
}

TEST(Batch, DrawsNoProgressBetweenResultsOnATerminal) {
  PseudoTerminal terminal({"faststream-run", "-m", demo_model(), "--batch", "-", "-n", "3"});
  ASSERT_TRUE(terminal.expect("device: "));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // in which it would be drawn
  terminal.send("the\r\x04");
  EXPECT_TRUE(terminal.expect("\n{\"id\":1,"));
  EXPECT_EQ(terminal.wait(), 0);
  EXPECT_EQ(terminal.output().find("batch 0 lines"), std::string::npos) << terminal.output();
}

TEST(Batch, CanRepeatALineAloneByItsSeed) {
  const ProgramResult result = run_batch("-", {}, "One day\nOne day\n");
  const std::vector<json> all = records(result.out);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_NE(all[0].at("seed"), all[1].at("seed"));
  for (const json& record : all) {
    const ProgramResult alone =
        run_program({"faststream-run", "-m", demo_model(), "-p", "One day", "-n", "12", "--device",
                     "cpu", "--seed", std::to_string(record.at("seed").get<uint64_t>())});
    EXPECT_EQ(alone.out, record.at("text").get<std::string>() + "\n");
  }
}

TEST(Batch, GivesLogProbabilitiesOnRequest) {
  const ProgramResult result = run_batch(
      "-", {"--logprobs", "2", "--temp", "0"},
      "{\"prompt\":\"One\",\"max_tokens\":3}\n{\"prompt\":\"One\",\"logprobs\":0,\"n\":2}\n");
  const std::vector<json> all = records(result.out);
  ASSERT_EQ(all.size(), 2U) << result.err;
  const json& positions = all[0].at("logprobs");
  ASSERT_EQ(positions.size(), all[0].at("completion_tokens"));
  for (const json& position : positions) {
    ASSERT_EQ(position.at("top").size(), 2U);
    EXPECT_EQ(position.at("top")[0].at("token"), position.at("token"));  // greedy
    EXPECT_LE(position.at("logprob"), 0);
  }
  for (const json& choice : all[1].at("choices")) {
    EXPECT_EQ(choice.at("logprobs").size(), choice.at("completion_tokens"));
  }
}

TEST(Batch, WritesAnErrorForABadLineAndGoesOn) {
  const std::string input =
      "{\"prompt\":\"a\",\"max_tokens\":2}\n"
      "{not JSON\n"
      "{\"id\":\"x\",\"prompt\":\"a\",\"temperature\":-1}\n"  // the engine's to refuse
      "{\"id\":\"y\",\"prompt\":[1,2,99999999]}\n"
      "{\"id\":\"z\",\"prompt\":\"" +
      std::string(100'000, 'a') +
      "\"}\n"
      "{\"prompt\":\"a\",\"max_tokens\":2}\n";
  const ProgramResult result = run_batch("-", {}, input);
  EXPECT_EQ(result.exit_code, 0);
  const std::vector<json> all = records(result.out);
  ASSERT_EQ(all.size(), 6U);
  const auto error = [&](size_t i) { return all[i].at("error").get<std::string>(); };
  EXPECT_TRUE(all[0].contains("text"));
  EXPECT_NE(error(1).find("JSON"), std::string::npos);
  EXPECT_EQ(all[1].at("id"), 2);
  EXPECT_NE(error(2).find("temperature"), std::string::npos);
  EXPECT_EQ(all[2].at("id"), "x");
  EXPECT_NE(error(3).find("99999999"), std::string::npos);
  EXPECT_NE(error(4).find("context"), std::string::npos);
  EXPECT_TRUE(all[5].contains("text"));
  EXPECT_NE(result.err.find("6 lines done, 4 failed"), std::string::npos) << result.err;
}

TEST(Batch, CountsLinesThatFillTheContextAsFailed) {
  const ProgramResult result = run_batch("-", {"--kv-tokens", "1"}, "a\nb\n");
  EXPECT_NE(result.err.find("2 lines done, 2 failed"), std::string::npos) << result.err;
  for (const json& record : records(result.out)) {
    EXPECT_NE(record.value("error", "").find("context"), std::string::npos) << record;
  }
}

TEST(Batch, PassesOverALineThatIsTooLong) {
  const fs::path input =
      file_with("long.txt", "One\n" + std::string((64 << 20) + 1, 'x') + "\nTwo\n");
  const ProgramResult result = run_batch(input.string());
  fs::remove(input);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::vector<json> all = records(result.out);
  ASSERT_EQ(all.size(), 3U);
  EXPECT_TRUE(all[0].contains("text"));
  EXPECT_NE(all[1].at("error").get<std::string>().find("64 MB"), std::string::npos);
  EXPECT_TRUE(all[2].contains("text"));
}

TEST(Batch, EndsAtTheFirstBadLineIfStrict) {
  const std::string good = "{\"prompt\":\"a\",\"max_tokens\":30}\n";
  for (const char* bad : {"{bad\n", "{\"prompt\":\"a\",\"top_p\":7}\n"}) {
    const ProgramResult result = run_batch("-", {"--strict"}, good + good + bad + good);
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_EQ(records(result.out).size(), 2U);
    EXPECT_NE(result.err.find("line 3"), std::string::npos) << result.err;
  }
}

TEST(Batch, RefusesAnOutputWithResults) {
  const fs::path output = file_with("existing.jsonl", "{\"line\":1}\n");
  expect_refusal(run_batch("-", {"-o", output.string()}, "One\n"), 1, "--resume");
  EXPECT_EQ(read_file(output), "{\"line\":1}\n");
}

TEST(Batch, RefusesWhatMakesNoSense) {
  expect_refusal(run_batch("-", {"--resume"}), 2, "--output");
  expect_refusal(run_batch("-", {"-p", "x"}), 2, "--batch");
  expect_refusal(run_batch("-", {"--tokenize"}), 2, "--batch");
  expect_refusal(run_batch("-", {"--logprobs", "21"}), 2, "--logprobs");
  expect_refusal(run_batch("-", {"--top-p", "7"}), 2, "top-p");
  expect_refusal(run_program({"faststream-run", "-m", demo_model(), "-p", "x", "--resume"}), 2,
                 "--output");
  expect_refusal(run_batch("/nowhere/in.txt"), 1, "/nowhere/in.txt");
  expect_refusal(run_batch(scratch_folder().string()), 1, "folder");
  expect_refusal(run_batch("-", {"-o", "/nowhere/out.jsonl"}), 1, "/nowhere/out.jsonl");
}

TEST(Batch, SaysThatTheOutputIsFull) {
  const fs::path input = file_with("full.jsonl", many_lines(400));
  const ProgramResult result = run_batch(input.string(), {"-o", "/dev/full"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "");
  const std::vector<std::string> lines = split(result.err);
  ASSERT_EQ(lines.size(), 1U) << result.err;
  EXPECT_NE(lines[0].find("/dev/full cannot be written"), std::string::npos) << result.err;
}

// A limit of a resource, for the programs that are started while it lives.
class Limit {
 public:
  Limit(int resource, rlim_t bytes) : resource_(resource) {
    getrlimit(resource_, &before_);
    const rlimit limited = {.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    setrlimit(resource_, &limited);
  }
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;
  ~Limit() { setrlimit(resource_, &before_); }

 private:
  int resource_;
  rlimit before_ = {};
};

TEST(Batch, SaysWhatEndedItAndThenHowItGoesOn) {
  const fs::path input = file_with("too-large.jsonl", many_lines(100));
  const std::string output = new_output("too-large-output.jsonl");
  demo_model();  // written before there is a limit
  const ProgramResult result = [&] {
    const Limit limit(RLIMIT_FSIZE, 4096);
    return run_batch(input.string(), {"-o", output});
  }();
  EXPECT_EQ(result.exit_code, 1);
  const std::vector<std::string> lines = split(result.err);
  ASSERT_EQ(lines.size(), 2U) << result.err;
  EXPECT_TRUE(lines[0].starts_with("batch interrupted: ")) << result.err;
  EXPECT_EQ(lines[1], "faststream-run: " + output +
                          " cannot be written: File too large; the same command with --resume "
                          "goes on from here");
  EXPECT_EQ(run_batch(input.string(), {"-o", output, "--resume"}).exit_code, 0);
  EXPECT_EQ(records(read_file(output)).size(), 100U);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(__clang__)
// Sanitizers need more addresses than any limit leaves.
TEST(Batch, AdvisesAContextThatFitsIntoLimitedAddresses) {
  const fs::path input = file_with("limited.txt", "Tom and Anna\nOnce upon a time\n");
  demo_model();  // written before there is a limit
  const auto run_within = [&](rlim_t megabytes, const std::string& context) {
    const Limit limit(RLIMIT_AS, megabytes << 20);
    return run_batch(input.string(), {"-t", "2", "--slots", "2", "--context", context});
  };
  rlim_t too_few = 64;
  rlim_t enough = 1024;
  ASSERT_EQ(run_within(enough, "1024").exit_code, 0);
  while (enough - too_few > 1) {
    const rlim_t between = (too_few + enough) / 2;
    (run_within(between, "1024").exit_code == 0 ? enough : too_few) = between;
  }
  for (rlim_t megabytes = enough - 4; megabytes < enough; ++megabytes) {
    const std::string refusal = run_within(megabytes, "1024").err;
    constexpr std::string_view kAdvice = "give a smaller --context, up to ";
    const size_t advice = refusal.find(kAdvice);
    ASSERT_NE(advice, std::string::npos) << refusal;
    const std::string fits = std::to_string(std::stoi(refusal.substr(advice + kAdvice.size())));
    const ProgramResult result = run_within(megabytes, fits);
    EXPECT_EQ(result.exit_code, 0) << megabytes << " MiB, " << fits << " tokens: " << result.err;
    EXPECT_EQ(result.out.find("\"error\""), std::string::npos) << result.out;
  }
}
#endif

TEST(Batch, SaysThatALineIsNotUtf8AndAnswersTheOthers) {
  const std::vector<json> results = records(run_batch("-", {}, "a\nb\xFF\nc\n").out);
  ASSERT_EQ(results.size(), 3U);
  EXPECT_EQ(results[1].value("error", ""), "the line is not UTF-8 text");
  EXPECT_TRUE(results[0].contains("text") && results[2].contains("text"));
}

TEST(Batch, LooksAtTheInputsFormatBeforeItLoadsTheModel) {
  const fs::path input = file_with("array.json", "[{\"prompt\": \"a\"}]\n");
  const std::string no_model = file_with("no_model.bin", "none").string();
  expect_refusal(run_program({"faststream-run", "-m", no_model, "--batch", input.string()}), 1,
                 "is a JSON array");
}

TEST(Batch, AnswersNothingOfWhatAreNoLines) {
  expect_refusal(run_batch("-", {}, "[\n  {\"prompt\": \"a\"},\n  {\"prompt\": \"b\"}\n]\n"), 1,
                 "standard input is a JSON array");
  expect_refusal(run_batch("-", {}, "{\n  \"prompt\": \"a\"\n}\n"), 1,
                 "does not end with its line");
  expect_refusal(run_batch("-", {}, std::string("\xFF\xFEH\0i\0\n\0", 8)), 1, "UTF-16");
}

TEST(Batch, PassesOverAByteOrderMark) {
  const ProgramResult marked = run_batch("-", {}, "\xEF\xBB\xBFOne day\n");
  EXPECT_EQ(marked.out, run_batch("-", {}, "One day\n").out);
  EXPECT_EQ(records(marked.out).size(), 1U);
}

TEST(Batch, MakesAnEmptyOutputOfAnEmptyInput) {
  const std::string output = new_output("empty.jsonl");
  const ProgramResult result = run_batch("-", {"-o", output}, "\n\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(read_file(output), "");
}

}  // namespace
}  // namespace faststream
