// faststream-convert: a checkpoint becomes a model file.
#include <iostream>
#include <optional>
#include <string>

#include "convert/pipeline.h"
#include "convert/show.h"
#include "program/interrupt.h"
#include "program/program.h"
#include "support/error.h"
#include "support/machine.h"

namespace {

struct Arguments {
  std::string checkpoint;
  std::string output;
  std::string dtype;
  std::string tokenizer;
  std::string show;
  std::string verify;
  bool keep_output = false;
  bool force = false;
  bool quiet = false;
  int threads = faststream::available_threads();
};

void add_options(CLI::App& app, Arguments& arguments) {
  app.description(
      "Packs a checkpoint (weights, tokenizer, chat template) into one model file for\n"
      "faststream-run.");
  app.set_version_flag("--version", std::string("faststream ") + FASTSTREAM_VERSION);
  app.add_option("CHECKPOINT", arguments.checkpoint,
                 "A Hugging Face folder (config.json, *.safetensors, tokenizer.model) of the Llama "
                 "family, or a llama2.c .bin file");
  app.add_option("-o,--output", arguments.output, "The model file to write")->type_name("FILE");
  app.add_option("--dtype", arguments.dtype,
                 "Type of the weights: f32, f16, bf16 or int8 (one scale for each output channel); "
                 "default: the checkpoint's own")
      ->check(CLI::IsMember({"f32", "f16", "bf16", "int8"}))
      ->type_name("TYPE");
  app.add_flag("--keep-output", arguments.keep_output,
               "With --dtype int8: leave the output matrix in 16 bits");
  app.add_option("--tokenizer", arguments.tokenizer,
                 "A SentencePiece .model or llama2.c tokenizer .bin instead of the checkpoint's")
      ->type_name("FILE");
  app.add_flag("--force", arguments.force, "Overwrite the output file");
  app.add_flag("-q,--quiet", arguments.quiet, "No progress bar and no summary");
  app.add_option("-t,--threads", arguments.threads, "Threads; default: all")
      ->check(faststream::whole_number(1, 1024))
      ->type_name("N");
  app.add_option("--show", arguments.show, "Print what is in a model file, and leave")
      ->type_name("FILE");
  app.add_option("--verify", arguments.verify, "Check every byte of a model file, and leave")
      ->type_name("FILE");
  app.footer(
      "Examples:\n"
      "  faststream-convert Llama-2-7b-hf/ -o llama2-7b.bin --dtype int8\n"
      "  faststream-convert stories260K.bin -o stories.bin --tokenizer tok512.bin\n"
      "  faststream-convert --show llama2-7b.bin\n"
      "\n"
      "Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.");
}

void convert(const Arguments& arguments) {
  if (arguments.checkpoint.empty()) {
    throw faststream::UsageError("CHECKPOINT is missing (see faststream-convert --help)");
  }
  if (arguments.output.empty()) {
    throw faststream::UsageError("-o FILE is missing: where should the model file go?");
  }
  faststream::ConvertOptions options;
  options.checkpoint = arguments.checkpoint;
  options.output = arguments.output;
  options.dtype = faststream::dtype_from_name(arguments.dtype);
  options.keep_output = arguments.keep_output;
  if (!arguments.tokenizer.empty()) options.tokenizer = arguments.tokenizer;
  options.force = arguments.force;
  options.show_progress = !arguments.quiet;
  options.threads = arguments.threads;
  options.check_interrupted = faststream::check_interrupted;
  const faststream::ConvertReport report = faststream::convert_checkpoint(options);
  if (!arguments.quiet) faststream::print_report(report, std::cerr);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("", "faststream-convert");
  Arguments arguments;
  add_options(app, arguments);
  return faststream::run_program(app, argc, argv, [&] {
    const bool shows = !arguments.show.empty();
    const bool verifies = !arguments.verify.empty();
    if (shows && verifies) throw faststream::UsageError("--show and --verify exclude each other");
    if ((shows || verifies) && !(arguments.checkpoint.empty() && arguments.output.empty())) {
      throw faststream::UsageError("--show and --verify convert nothing; give one FILE alone");
    }
    if (shows) return faststream::show_model_file(arguments.show, std::cout);
    if (verifies) return faststream::verify_model_file(arguments.verify, std::cout);
    faststream::catch_interrupts();
    convert(arguments);
  });
}
