// faststream-bench: tokens per second of a shape or a model file.

#include "cli/bench/bench_command.h"
#include "program/program.h"

int main(int argc, char** argv) {
  CLI::App app("", "faststream-bench");
  faststream::BenchOptions options;
  faststream::add_bench_options(app, options);
  return faststream::run_program(app, argc, argv, [&] { faststream::bench_command(options); });
}
