// faststream-bench: tokens per second of a shape or a model file, or what types of weights cost.

#include "bench/bench_command.h"
#include "bench/bench_options.h"
#include "bench/quality/quality.h"
#include "program/processes.h"
#include "program/program.h"

int main(int argc, char** argv) {
  faststream::bench::BenchOptions options;
  return faststream::run_program(
      "faststream-bench", argc, argv,
      [&](CLI::App& app) { faststream::bench::add_bench_options(app, options); },
      [&] {
        if (!options.quality.empty()) return faststream::bench::quality_command(options);
        faststream::EngineOptions engine{
            .device = options.device, .threads = options.threads, .stages = options.stages};
        faststream::run_in_processes(engine,
                                     [&] { faststream::bench::bench_command(options, engine); });
      });
}
