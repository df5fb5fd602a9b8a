#include "bench/bench_options.h"

#include <CLI/CLI.hpp>
#include <istream>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "bench/random_model.h"
#include "engine/memory_plan.h"
#include "engine/ranks.h"
#include "program/option_values.h"
#include "support/error.h"
#include "support/name_list.h"
#include "support/weight_format.h"

namespace faststream::bench {
namespace {

constexpr int32_t kMostTokens = 1 << 20;

CLI::Validator lengths() {
  const auto check = [](std::string& text) {
    const size_t colon = text.find(':');
    const auto whole = whole_number(1, kMostTokens);
    std::string first = text.substr(0, colon);
    std::string error = whole(first);
    if (error.empty() && colon != std::string::npos) {
      std::string last = text.substr(colon + 1);
      error = whole(last);
      if (error.empty() && std::stoi(first) > std::stoi(last)) {
        error = text + " is not a range: it ends before it begins";
      }
    }
    return error;
  };
  return CLI::Validator(check, "", "");
}

CLI::Validator requests_a_second() {
  const auto check = [](const std::string& text) {
    double rate = 0;
    const char* end = text.data() + text.size();
    const auto [stop, status] = std::from_chars(text.data(), end, rate);
    if (status == std::errc() && stop == end && rate >= 0 && rate <= 1e6) return std::string();
    return text + " is not a number from 0 to 1000000";
  };
  return CLI::Validator(check, "", "");
}

}  // namespace

std::istream& operator>>(std::istream& text, Lengths& lengths) {
  text >> lengths.least;
  lengths.most = lengths.least;
  if (text && text.peek() == ':') {
    text.get();
    text >> lengths.most;
  }
  if (text.eof()) text.clear(std::ios::eofbit);
  return text;
}

std::ostream& operator<<(std::ostream& text, const Lengths& lengths) {
  text << lengths.least;
  if (lengths.is_range()) text << ':' << lengths.most;
  return text;
}

void add_bench_options(CLI::App& app, BenchOptions& options) {
  app.description(
      "Measures tokens per second, of random weights of a named shape or of a model file, and "
      "what\n"
      "share that is of the speed that the device's memory and arithmetic allow.");
  app.set_version_flag("--version", std::string("faststream ") + FASTSTREAM_VERSION);
  std::string names;
  for (const std::string_view name : shape_names()) add_name(names, name);
  auto* shape = app.add_option("--shape", options.shape, "A shape with random weights: " + names)
                    ->type_name("NAME");
  auto* model = app.add_option("-m,--model", options.models,
                               "A model file instead; with --quality a checkpoint, or several "
                               "files, each after an -m")
                    ->type_name("FILE")
                    ->allow_extra_args(false)
                    ->excludes(shape);
  std::vector<std::string> formats;
  for (const WeightFormat format : kWeightFormats) formats.emplace_back(format_name(format));
  app.add_option("--dtype", options.dtype, "Weights of the shape")
      ->type_name("TYPE")
      ->check(CLI::IsMember(formats))
      ->excludes(model)
      ->capture_default_str();
  app.add_option("--kv", options.kv, "The KV cache of whole texts: int8 or fp8 [16 bits]")
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"int8", "fp8"}));
  app.add_option("--device", options.device,
                 "auto, cpu, cuda or cuda:N; or several, cuda:0,1, that run the model together")
      ->type_name("DEVICE")
      ->capture_default_str();
  app.add_option("--pipeline", options.stages,
                 "The model's layers in so many parts, one after the other, each on as many of the "
                 "devices, or of the processes that mpirun has started")
      ->type_name("N")
      ->check(whole_number(1, kMostRanks))
      ->capture_default_str();
  app.add_option("-t,--threads", options.threads, "CPU threads [all]")
      ->type_name("N")
      ->check(whole_number(1, 1024));
  app.add_option("--prompt", options.prompt,
                 "Tokens of the prompts to measure, separated by commas; with --requests one N or "
                 "range A:B")
      ->type_name("N")
      ->delimiter(',')
      ->check(lengths())
      ->capture_default_str();
  auto* sequences = app.add_option("--sequences", options.sequences,
                                   "Numbers of sequences that generate together, separated by "
                                   "commas")
                        ->type_name("N")
                        ->delimiter(',')
                        ->check(whole_number(1, 4096))
                        ->capture_default_str();
  auto* depth = app.add_option("--depth", options.depth,
                               "Tokens that sequences have before they generate, separated by "
                               "commas")
                    ->type_name("N")
                    ->delimiter(',')
                    ->check(whole_number(1, kMostTokens))
                    ->capture_default_str();
  app.add_option("--generate", options.generate,
                 "Tokens that each sequence generates; with --requests N or A:B")
      ->type_name("N")
      ->check(lengths())
      ->capture_default_str();
  auto* alike = app.add_flag("--alike", options.alike,
                             "All sequences generate the same tokens: experts are chosen alike");
  auto* repeat = app.add_option("--repeat", options.repeat, "Runs of which the median is shown")
                     ->type_name("N")
                     ->check(whole_number(1, 1000))
                     ->capture_default_str();
  auto* profile =
      app.add_flag("--profile", options.profile, "Also show where the time goes, by operation");
  app.add_flag("--json", options.json, "Print one JSON object a line");
  auto* requests = app.add_option("--requests", options.requests,
                                  "Measure so many requests through the scheduler instead")
                       ->type_name("N")
                       ->check(whole_number(1, 10'000'000));
  for (auto* other : {sequences, depth, alike, repeat}) requests->excludes(other);
  requests->excludes(profile);
  app.add_option("--rate", options.rate,
                 "Requests that come in a second, at random times [at once]")
      ->type_name("X")
      ->check(requests_a_second())
      ->needs(requests);
  app.add_option("--slots", options.slots, "Requests that run at once [chosen]")
      ->type_name("N")
      ->check(whole_number(1, kMaxSlots))
      ->needs(requests);
  app.add_option("--chunk", options.chunk, "Prompt tokens of a step beside running ones [chosen]")
      ->type_name("N")
      ->check(whole_number(kMinChunk, kMostTokens))
      ->needs(requests);
  auto* quality =
      app.add_option("--quality", options.quality,
                     "Measure what types of weights cost instead: a table of sizes, perplexity, "
                     "KL divergence and speed over this text, of a checkpoint converted to each, "
                     "or of model files")
          ->check(named_file())
          ->needs(model)
          ->type_name("TEXT");
  for (auto* other : {shape, sequences, depth, alike, repeat, requests}) quality->excludes(other);
  for (const char* other : {"--profile", "--prompt", "--generate", "--dtype", "--pipeline"}) {
    quality->excludes(app.get_option(other));
  }
  app.add_option("--recipe", options.recipes,
                 "Of the checkpoint this alone: a type and options of faststream-convert, as in "
                 "\"int8 --keep-output\"; may be given several times")
      ->check(some_text())
      ->allow_extra_args(false)
      ->needs(quality)
      ->type_name("RECIPE");
  app.add_option("--against", options.against, "Model file to compare with [the checkpoint in f32]")
      ->check(named_file())
      ->needs(quality)
      ->type_name("FILE");
  app.add_option("-c,--context", options.context,
                 "Tokens of the windows that the text is cut into [512]")
      ->type_name("N")
      ->check(whole_number<int64_t>(3))
      ->needs(quality);
  app.footer(R"(
Examples:
  faststream-bench --shape llama-2-7b --dtype int8 --prompt 512,2048
  faststream-bench --shape llama-1.1b --dtype bf16 --device cpu -t 2 --sequences 1,8
  faststream-bench -m llama.bin --device cuda --depth 16,4000 --kv fp8 --profile
  faststream-bench --shape llama-3-8b --requests 1000 --prompt 128:1024 --generate 32:512
  faststream-bench --quality book.txt -m Llama-3.2-1B/)");
}

void check(const BenchOptions& options) {
  if (options.models.size() > 1 && options.quality.empty()) {
    throw UsageError("--model: can be given only once, but with --quality");
  }
  if (options.shape.empty() == options.models.empty()) {
    throw UsageError("give a --shape or a --model to measure");
  }
  if (options.requests > 0) {
    if (options.prompt.size() == 1) return;
    throw UsageError("--requests takes one --prompt, such as 512 or 128:1024");
  }
  bool has_range = options.generate.is_range();
  for (const Lengths& length : options.prompt) has_range = has_range || length.is_range();
  if (has_range) throw UsageError("a range of lengths, A:B, is for --requests");
}

}  // namespace faststream::bench
