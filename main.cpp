// faststream-run: one model file, one prompt, the model's text.

#include "cli/run_command.h"
#include "cli/run_options.h"
#include "program/program.h"

int main(int argc, char** argv) {
  CLI::App app("", "faststream-run");
  faststream::RunOptions options;
  faststream::add_run_options(app, options);
  return faststream::run_program(app, argc, argv, [&] { faststream::run_command(options); });
}
