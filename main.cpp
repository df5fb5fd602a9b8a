// faststream-run: one model file, one prompt, the model's text.

#include "cli/run_command.h"
#include "cli/run_options.h"
#include "program/processes.h"
#include "program/program.h"

int main(int argc, char** argv) {
  faststream::cli::RunOptions options;
  return faststream::run_program(
      "faststream-run", argc, argv,
      [&](CLI::App& app) { faststream::cli::add_run_options(app, options); },
      [&] {
        const auto run = [&] { faststream::cli::run_command(options); };
        if (options.batch.part.count > 1) return run();  // as the processes of other parts do
        faststream::run_in_processes(options.engine, run);
      });
}
