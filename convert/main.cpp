// faststream-convert: a checkpoint becomes a model file.

#include "convert/convert_command.h"
#include "convert/convert_options.h"
#include "program/program.h"

int main(int argc, char** argv) {
  CLI::App app("", "faststream-convert");
  faststream::ConvertCommandOptions options;
  faststream::add_convert_options(app, options);
  return faststream::run_program(app, argc, argv, [&] { faststream::convert_command(options); });
}
