// A whole batch, of an engine that the test makes.
#include "cli/batch/batch_command.h"

#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <string>

#include "program/interrupt.h"
#include "unit/engine/engine_model.h"
#include "unit/program/caught_interrupts.h"
#include "unit/support/file_helpers.h"

namespace faststream::cli {
namespace {

// The tokenizer asks several times during such a line.
std::string long_line() { return repeat("the ", size_t{1} << 18) + "\n"; }

TEST(BatchCommand, EndsAsInterruptedInTheMidstOfATextsTokenization) {
  for (const bool strict : {false, true}) {
    const TemporaryFolder folder;
    write_bytes(folder / "lines.txt", "a\n" + long_line() + long_line());
    BatchOptions options;
    options.input = folder / "lines.txt";
    options.strict = strict;
    const CaughtInterrupts caught;
    std::atomic<bool> raised = false;  // once: a second signal is deadly
    bool loaded = false;               // which may ask, too
    EngineOptions engine = {.device = "cpu", .threads = 1};
    engine.check_interrupted = [&] {
      if (loaded && !raised.exchange(true)) std::raise(SIGINT);
      check_interrupted();
    };
    // Else a text that is too long is refused before it is tokenized.
    Request prototype;
    prototype.parse_special = true;
    testing::internal::CaptureStderr();
    testing::internal::CaptureStdout();
    const auto load = [&] {
      LoadedEngine model{Engine(engine_model(), engine), prototype, {}};
      loaded = true;
      return model;
    };
    EXPECT_THROW(batch_command(
                     options, [] { return BatchOrigin{}; }, prototype, load),
                 Interrupted);
    testing::internal::GetCapturedStdout();
    const std::string told = testing::internal::GetCapturedStderr();
    EXPECT_TRUE(raised) << "the text was tokenized without a look";
    EXPECT_TRUE(told.starts_with("batch interrupted: ")) << told;
  }
}

}  // namespace
}  // namespace faststream::cli
