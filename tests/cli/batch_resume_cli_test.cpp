// faststream-run --batch that was ended, and --resume.

#include <fcntl.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <map>
#include <random>
#include <thread>
#include <utility>

#include "background_batch.h"
#include "batch_program.h"
#include "unit/effort.h"

namespace faststream {
namespace {

// Whole lines of an output that may have been cut: each in `expected`, none twice.
void expect_sound(const std::string& output, const std::vector<std::string>& expected) {
  const size_t end = output.rfind('\n');
  std::vector<std::string> lines = sorted(output.substr(0, end == std::string::npos ? 0 : end + 1));
  EXPECT_TRUE(std::includes(expected.begin(), expected.end(), lines.begin(), lines.end()));
  EXPECT_EQ(std::adjacent_find(lines.begin(), lines.end()), lines.end());
}

class EndedBatch : public testing::TestWithParam<bool> {
 protected:
  static constexpr size_t kLines = kSanitized ? 60 : 200;

  // What a run that was never ended writes, and the options of one that is.
  void SetUp() override {
    static const std::string whole = [this] {
      const std::string output = new_output("whole.jsonl");
      EXPECT_EQ(run_batch(input_, {"-o", output}).exit_code, 0);
      return read_file(output);
    }();
    whole_ = whole;
    lines_ = sorted(whole_);
    ASSERT_EQ(lines_.size(), kLines);
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

  const std::string input_ = file_with("ended.jsonl", many_lines(kLines)).string();
  const std::string output_ = new_output("ended-output.jsonl");
  // With many slots all lines would be done at once, and a GPU before any signal.
  std::vector<std::string> options_ = {"-o", output_, "--resume", "--slots", "8"};
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
    BackgroundBatch batch(batch_args(input_, options_));
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
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const uintmax_t done = fs::exists(output_) ? fs::file_size(output_) : 0;
    BackgroundBatch batch(batch_args(input_, options_));
    batch.wait_for_bytes(output_, done + 1);  // early: on a busy machine signals come late
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
  BackgroundBatch batch(batch_args("-", {"-o", output}), input[0]);
  const std::string prompt = "One day\n";
  ASSERT_EQ(write(input[1], prompt.data(), prompt.size()), static_cast<ssize_t>(prompt.size()));
  batch.wait_for_bytes(output, 1);
  EXPECT_EQ(batch.end(SIGINT), 130);
  EXPECT_EQ(records(read_file(output)).size(), 1U);
  EXPECT_NE(batch.errors().find("batch interrupted: 1 line done"), std::string::npos);
  EXPECT_NE(batch.errors().find("the same command with --resume goes on"), std::string::npos);
  for (const int end : input) close(end);
}

TEST(Batch, SaysThatItWasInterruptedBeforeAnyLineWasDone) {
  std::array<int, 2> input{};
  ASSERT_EQ(pipe2(input.data(), O_CLOEXEC), 0);
  const std::string output = new_output("nothing.jsonl");
  BackgroundBatch batch(batch_args("-", {"-o", output}), input[0]);
  // More than a pipe holds: once all is written the program is reading lines, which are blank.
  const std::string lines(size_t{1} << 18, '\n');
  for (size_t written = 0; written < lines.size();) {
    const ssize_t n = write(input[1], lines.data() + written, lines.size() - written);
    ASSERT_GT(n, 0);
    written += static_cast<size_t>(n);
  }
  EXPECT_EQ(batch.end(SIGINT), 130);
  EXPECT_NE(batch.errors().find("batch interrupted: 0 lines done"), std::string::npos)
      << batch.errors();
  for (const int end : input) close(end);
}

// Resuming. ---------------------------------------------------------------------------------------

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
      {R"({"id":"b","line":1,"text":""})"
       "\n",
       "another id"},
      {R"({"id":"a","line":2,"text":""})"
       "\n",
       "blank"},
      {R"({"id":"a","line":9,"text":""})"
       "\n",
       "line 9"},
      {R"({"id":"a","line":1,"text":""})"
       "\n"
       R"({"id":"a","line":1,"text":""})"
       "\n",
       "two results"},
      {R"({"id":"a","line":1})"
       "\n",
       "no result of a batch"},
      {"My diary\n", "no result of a batch"},
      {"My diary\nends here", "no result of a batch"},
      {"my note", "no result of a batch"},
      {"{\"id\": \"my settings\"}", "no result of a batch"},
      {R"({"id":"a}","line":1,"text":"\\"}"}{"id":"a","line":2,"te)", "no result of a batch"},
  };
  for (const auto& [text, mentions] : cases) {
    const fs::path output = file_with("theirs.jsonl", text);
    const ProgramResult result = run_batch(input.string(), {"-o", output.string(), "--resume"});
    EXPECT_EQ(result.exit_code, 1) << text;
    EXPECT_NE(result.err.find(mentions), std::string::npos) << result.err;
    EXPECT_EQ(read_file(output), text);
    EXPECT_EQ(result.err.find("device:"), std::string::npos) << "found before the model is loaded";
  }
}

// What was begun with something else is neither continued nor changed.
TEST(Batch, DoesNotResumeWithAnotherModelOrOtherOptions) {
  const std::string input = file_with("origin.txt", "One day\nTwo days\n").string();
  const std::string output = new_output("origin-output.jsonl");
  ASSERT_EQ(run_batch(input, {"-o", output, "--stop", "the end"}).exit_code, 0);
  if (getxattr(output.c_str(), "user.faststream.batch", nullptr, 0) < 0) {
    GTEST_SKIP() << "the file system keeps no extended attributes";
  }
  const std::string before = read_file(output);
  std::ofstream(input, std::ios::app) << "Three days\n";
  const auto refused = [&](const std::vector<std::string>& args, const std::string& mentions) {
    const ProgramResult result = run_program(args);
    EXPECT_EQ(result.exit_code, 1) << result.err;
    EXPECT_NE(result.err.find(mentions), std::string::npos) << result.err;
    EXPECT_EQ(result.err.find("device:"), std::string::npos) << "found before the model is loaded";
    EXPECT_EQ(read_file(output), before);
  };
  const std::vector<std::string> same = {"-o", output, "--resume", "--stop", "the end"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = batch_args(input, same);
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  refused(with({"--temp", "0.5"}), "was begun without --temp, and this run is with --temp 0.5");
  refused(with({"--top-k", "3"}), "--top-k");
  refused(with({"--regex", "a|b"}), "--regex");
  refused(with({"--ignore-eos"}), "--ignore-eos");
  refused(batch_args(input, {"-o", output, "--resume"}),
          "was begun with --stop the end, and this run is without --stop");
  std::vector<std::string> other = with({});
  other[2] = (scratch_folder() / "origin-other.bin").string();
  const fs::path demo = fs::path(std::getenv("FASTSTREAM_TEST_DATA")).parent_path() / "demo";
  ASSERT_EQ(run_program({"faststream-convert", demo.string(), "-o", other[2], "--quiet"}).exit_code,
            0);
  refused(other, "was begun with another model, \"demo.bin\"");

  // A file of the same contents is the same model.
  const fs::path moved = scratch_folder() / "moved.bin";
  fs::copy_file(demo_model(), moved, fs::copy_options::overwrite_existing);
  std::vector<std::string> args = with({"--slots", "2", "--speculate", "off"});
  args[2] = moved.string();
  const ProgramResult result = run_program(args);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err.find("does not tell"), std::string::npos) << result.err;
  EXPECT_EQ(records(read_file(output)).size(), 3U);

  // A copy without the attribute is compared with nothing, of which the user is told.
  const fs::path copy = file_with("origin-copy.jsonl", before);
  const ProgramResult unknown =
      run_batch(input, {"-o", copy.string(), "--resume", "--temp", "0.5"});
  EXPECT_EQ(unknown.exit_code, 0) << unknown.err;
  EXPECT_NE(unknown.err.find("does not tell which model and options"), std::string::npos)
      << unknown.err;
}

// The input's file under another name, or as standard input or output.
TEST(Batch, DoesNotWriteIntoItsInput) {
  const fs::path input = file_with("self.txt", "{\"line\":1}");
  const fs::path link = new_output("self-link.txt");
  fs::create_symlink(input, link);
  const fs::path hard_link = new_output("self-hard-link.txt");
  fs::create_hard_link(input, hard_link);
  for (const fs::path& output : {input, link, hard_link}) {
    for (const char* name : {input.c_str(), "/dev/stdin"}) {
      SCOPED_TRACE(output.string() + " of " + name);
      const Descriptor in(input, O_RDONLY);
      const Descriptor err(scratch_folder() / "self-errors.txt", O_WRONLY | O_CREAT | O_TRUNC);
      const int exit_code = wait_for_program(start_program(
          batch_args(name, {"-o", output.string(), "--resume"}), in.fd(), kClosed, err.fd()));
      EXPECT_EQ(exit_code, 1);
      EXPECT_NE(read_file(scratch_folder() / "self-errors.txt").find("same file"),
                std::string::npos);
      EXPECT_EQ(read_file(input), "{\"line\":1}");
    }
  }
  const Descriptor append(input, O_WRONLY | O_APPEND);
  const Descriptor null("/dev/null", O_RDWR);
  EXPECT_EQ(wait_for_program(
                start_program(batch_args(input.string(), {}), null.fd(), append.fd(), null.fd())),
            1);
  EXPECT_EQ(read_file(input), "{\"line\":1}");
}

TEST(Batch, DoesNotResumeWhenALineHasChanged) {
  const std::string input = file_with("changing.txt", "One\nTwo\n").string();
  const std::string output = new_output("changing.jsonl");
  ASSERT_EQ(run_batch(input, {"-o", output}).exit_code, 0);
  const std::string before = read_file(output);
  file_with("changing.txt", "One\nDeux\nThree\n");
  const ProgramResult result = run_batch(input, {"-o", output, "--resume"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("the result of line 2 is of another line"), std::string::npos)
      << result.err;
  EXPECT_EQ(read_file(output), before);
  file_with("changing.txt", "One\nTwo\nThree\n");  // more lines are no change
  EXPECT_EQ(run_batch(input, {"-o", output, "--resume"}).exit_code, 0);
  EXPECT_EQ(records(read_file(output)).size(), 3U);
}

TEST(Batch, DoesNotResumeWithAnotherSeed) {
  const std::string input =
      file_with("seeds.jsonl", "{\"prompt\":\"a\",\"seed\":3}\n{\"prompt\":\"b\"}\n").string();
  const std::string output = new_output("seeds-output.jsonl");
  const auto run = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"faststream-run", "-m",      demo_model(), "--batch", input,
                                     "--device",       "cpu",     "-n",         "2",       "-o",
                                     output,           "--resume"};
    args.insert(args.end(), more.begin(), more.end());
    return run_program(args);
  };
  ASSERT_EQ(run({"--seed", "7"}).exit_code, 0);
  const ProgramResult other = run({"--seed", "8"});
  EXPECT_EQ(other.exit_code, 1);
  // The first line says its seed itself.
  EXPECT_NE(other.err.find("the result of line 2 has another seed"), std::string::npos)
      << other.err;
  EXPECT_EQ(run({"--seed", "7"}).exit_code, 0);
  EXPECT_EQ(run({}).exit_code, 0);
}

}  // namespace
}  // namespace faststream
