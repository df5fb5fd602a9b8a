#include "convert/command/convert_options.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <vector>

#include "convert/calibration/calibrate.h"
#include "convert/huggingface/sentence_transformers.h"
#include "program/input.h"
#include "program/option_values.h"

namespace faststream::convert {

ConvertOptions conversion_of(const std::string& checkpoint, const ConvertCommandOptions& options) {
  ConvertOptions conversion;
  conversion.checkpoint = checkpoint;
  conversion.format = format_from_name(options.dtype);
  conversion.keep_output = options.keep_output;
  conversion.keep = options.keep;
  conversion.no_mtp = options.no_mtp;
  if (!options.eagle.empty()) conversion.eagle = options.eagle;
  conversion.adapters.assign(options.adapters.begin(), options.adapters.end());
  conversion.task = options.task;
  if (options.activation_bits != 0) conversion.activation_bits = options.activation_bits;
  conversion.pooling = pooling_named(options.pooling);
  conversion.normalize = options.normalize;
  if (!options.tokenizer.empty()) conversion.tokenizer = options.tokenizer;
  if (!options.imatrix.empty()) conversion.imatrix = options.imatrix;
  return conversion;
}

namespace {

constexpr const char* kRandomText = "random";  // of --calibrate

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (const WeightFormat format : kWeightFormats) names.emplace_back(format_name(format));
  return names;
}

}  // namespace

void add_statistics(const ConvertCommandOptions& options, ConvertOptions& conversion) {
  if (options.calibrate.empty()) return;
  CalibrationOptions calibration{.device = options.device,
                                 .threads = conversion.threads,
                                 .show_progress = conversion.show_progress,
                                 .check_interrupted = conversion.check_interrupted};
  if (options.calibrate != kRandomText) {
    calibration.text = read_some_text(options.calibrate, "--calibrate");
  }
  conversion.statistics =
      std::make_shared<const ActivationStatistics>(calibrate(conversion, calibration));
}

void add_convert_options(CLI::App& app, ConvertCommandOptions& options) {
  app.description(
      "Packs a checkpoint (weights, tokenizer, chat template) into one model file for\n"
      "faststream-run.");
  app.set_version_flag("--version", std::string("faststream ") + FASTSTREAM_VERSION);
  app.add_option(
      "CHECKPOINT", options.checkpoint,
      "A Hugging Face folder (config.json, *.safetensors or pytorch_model.bin, a tokenizer), "
      "quantized already (GPTQ, AWQ, FP8 and others) or not, a GGUF file or a llama2.c .bin file");
  app.add_option("-o,--output", options.output, "The model file to write")
      ->check(output_file())
      ->type_name("FILE");
  app.add_option("--dtype", options.dtype,
                 "Type of the weights: f32, f16, bf16, int8 (one scale for each output channel), "
                 "int4 (4.25 bits; the output matrix int8), or fp8, mxfp4, nf4, int4-g32, int4-g64 "
                 "or int4-g128, as checkpoints are quantized (the output matrix in 16 bits); "
                 "default: the checkpoint's own; quantized ones keep their bits where a type "
                 "holds them exactly, else bf16")
      ->check(CLI::IsMember(format_names()))
      ->type_name("TYPE");
  app.add_flag("--keep-output", options.keep_output,
               "With --dtype int8 or int4: leave the output matrix in 16 bits");
  app.add_option("--keep", options.keep,
                 "Where weights are quantized: other types for some tensors, as "
                 "output=int8,down:0-3=int8: output, qkv, attention_out, gate_up, down, experts, "
                 "shared, recurrent, or a name that --show prints; after a colon layers; none: "
                 "of no tensors, where int4 has some of narrow models in int8")
      ->check(some_text())
      ->type_name("LIST");
  app.add_option("--lora", options.adapters,
                 "The folder of a LoRA or DoRA adapter in PEFT's format (adapter_config.json, "
                 "adapter_model.safetensors or adapter_model.bin) to merge into the weights of a "
                 "Hugging Face folder before they are quantized (repeatable)")
      ->check(named_file())
      ->allow_extra_args(false)
      ->type_name("DIR");
  CLI::Option* adapter_for =
      app.add_option("--adapter-for", options.adapter_for,
                     "With --lora: write what the adapter adds to MODEL, a file that was made of "
                     "the same checkpoint, for faststream-run --adapter to run beside it, in place "
                     "of a model file")
          ->needs("--lora")
          ->check(named_file())
          ->type_name("MODEL");
  app.add_option("--task", options.task,
                 "Of a checkpoint that has adapters for tasks beside its weights (Jina Embeddings "
                 "v3): the one to merge, as retrieval.query; its instruction then stands before "
                 "every text; none: leave them out")
      ->check(some_text())
      ->type_name("NAME");
  CLI::Option* no_mtp = app.add_flag(
      "--no-mtp", options.no_mtp,
      "Leave out the heads that predict further tokens (multi-token prediction), which "
      "faststream-run --speculate mtp uses");
  app.add_option("--eagle", options.eagle,
                 "The folder of a head of EAGLE-3 (config.json, *.safetensors or "
                 "pytorch_model.bin) that was trained for the checkpoint: it is put into the model "
                 "file in place of other heads, for faststream-run --speculate mtp")
      ->excludes(no_mtp)
      ->check(named_file())
      ->type_name("DIR");
  app.add_option(
         "--activation-bits", options.activation_bits,
         "With --dtype int8: bits of what matrices are multiplied with, 8 (faster) or 16 "
         "(matrices are not rotated, and the last one of each feed-forward stays in 16 bits, "
         "too); default: 8")
      ->check(CLI::IsMember({8, 16}))
      ->type_name("N");
  CLI::Option* calibrate =
      app.add_option(
             "--calibrate", options.calibrate,
             "With --dtype int4: a text (UTF-8, - for standard input) that the model is run "
             "over, to round less where its weights are multiplied with more; some 100 kB "
             "of what it will read; or random: tokens drawn from the vocabulary, better "
             "than nothing")
          ->type_name("FILE");
  app.add_option("--imatrix", options.imatrix,
                 "An importance matrix of llama.cpp that says the same")
      ->excludes(calibrate)
      ->type_name("FILE");
  app.add_option("--device", options.device,
                 "With --calibrate: what the model is run on: auto, cpu, cuda or cuda:N")
      ->needs(calibrate)
      ->type_name("DEVICE");
  app.add_option(
         "--tokenizer", options.tokenizer,
         "A tokenizer.json, SentencePiece .model, tekken.json or llama2.c tokenizer .bin instead "
         "of the checkpoint's")
      ->type_name("FILE");
  app.add_option("--pooling", options.pooling,
                 "How an encoder makes a text's vector of its tokens', where the checkpoint lacks "
                 "sentence-transformers' modules.json: mean, cls, max, lasttoken, weightedmean or "
                 "mean_sqrt_len_tokens")
      ->check(CLI::IsMember(
          {"mean", "cls", "max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens"}))
      ->type_name("HOW");
  app.add_flag(
      "--normalize", options.normalize,
      "Vectors get length 1, where the checkpoint does not say so itself, as no GGUF file does");
  app.add_flag("--force", options.force, "Overwrite the output file");
  app.add_flag("-q,--quiet", options.quiet, "No progress bar and no summary");
  app.add_option("-t,--threads", options.threads, "Threads; default: all")
      ->check(whole_number(1, 1024))
      ->type_name("N");
  for (const char* of_models :
       {"--dtype", "--keep-output", "--keep", "--no-mtp", "--eagle", "--activation-bits",
        "--calibrate", "--imatrix", "--pooling", "--normalize", "--task"}) {
    adapter_for->excludes(app.get_option(of_models));
  }
  const std::vector<CLI::Option*> of_conversions = app.get_options();
  CLI::Option* check =
      app.add_option(
             "--check", options.check,
             "Say what converting a checkpoint would do, or why it cannot be converted, and "
             "leave; takes --dtype, --keep, --keep-output, --lora, --task, --no-mtp, --eagle, "
             "--activation-bits and --tokenizer")
          ->type_name("PATH");
  for (const char* name : {"CHECKPOINT", "--output", "--adapter-for", "--calibrate", "--force",
                           "--quiet", "--threads"}) {
    check->excludes(app.get_option(name));
  }
  CLI::Option* show =
      app.add_option("--show", options.show, "Print what is in a model file, and leave")
          ->type_name("FILE");
  CLI::Option* verify =
      app.add_option("--verify", options.verify, "Check every byte of a model file, and leave")
          ->type_name("FILE");
  show->excludes(verify)->excludes(check);
  verify->excludes(check);
  for (const char* option : {"CHECKPOINT", "--output", "--tokenizer", "--calibrate", "--imatrix",
                             "--check", "--show", "--verify"}) {
    app.get_option(option)->check(named_file());
  }
  for (CLI::Option* option : of_conversions) {
    show->excludes(option);
    verify->excludes(option);
  }
  app.footer(
      "Examples:\n"
      "  faststream-convert Llama-2-7b-hf/ -o llama2-7b.bin --dtype int8\n"
      "  faststream-convert Llama-2-7b-hf/ --lora my-adapter/ -o mine.bin --dtype int8\n"
      "  faststream-convert Llama-2-7b-hf/ --lora bot/ --adapter-for llama2-7b.bin -o bot.bin\n"
      "  faststream-convert llama-3.2-1b-q8_0.gguf -o llama.bin\n"
      "  faststream-convert stories260K.bin -o stories.bin --tokenizer tok512.bin\n"
      "  faststream-convert --check SmolLM2-135M-Instruct.Q4_1.gguf\n"
      "  faststream-convert --show llama2-7b.bin\n"
      "\n"
      "Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.");
}

}  // namespace faststream::convert
