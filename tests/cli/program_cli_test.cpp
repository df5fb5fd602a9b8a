// What all programs share: their standard descriptors, their output, and signals.

#include <fcntl.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "run_program.h"
#include "stories.h"
#include "unit/engine/engine_model.h"

namespace faststream {
namespace {

// Every way in which a program prints something and leaves.
std::vector<std::vector<std::string>> short_commands() {
  const std::string model = engine_model();
  const std::string text = scratch_folder() / "text.txt";
  std::ofstream(text) << "the text";
  return {{"faststream-run", "--help"},
          {"faststream-run", "--version"},
          {"faststream-run", "-m", model, "-p", "the", "--tokenize"},
          {"faststream-run", "-m", model, "--perplexity", text, "--device", "cpu"},
          {"faststream-convert", "--help"},
          {"faststream-convert", "--version"},
          {"faststream-convert", "--show", model},
          {"faststream-convert", "--verify", model},
          {"faststream-bench", "--help"},
          {"faststream-bench", "--version"},
          {"faststream-bench", "-m", model, "--device", "cpu", "--prompt", "1", "--sequences", "1",
           "--generate", "1", "--repeat", "1"}};
}

TEST(Programs, FailWhereTheirOutputIsLost) {
  const Descriptor full("/dev/full", O_WRONLY);
  const std::string errors = scratch_folder() / "errors.txt";
  for (const std::vector<std::string>& command : short_commands()) {
    for (const int out : {full.fd(), kClosed}) {
      SCOPED_TRACE(command[0] + ' ' + command[1] + (out == kClosed ? " >&-" : " > /dev/full"));
      const Descriptor err(errors, O_WRONLY | O_CREAT | O_TRUNC);
      EXPECT_EQ(wait_for_program(start_program(command, kClosed, out, err.fd())), 1);
      EXPECT_NE(read_file(errors).find(command[0] + ": standard output cannot be written: "),
                std::string::npos)
          << read_file(errors);
    }
  }
}

TEST(Programs, TakeNothingAfterAnEqualsSignAsAnEmptyValue) {
  const auto generate = [](const std::vector<std::string>& prompt) {
    std::vector<std::string> command = {"faststream-run", "-m", engine_model(), "--device", "cpu",
                                        "--temp",         "0",  "--tokens",     "8"};
    command.insert(command.end(), prompt.begin(), prompt.end());
    command.emplace_back("--echo");
    return run_program(command);
  };
  const ProgramResult empty = generate({"--prompt="});
  EXPECT_EQ(empty.exit_code, 0) << empty.err;
  EXPECT_EQ(empty.out, generate({"--prompt", ""}).out);
  const ProgramResult nameless = run_program({"faststream-convert", "--check=", "--quiet"});
  EXPECT_EQ(nameless.exit_code, 2);
  EXPECT_NE(nameless.err.find("--check: is empty"), std::string::npos) << nameless.err;
}

TEST(Programs, NeedNoStandardOutputForWhatPrintsNothing) {
  const std::string output = scratch_folder() / "closed.jsonl";
  const std::vector<std::string> batch = {
      "faststream-run", "-m",  engine_model(), "--batch", "/dev/null",
      "--device",       "cpu", "-o",           output};
  EXPECT_EQ(wait_for_program(start_program(batch, kClosed, kClosed, kClosed)), 0);
  EXPECT_EQ(read_file(output), "");  // nor did messages go there, as the first file opened
}

TEST(Programs, SayThatStandardInputIsClosed) {
  const std::string errors = scratch_folder() / "errors.txt";
  for (const std::vector<std::string>& options :
       {std::vector<std::string>{"--batch", "-"}, std::vector<std::string>{"--tokenize"}}) {
    std::vector<std::string> command = {"faststream-run", "-m", engine_model()};
    command.insert(command.end(), options.begin(), options.end());
    const Descriptor err(errors, O_WRONLY | O_CREAT | O_TRUNC);
    EXPECT_EQ(wait_for_program(start_program(command, kClosed, err.fd(), err.fd())), 1);
    EXPECT_NE(read_file(errors).find("standard input cannot be read"), std::string::npos)
        << read_file(errors);
  }
}

TEST(Programs, GoOnAfterSignalsThatAreIgnored) {
  const std::string output = scratch_folder() / "nohup.txt";
  // It waits for its input when the signals come.
  const std::string command = "trap '' HUP INT; { sleep 0.2; echo the; } | " + programs_folder() +
                              "/faststream-run -m " + engine_model().string() +
                              " --batch - -n 1 --device cpu > " + output +
                              " 2>&1 & sleep 0.1; kill -HUP $!; kill -INT $!; wait $!";
  const int status = std::system(command.c_str());  // NOLINT(cert-env33-c): the shell ignores them
  EXPECT_EQ(WEXITSTATUS(status), 0) << read_file(output);
}

}  // namespace
}  // namespace faststream
