// faststream-convert: a checkpoint becomes a model file.

#include "convert/command/convert_command.h"
#include "convert/command/convert_options.h"
#include "program/program.h"

int main(int argc, char** argv) {
  faststream::convert::ConvertCommandOptions options;
  return faststream::run_program(
      "faststream-convert", argc, argv,
      [&](CLI::App& app) { faststream::convert::add_convert_options(app, options); },
      [&] { faststream::convert::convert_command(options); });
}
