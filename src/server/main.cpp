// faststream-serve: models for programs that speak OpenAI's HTTP interface.

#include "program/program.h"
#include "server/serve_command.h"
#include "server/serve_options.h"

int main(int argc, char** argv) {
  faststream::server::ServeOptions options;
  return faststream::run_program(
      "faststream-serve", argc, argv,
      [&](CLI::App& app) { faststream::server::add_serve_options(app, options); },
      [&] { faststream::server::serve_command(options); });
}
