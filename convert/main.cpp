// faststream-convert: a checkpoint becomes a model file.

#include "convert/convert_command.h"
#include "convert/convert_options.h"
#include "program/program.h"

int main(int argc, char** argv) {
  faststream::ConvertCommandOptions options;
  return faststream::run_program(
      "faststream-convert", argc, argv,
      [&](CLI::App& app) { faststream::add_convert_options(app, options); },
      [&] { faststream::convert_command(options); });
}
