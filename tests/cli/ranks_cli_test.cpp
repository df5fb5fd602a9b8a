// faststream-run on several ranks: threads of a process, and processes that mpirun starts.

#include "batch_program.h"

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

TEST_F(RanksOnProcesses, AnswerABatchOnceAndInOrder) {
  if (!built_with_mpi_) GTEST_SKIP() << "built without MPI";
  const std::string input = file_with("ranks.jsonl", many_lines(20)).string();
  const ProgramResult alone = run_batch(input);
  const ProgramResult ranked = run_program(on_processes(2, batch_args(input, {"-t", "1"})));
  EXPECT_EQ(ranked.exit_code, 0) << ranked.err;
  EXPECT_EQ(ranked.out, alone.out);
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
