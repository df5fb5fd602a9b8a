// faststream-run --batch as a user starts it, with the bundled model.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <thread>

#include "run_program.h"
#include "stories.h"

namespace faststream {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// demo/ converted by faststream-convert, once a process. In f32, where a text cannot depend on what
// ran beside it: between products of few and of many rows there are only the last bits of a float,
// while bf16 rounds some of those up to a difference of 2^-8.
std::string demo_model() {
  const fs::path path = scratch_folder() / "demo.bin";
  if (!fs::exists(path)) {
    const char* tests = std::getenv("FASTSTREAM_TEST_DATA");
    if (tests == nullptr) throw std::runtime_error("FASTSTREAM_TEST_DATA is not set");
    const ProgramResult result =
        run_program({"faststream-convert", (fs::path(tests).parent_path() / "demo").string(), "-o",
                     path.string(), "--dtype", "f32", "--quiet"});
    if (result.exit_code != 0) throw std::runtime_error(result.err);
  }
  return path.string();
}

fs::path file_with(const std::string& name, const std::string& text) {
  fs::path path = scratch_folder() / name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

std::string new_output(const std::string& name) {
  const fs::path path = scratch_folder() / name;
  fs::remove(path);
  return path.string();
}

std::vector<std::string> batch_args(const std::string& input,
                                    const std::vector<std::string>& more) {
  std::vector<std::string> args = {
      "faststream-run", "-m", demo_model(), "--batch", input, "--device", "cpu",
      "--seed",         "5",  "-n",         "12"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

ProgramResult run_batch(const std::string& input, const std::vector<std::string>& more = {},
                        const std::string& stdin_text = "") {
  return run_program(batch_args(input, more), stdin_text);
}

// Lines of an input, each with its own prompt, kind and length.
std::string many_lines(size_t count) {
  std::string text;
  for (size_t i = 1; i <= count; ++i) {
    json line = {{"prompt", "Tom has " + std::to_string(i) + " apples. "},
                 {"max_tokens", 4 + i * 7 % 13}};
    if (i % 5 == 0) line["n"] = 2;
    if (i % 11 == 0) line["topk"] = 1;  // an error
    if (i % 3 == 0) {
      line = {{"custom_id", "request-" + std::to_string(i)}, {"body", line}};
    } else if (i % 3 == 1) {
      line["id"] = "own-" + std::to_string(i);
    }
    text += line.dump() + '\n';
    if (i % 17 == 0) text += '\n';
  }
  return text;
}

std::vector<std::string> split(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::vector<json> records(const std::string& text) {
  std::vector<json> all;
  for (const std::string& line : split(text)) all.push_back(json::parse(line));
  return all;
}

std::vector<std::string> sorted(const std::string& text) {
  std::vector<std::string> lines = split(text);
  std::sort(lines.begin(), lines.end());
  return lines;
}

void expect_refusal(const ProgramResult& result, int exit_code, const std::string& mentions) {
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_NE(result.err.find(mentions), std::string::npos) << result.err;
}

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

TEST(Batch, GivesTheSameUnorderedAndInAnyNumberOfSlots) {
  const fs::path input = file_with("unordered.jsonl", many_lines(40));
  const std::string ordered = run_batch(input.string()).out;
  EXPECT_EQ(split(ordered).size(), 40U);
  EXPECT_EQ(sorted(run_batch(input.string(), {"--unordered"}).out), sorted(ordered));
  EXPECT_EQ(run_batch(input.string(), {"--slots", "1"}).out, ordered);
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
  EXPECT_FALSE(all[1].contains("id"));
  EXPECT_NE(error(2).find("temperature"), std::string::npos);
  EXPECT_EQ(all[2].at("id"), "x");
  EXPECT_NE(error(3).find("99999999"), std::string::npos);
  EXPECT_NE(error(4).find("context"), std::string::npos);
  EXPECT_TRUE(all[5].contains("text"));
  EXPECT_NE(result.err.find("6 lines done, 4 failed"), std::string::npos) << result.err;
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
  expect_refusal(run_program({"faststream-run", "-m", demo_model(), "-p", "x", "--strict"}), 2,
                 "--batch");
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
  ASSERT_EQ(lines.size(), 2U) << result.err;
  EXPECT_TRUE(lines[0].starts_with("batch: 0 lines done")) << result.err;
  EXPECT_NE(lines[1].find("/dev/full cannot be written"), std::string::npos) << result.err;
}

TEST(Batch, MakesAnEmptyOutputOfAnEmptyInput) {
  const std::string output = new_output("empty.jsonl");
  const ProgramResult result = run_batch("-", {"-o", output}, "\n\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(read_file(output), "");
}

// Ended runs. -------------------------------------------------------------------------------------

// A batch from a file to a file that runs in the background.
class BackgroundBatch {
 public:
  BackgroundBatch(const std::string& input, const std::vector<std::string>& more)
      : BackgroundBatch(input, more, STDIN_FILENO) {}
  BackgroundBatch(const std::string& input, const std::vector<std::string>& more,
                  int standard_input)
      : null_(open("/dev/null", O_WRONLY | O_CLOEXEC)),
        pid_(start_program(batch_args(input, more), standard_input, null_, null_)) {}
  BackgroundBatch(const BackgroundBatch&) = delete;
  BackgroundBatch& operator=(const BackgroundBatch&) = delete;
  ~BackgroundBatch() {
    if (pid_ != 0) end(SIGKILL);
    close(null_);
  }

  // Waits until `output` has at least so many bytes, or the program has ended.
  void wait_for_bytes(const std::string& output, uintmax_t bytes) const {
    std::error_code ignored;
    while (fs::exists(output) ? fs::file_size(output, ignored) < bytes : true) {
      siginfo_t info = {};
      if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
          info.si_pid != 0) {
        return;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
  // Sends a signal and returns the exit code.
  int end(int signal) {
    kill(pid_, signal);
    return wait_for_program(std::exchange(pid_, 0));
  }

 private:
  int null_;
  pid_t pid_;
};

// Whole lines of an output that may have been cut: each in `expected`, none twice.
void expect_sound(const std::string& output, const std::vector<std::string>& expected) {
  const size_t end = output.rfind('\n');
  std::vector<std::string> lines = sorted(output.substr(0, end == std::string::npos ? 0 : end + 1));
  EXPECT_TRUE(std::includes(expected.begin(), expected.end(), lines.begin(), lines.end()));
  EXPECT_EQ(std::adjacent_find(lines.begin(), lines.end()), lines.end());
}

class EndedBatch : public testing::TestWithParam<bool> {
 protected:
  // A run that was never ended, and the options of one that is.
  void SetUp() override {
    ASSERT_EQ(run_batch(input_, {"-o", new_output("whole.jsonl")}).exit_code, 0);
    whole_ = read_file(scratch_folder() / "whole.jsonl");
    lines_ = sorted(whole_);
    ASSERT_EQ(lines_.size(), 200U);
    if (GetParam()) options_.emplace_back("--unordered");
  }
  void expect_whole_after_resume() const {
    const ProgramResult result = run_batch(input_, options_);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(sorted(read_file(output_)), lines_);
    if (!GetParam()) {
      EXPECT_EQ(read_file(output_), whole_);
    }
  }

  const std::string input_ = file_with("ended.jsonl", many_lines(200)).string();
  const std::string output_ = new_output("ended-output.jsonl");
  std::vector<std::string> options_ = {"-o", output_, "--resume"};
  std::string whole_;
  std::vector<std::string> lines_;
  std::mt19937 random_{20};
};

TEST_P(EndedBatch, IsTheSameAfterTenKillsAsWithoutAny) {
  constexpr uintmax_t kKills = 10;
  for (uintmax_t i = 0; i < kKills; ++i) {
    const uintmax_t done = fs::exists(output_) ? fs::file_size(output_) : 0;
    const uintmax_t share = whole_.size() / kKills;
    SCOPED_TRACE("kill " + std::to_string(i) + " with " + std::to_string(done) + " bytes done");
    BackgroundBatch batch(input_, options_);
    batch.wait_for_bytes(output_, done + random_() % share);
    batch.end(SIGKILL);
    if (fs::exists(output_)) expect_sound(read_file(output_), lines_);
  }
  expect_whole_after_resume();
}

TEST_P(EndedBatch, IsTheSameWhereverItsOutputWasCut) {
  for (int i = 0; i < 8; ++i) {
    const size_t bytes = i == 0   ? whole_.size()
                         : i == 1 ? whole_.size() - 1
                                  : random_() % whole_.size();
    SCOPED_TRACE(bytes);
    std::ofstream(output_, std::ios::binary | std::ios::trunc) << whole_.substr(0, bytes);
    expect_whole_after_resume();
  }
}

TEST_P(EndedBatch, EndsOnCtrlCWithWholeLinesAndGoesOn) {
  // With many slots a GPU would have done all lines before the signal comes.
  options_.insert(options_.end(), {"--slots", "8"});
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const uintmax_t done = fs::exists(output_) ? fs::file_size(output_) : 0;
    BackgroundBatch batch(input_, options_);
    batch.wait_for_bytes(output_, done + whole_.size() / 8);
    EXPECT_EQ(batch.end(signal), 130);
    const std::string output = read_file(output_);
    EXPECT_TRUE(output.ends_with('\n'));
    EXPECT_EQ(output.find("cancelled"), std::string::npos);
    expect_sound(output, lines_);
    if (!GetParam()) {
      EXPECT_TRUE(whole_.starts_with(output));
    }
  }
  expect_whole_after_resume();
}

INSTANTIATE_TEST_SUITE_P(Ordered, EndedBatch, testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Unordered, EndedBatch, testing::Values(true));

TEST(Batch, WritesResultsWhileItWaitsForMoreInput) {
  std::array<int, 2> input{};
  ASSERT_EQ(pipe2(input.data(), O_CLOEXEC), 0);
  const std::string output = new_output("waiting.jsonl");
  BackgroundBatch batch("-", {"-o", output}, input[0]);
  const std::string prompt = "One day\n";
  ASSERT_EQ(write(input[1], prompt.data(), prompt.size()), static_cast<ssize_t>(prompt.size()));
  batch.wait_for_bytes(output, 1);
  EXPECT_EQ(batch.end(SIGINT), 130);
  EXPECT_EQ(records(read_file(output)).size(), 1U);
  for (const int end : input) close(end);
}

TEST(Batch, CountsErrorsOfAFormerRunAsDone) {
  const fs::path input =
      file_with("errors.jsonl", "{\"prompt\":\"a\"}\n{bad\n{\"prompt\":\"b\"}\n");
  const fs::path output =
      file_with("errors-output.jsonl", "{\"line\":2,\"error\":\"from before\"}\n");
  const ProgramResult result = run_batch(input.string(), {"-o", output.string(), "--resume"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("2 lines done, 1 done before, 0 failed"), std::string::npos)
      << result.err;
  const std::vector<json> all = records(read_file(output));
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0].at("error"), "from before");
  EXPECT_EQ(all[1].at("line"), 1);
  EXPECT_EQ(all[2].at("line"), 3);
}

TEST(Batch, DoesNotResumeWithAnotherInputOrOutput) {
  const fs::path input = file_with("mine.jsonl", "{\"id\":\"a\",\"prompt\":\"x\"}\n\n");
  const std::map<std::string, std::string> cases = {
      {"{\"id\":\"b\",\"line\":1}\n", "another id"},
      {"{\"id\":\"a\",\"line\":2}\n", "blank"},
      {"{\"id\":\"a\",\"line\":9}\n", "line 9"},
      {"{\"id\":\"a\",\"line\":1}\n{\"id\":\"a\",\"line\":1}\n", "two results"},
      {"My diary\n", "no result of a batch"},
      {"My diary\nends here", "no result of a batch"},
  };
  for (const auto& [text, mentions] : cases) {
    const fs::path output = file_with("theirs.jsonl", text);
    const ProgramResult result = run_batch(input.string(), {"-o", output.string(), "--resume"});
    EXPECT_EQ(result.exit_code, 1) << text;
    EXPECT_NE(result.err.find(mentions), std::string::npos) << result.err;
    EXPECT_TRUE(read_file(output).starts_with(text));
  }
}

}  // namespace
}  // namespace faststream
