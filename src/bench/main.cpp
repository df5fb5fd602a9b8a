// faststream-bench: tokens per second of a shape or a model file, or what types of weights cost.

#include "bench/bench_command.h"
#include "bench/bench_options.h"
#include "bench/quality/quality.h"
#include "program/program.h"

int main(int argc, char** argv) {
  faststream::bench::BenchOptions options;
  return faststream::run_program(
      "faststream-bench", argc, argv,
      [&](CLI::App& app) { faststream::bench::add_bench_options(app, options); },
      [&] {
        if (options.quality.empty()) {
          faststream::bench::bench_command(options);
        } else {
          faststream::bench::quality_command(options);
        }
      });
}
