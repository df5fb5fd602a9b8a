// A model file that shrinks while a program runs.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <string>

#include "run_program.h"
#include "stories.h"

namespace faststream {
namespace {

void send(int fd, const std::string& text) {
  ASSERT_EQ(write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

TEST(TruncatedModel, EndsARunWithASentence) {
  if (stories_folder().empty()) GTEST_SKIP() << "the model is not beside the checkout";
  const auto model = scratch_folder() / "cut-while-read.bin";
  std::filesystem::copy_file(stories_model(), model);
  std::array<int, 2> input{};
  std::array<int, 2> output{};
  ASSERT_EQ(pipe2(input.data(), O_CLOEXEC), 0);
  ASSERT_EQ(pipe2(output.data(), O_CLOEXEC), 0);
  const run_program_detail::TemporaryFile error = run_program_detail::temporary_file();
  const pid_t program =
      start_program({"faststream-run", "-m", model.string(), "--device", "cpu", "--batch", "-"},
                    input[0], output[1], fileno(error.get()));
  close(output[1]);
  send(input[1], "{\"prompt\":\"Once\",\"max_tokens\":2}\n");
  char first = 0;
  ASSERT_EQ(read(output[0], &first, 1), 1);  // the model is in use, and waits for the next line
  std::filesystem::resize_file(model, 4096);
  send(input[1], "{\"prompt\":\"Twice\",\"max_tokens\":2}\n");
  EXPECT_EQ(wait_for_program(program), 1);
  EXPECT_EQ(run_program_detail::contents(error.get()),
            "faststream-run: the model file, or another one in use, was truncated or cannot be "
            "read any more; copy it again and leave it as it is while it is in use\n");
  for (const int fd : {input[0], input[1], output[0]}) close(fd);
}

}  // namespace
}  // namespace faststream
