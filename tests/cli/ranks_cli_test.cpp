// faststream-run on several ranks: threads of a process, and processes that mpirun starts.

#include <csignal>
#include <optional>
#include <tuple>
#include <utility>

#include "background_batch.h"
#include "batch_program.h"
#include "golden/golden_data.h"

namespace faststream {
namespace {

constexpr const char* kMpirun = "/usr/bin/mpirun";

std::vector<std::string> generating(const std::string& device) {
  return {"faststream-run", "-m", demo_model(), "-p",   "Once upon", "-n", "30",
          "--seed",         "3",  "--device",   device, "-t",        "1"};
}

// The command on so many processes, more than there may be cores.
std::vector<std::string> on_processes(int n, const std::vector<std::string>& command) {
  std::vector<std::string> args = {kMpirun,           "--allow-run-as-root",
                                   "--oversubscribe", "-n",
                                   std::to_string(n), programs_folder() + "/" + command.front()};
  args.insert(args.end(), command.begin() + 1, command.end());
  return args;
}

std::vector<std::string> in_stages(int stages, std::vector<std::string> command) {
  command.insert(command.end(), {"--pipeline", std::to_string(stages)});
  return command;
}

class RanksOnProcesses : public testing::Test {
 protected:
  void SetUp() override {
#ifdef FASTSTREAM_SANITIZED
    GTEST_SKIP() << "MPI's own leaks would be reported";
#endif
    if (!fs::exists(kMpirun)) GTEST_SKIP() << "Open MPI is not installed";
    const ProgramResult result = run_program(on_processes(2, {"faststream-run", "--version"}));
    if (result.exit_code != 0) GTEST_SKIP() << "mpirun does not work here: " << result.err;
    built_with_mpi_ = run_program(on_processes(2, generating("cpu"))).exit_code == 0;
  }
  bool built_with_mpi_ = false;
};

TEST(RanksOfAProcess, GiveTheTextOfOneDevice) {
  const ProgramResult alone = run_program(generating("cpu"));
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  const ProgramResult ranked = run_program(generating("cpu,cpu"));
  EXPECT_EQ(ranked.exit_code, 0) << ranked.err;
  EXPECT_EQ(ranked.out, alone.out);
}

TEST(ReplicasOfAProcess, AnswerABatchOnceAndInOrder) {
  const std::string input = file_with("replicas.jsonl", many_lines(40)).string();
  const ProgramResult alone = run_batch(input);
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {"--replicas", "2"}, {"--replicas", "3", "--slots", "2", "--stats"}}) {
    const ProgramResult several = run_batch(input, more);
    EXPECT_EQ(several.exit_code, 0) << several.err;
    EXPECT_EQ(several.out, alone.out);
  }
  const ProgramResult odd = run_batch(input, {"--replicas", "0"});
  EXPECT_EQ(odd.exit_code, 2) << odd.err;
}

TEST_F(RanksOnProcesses, GiveTheTextOfOneProcess) {
  const ProgramResult alone = run_program(generating("cpu"));
  for (const int n : {2, 3}) {
    const ProgramResult ranked = run_program(on_processes(n, generating("cpu")));
    if (built_with_mpi_) {
      EXPECT_EQ(ranked.exit_code, 0) << ranked.err;
      EXPECT_EQ(ranked.out, alone.out) << n << " processes";
    } else {
      EXPECT_NE(ranked.exit_code, 0);
      EXPECT_NE(ranked.err.find("built without MPI"), std::string::npos) << ranked.err;
    }
  }
}

// A head of EAGLE-3, which each process has its share of, or the first stage all of.
TEST_F(RanksOnProcesses, DraftByHeadsWhatChangesNoText) {
  if (!built_with_mpi_) GTEST_SKIP() << "built without MPI";
  const std::string model = new_output("ranks-with-head.bin");
  const ProgramResult converted =
      run_program({"faststream-convert", golden_root() / "gqa", "-o", model, "--dtype", "f32",
                   "--eagle", golden_root() / "eagle/midlayer", "--force"});
  ASSERT_EQ(converted.exit_code, 0) << converted.err;
  const auto command = [&](const std::string& how) {
    return std::vector<std::string>{
        "faststream-run", "-m",  model,          "-p",          "hello", "-n", "20", "--temp", "0",
        "--device",       "cpu", "--ignore-eos", "--speculate", how,     "-t", "1"};
  };
  const ProgramResult alone = run_program(command("off"));
  for (const int stages : {1, 2}) {
    const ProgramResult ranked = run_program(on_processes(2, in_stages(stages, command("mtp"))));
    EXPECT_EQ(ranked.exit_code, 0) << ranked.err;
    EXPECT_EQ(ranked.out, alone.out) << stages;
  }
  fs::remove(model);
}

TEST_F(RanksOnProcesses, AnswerABatchOnceAndInOrder) {
  if (!built_with_mpi_) GTEST_SKIP() << "built without MPI";
  const std::string input = file_with("ranks.jsonl", many_lines(20)).string();
  const ProgramResult alone = run_batch(input);
  const ProgramResult ranked = run_program(on_processes(2, batch_args(input, {"-t", "1"})));
  EXPECT_EQ(ranked.exit_code, 0) << ranked.err;
  EXPECT_EQ(ranked.out, alone.out);
}

// The process of a rank that mpirun has started, once there is one.
std::optional<pid_t> process_of_rank(pid_t mpirun, int rank) {
  const std::string parent = "PPid:\t" + std::to_string(mpirun) + "\n";
  const std::string variable = std::string("\0OMPI_COMM_WORLD_RANK=", 22) + std::to_string(rank);
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::error_code gone;
    if (!fs::exists(entry.path() / "environ", gone)) continue;
    if (read_file(entry.path() / "status").find(parent) == std::string::npos) continue;
    if (read_file(entry.path() / "environ").find(variable) != std::string::npos) {
      return static_cast<pid_t>(std::stol(name));
    }
  }
  return std::nullopt;
}

void send_signal(const BackgroundBatch& batch, int rank, int signal) {
  const std::optional<pid_t> process = process_of_rank(batch.pid(), rank);
  ASSERT_TRUE(process) << batch.errors();
  kill(*process, signal);
}

TEST_F(RanksOnProcesses, EndSoonAfterOneWasKilledAndGoOn) {
  if (!built_with_mpi_) GTEST_SKIP() << "built without MPI";
  const std::string input = file_with("killed-ranks.jsonl", many_lines(40)).string();
  const ProgramResult whole = run_batch(input);
  const std::string output = new_output("killed-ranks-output.jsonl");
  const std::vector<std::string> more = {"-t", "1", "-o", output, "--resume", "--slots", "2"};
  for (const auto& [rank, stages] : {std::pair(0, 1), {1, 1}, {1, 2}}) {
    BackgroundBatch batch(on_processes(2, in_stages(stages, batch_args(input, more))));
    batch.wait_for_bytes(output, (fs::exists(output) ? fs::file_size(output) : 0) + 1);
    ASSERT_NO_FATAL_FAILURE(send_signal(batch, rank, SIGKILL));
    EXPECT_NE(batch.wait(), 0);
  }
  const ProgramResult resumed = run_program(on_processes(2, batch_args(input, more)));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(read_file(output), whole.out);
}

TEST(StagesOfAProcess, GiveTheTextOfOneDevice) {
  const ProgramResult staged = run_program(in_stages(2, generating("cpu,cpu,cpu,cpu")));
  EXPECT_EQ(staged.exit_code, 0) << staged.err;
  EXPECT_EQ(staged.out, run_program(generating("cpu")).out);
  for (const auto& [stages, device, why] :
       {std::tuple(2, "cpu", "--pipeline 2: one process does not make as many stages"),
        {2, "cpu,cpu,cpu", "--pipeline 2: 3 ranks do not make as many stages"},
        {9, "cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu", "--pipeline 9: the model's layers make 8"}}) {
    const ProgramResult refused = run_program(in_stages(stages, generating(device)));
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_NE(refused.err.find(why), std::string::npos) << refused.err;
  }
}

TEST_F(RanksOnProcesses, GiveTheTextsOfOneProcessInStages) {
  if (!built_with_mpi_) GTEST_SKIP() << "built without MPI";
  const ProgramResult alone = run_program(generating("cpu"));
  for (const auto& [processes, stages] : {std::pair(3, 3), {4, 2}}) {
    const ProgramResult staged =
        run_program(on_processes(processes, in_stages(stages, generating("cpu"))));
    EXPECT_EQ(staged.exit_code, 0) << staged.err;
    EXPECT_EQ(staged.out, alone.out) << processes << " processes";
  }
  const std::string input = file_with("stages.jsonl", many_lines(40)).string();
  const ProgramResult whole = run_batch(input);
  for (const std::vector<std::string>& more :
       std::vector<std::vector<std::string>>{{}, {"--replicas", "2"}}) {
    std::vector<std::string> batch = in_stages(2, batch_args(input, {"-t", "1"}));
    batch.insert(batch.end(), more.begin(), more.end());
    const ProgramResult staged = run_program(on_processes(more.empty() ? 2 : 4, batch));
    EXPECT_EQ(staged.exit_code, 0) << staged.err;
    EXPECT_EQ(staged.out, whole.out);
  }
}

TEST_F(RanksOnProcesses, RefuseStagesThatTheyDoNotMake) {
  if (!built_with_mpi_) GTEST_SKIP() << "built without MPI";
  const ProgramResult odd = run_program(on_processes(3, in_stages(2, generating("cpu"))));
  EXPECT_EQ(odd.exit_code, 2);
  EXPECT_EQ(odd.out, "");
  EXPECT_NE(odd.err.find("--pipeline 2: 3 ranks do not make as many stages of equal size; start 2 "
                         "processes (mpirun -n 2), or a multiple"),
            std::string::npos)
      << odd.err;
}

// Others could not open what one has made in memory.
TEST_F(RanksOnProcesses, AreMeasuredOnModelFilesAlone) {
  if (!built_with_mpi_) GTEST_SKIP() << "built without MPI";
  const ProgramResult refused = run_program(on_processes(
      2, {"faststream-bench", "--shape", "llama-tiny", "--device", "cpu", "--pipeline", "2"}));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_EQ(refused.out, "");
  EXPECT_NE(refused.err.find("faststream-bench: --shape: its weights are made in one process"),
            std::string::npos)
      << refused.err;
}

class ReplicasOnProcesses : public RanksOnProcesses {
 protected:
  void SetUp() override {
    RanksOnProcesses::SetUp();
    if (!IsSkipped() && !built_with_mpi_) GTEST_SKIP() << "built without MPI";
  }
};

// So many of the model on so many processes; more: of mpirun.
std::vector<std::string> replicas_on(int processes, int replicas, std::vector<std::string> batch,
                                     const std::vector<std::string>& more = {}) {
  batch.insert(batch.end(), {"-t", "1", "--replicas", std::to_string(replicas)});
  std::vector<std::string> command = on_processes(processes, batch);
  command.insert(command.begin() + 1, more.begin(), more.end());
  return command;
}

TEST_F(ReplicasOnProcesses, AnswerABatchOnceAndInOrder) {
  // Some of its lines are bad.
  const std::string input = file_with("process-replicas.jsonl", many_lines(41)).string();
  const ProgramResult alone = run_batch(input);
  for (const auto& [processes, replicas] : {std::pair(2, 2), {3, 3}, {4, 2}}) {
    const ProgramResult several =
        run_program(replicas_on(processes, replicas, batch_args(input, {"--slots", "3"})));
    EXPECT_EQ(several.exit_code, 0) << several.err;
    EXPECT_EQ(several.out, alone.out) << processes << " processes, " << replicas << " replicas";
  }
}

TEST_F(ReplicasOnProcesses, MayBeMoreThanLines) {
  const std::string input = file_with("few-lines.jsonl", many_lines(2)).string();
  const ProgramResult several = run_program(replicas_on(4, 4, batch_args(input, {})));
  EXPECT_EQ(several.exit_code, 0) << several.err;
  EXPECT_EQ(several.out, run_batch(input).out);
}

TEST_F(ReplicasOnProcesses, AreOfEqualSize) {
  const std::string input = file_with("few-lines.jsonl", many_lines(2)).string();
  const ProgramResult odd = run_program(replicas_on(3, 2, batch_args(input, {})));
  EXPECT_EQ(odd.exit_code, 2);
  EXPECT_EQ(odd.out, "");
  EXPECT_NE(odd.err.find("faststream-run: --replicas 2: 3 processes do not make as many of equal "
                         "size; start 2, or a multiple"),
            std::string::npos)
      << odd.err;
}

// Lines that take some time, so that each replica has some when one of them ends.
std::string long_lines(size_t count) {
  std::string text;
  for (size_t i = 1; i <= count; ++i) {
    json line = {{"prompt", "Tom has " + std::to_string(i) + " apples. "}, {"max_tokens", 40}};
    if (i % 4 == 0) line["n"] = 3;
    text += line.dump() + '\n';
  }
  return text;
}

// With mpirun's default a process that is killed ends all.
TEST_F(ReplicasOnProcesses, EndSoonAfterOneWasKilledAndGoOn) {
  const std::string input = file_with("killed-replicas.jsonl", long_lines(60)).string();
  const ProgramResult whole = run_batch(input);
  const std::string output = new_output("killed-replicas-output.jsonl");
  const std::vector<std::string> more = {"-o", output, "--resume", "--slots", "3"};
  for (const int process : {0, 1}) {
    BackgroundBatch batch(replicas_on(3, 3, batch_args(input, more)));
    batch.wait_for_bytes(output, (fs::exists(output) ? fs::file_size(output) : 0) + 1);
    ASSERT_NO_FATAL_FAILURE(send_signal(batch, process, SIGKILL));
    EXPECT_NE(batch.wait(), 0);
    EXPECT_TRUE(whole.out.starts_with(read_file(output)) || !read_file(output).ends_with('\n'));
  }
  const ProgramResult resumed = run_program(replicas_on(3, 3, batch_args(input, more)));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(read_file(output), whole.out);
}

// With recovery it leaves the others, which answer what that one had.
TEST_F(ReplicasOnProcesses, GoOnWithoutOneThatWasKilled) {
  // The first process of a replica of one, and the second of one of two, which wait for each other
  // at each layer.
  for (const auto& [processes, replicas, killed, n_lines] :
       {std::tuple(3, 3, 2, 60), {4, 2, 3, 20}}) {
    const std::string input =
        file_with("left-replicas.jsonl", long_lines(static_cast<size_t>(n_lines))).string();
    const ProgramResult whole = run_batch(input);
    const std::string output = new_output("left-replicas-output.jsonl");
    const std::vector<std::string> more = {"-o", output, "--slots", "3"};
    BackgroundBatch batch(
        replicas_on(processes, replicas, batch_args(input, more), {"--enable-recovery"}));
    batch.wait_for_bytes(output, 1);
    ASSERT_NO_FATAL_FAILURE(send_signal(batch, killed, SIGKILL));
    EXPECT_EQ(batch.wait(), 0) << batch.errors();
    EXPECT_EQ(read_file(output), whole.out) << processes << " processes";
    const bool is_told = batch.errors().find("has ended, or was not heard of") != std::string::npos;
    EXPECT_TRUE(is_told || processes > replicas) << batch.errors();
  }
}

// It may be behind a cable that was cut.
TEST_F(ReplicasOnProcesses, GoOnWithoutOneThatIsNotHeardOf) {
  const std::string input = file_with("silent-replica.jsonl", long_lines(60)).string();
  const std::string output = new_output("silent-replica-output.jsonl");
  BackgroundBatch batch(replicas_on(3, 3, batch_args(input, {"-o", output, "--slots", "3"})));
  batch.wait_for_bytes(output, 1);
  ASSERT_NO_FATAL_FAILURE(send_signal(batch, 1, SIGSTOP));
  batch.wait();  // mpirun fails, as one has not ended by itself
  EXPECT_EQ(read_file(output), run_batch(input).out);
  EXPECT_NE(batch.errors().find("process 1 has ended, or was not heard of for 10 s"),
            std::string::npos)
      << batch.errors();
}

TEST_F(RanksOnProcesses, EndWithOneSentenceWhereOneIsNotHeardOf) {
  if (!built_with_mpi_) GTEST_SKIP() << "built without MPI";
  const std::string input = file_with("silent-rank.jsonl", long_lines(60)).string();
  for (const int stages : {1, 2}) {
    const std::string output = new_output("silent-rank-output.jsonl");
    BackgroundBatch batch(
        on_processes(2, in_stages(stages, batch_args(input, {"-t", "1", "-o", output}))));
    batch.wait_for_bytes(output, 1);
    ASSERT_NO_FATAL_FAILURE(send_signal(batch, 1, SIGSTOP));
    EXPECT_NE(batch.wait(), 0);
    EXPECT_NE(batch.errors().find("process 1 has ended, or was not heard of for 10 s; the same "
                                  "command with --resume goes on from here"),
              std::string::npos)
        << batch.errors();
  }
}

TEST_F(ReplicasOnProcesses, EndAtInterruptsAndGoOn) {
  const std::string input = file_with("interrupted-replicas.jsonl", long_lines(60)).string();
  const ProgramResult whole = run_batch(input);
  for (const bool of_mpirun : {true, false}) {
    const std::string output = new_output("interrupted-replicas-output.jsonl");
    const std::vector<std::string> more = {"-o", output, "--resume", "--slots", "3"};
    BackgroundBatch batch(replicas_on(3, 3, batch_args(input, more)));
    batch.wait_for_bytes(output, 1);
    if (of_mpirun) {
      kill(batch.pid(), SIGINT);
    } else {
      ASSERT_NO_FATAL_FAILURE(send_signal(batch, 0, SIGINT));
    }
    EXPECT_NE(batch.wait(), 0);
    if (!of_mpirun) {
      EXPECT_NE(batch.errors().find("the same command with --resume goes on from here"),
                std::string::npos)
          << batch.errors();
    }
    const ProgramResult resumed = run_program(replicas_on(3, 3, batch_args(input, more)));
    EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
    EXPECT_EQ(read_file(output), whole.out);
  }
}

TEST_F(RanksOnProcesses, EndWithOneSentenceWhereOneCannot) {
  if (!built_with_mpi_) GTEST_SKIP() << "built without MPI";
  std::vector<std::string> command = generating("cpu");
  command[2] = "no-such-file.bin";
  const ProgramResult result = run_program(on_processes(2, command));
  EXPECT_NE(result.exit_code, 0);
  EXPECT_NE(result.err.find("no-such-file.bin: there is no such file"), std::string::npos)
      << result.err;
}

}  // namespace
}  // namespace faststream
