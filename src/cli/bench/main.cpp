// faststream-bench: tokens per second of a shape or a model file.

#include "cli/bench/bench_command.h"
#include "cli/bench/bench_options.h"
#include "program/program.h"

int main(int argc, char** argv) {
  faststream::BenchOptions options;
  return faststream::run_program(
      "faststream-bench", argc, argv,
      [&](CLI::App& app) { faststream::add_bench_options(app, options); },
      [&] { faststream::bench_command(options); });
}
