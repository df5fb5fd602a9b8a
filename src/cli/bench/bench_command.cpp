#include "cli/bench/bench_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>

#include "engine/device.h"
#include "engine/random_model.h"
#include "engine/runner.h"
#include "program/interrupt.h"
#include "program/option_values.h"
#include "program/output.h"
#include "support/error.h"
#include "support/printable.h"
#include "support/progress.h"

namespace faststream {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Bytes of weights that a step of so many tokens reads: all but tables, which are only looked up;
// of experts as many as tokens that choose at random use.
size_t bytes_per_step(const ModelConfig& config, int64_t tokens) {
  double unused = 1;  // share of experts that no token uses
  for (const LayerConfig& layer : config.layer_kinds) {
    if (!layer.experts) continue;
    const double share =
        static_cast<double>(layer.experts->router.used) / static_cast<double>(layer.experts->count);
    unused = std::pow(1 - share, static_cast<double>(tokens));
  }
  double total = 0;
  for (const TensorPlan& tensor : tensor_plan(config)) {
    const bool is_output = tensor.name == "embedding" && config.output.tied;
    if (tensor.role == TensorRole::table && !is_output) continue;
    auto bytes = static_cast<double>(dtype_size(tensor.dtype));
    for (const int64_t n : tensor.shape) bytes *= static_cast<double>(n);
    total += tensor.experts > 0 ? bytes * (1 - unused) : bytes;
  }
  return static_cast<size_t>(total);
}

// Token ids without meaning, the same in every run.
std::vector<int32_t> make_prompt(int32_t length, int64_t vocab) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < length; ++i) {
    tokens.push_back(static_cast<int32_t>((int64_t{i} * 7919 + 13) % vocab));
  }
  return tokens;
}

class Bench {
 public:
  Bench(const ModelFile& file, const BenchOptions& options)
      : options_(options),
        config_(read_config(file)),
        backend_(choose_backend(options.device, options.threads, file.weights().bytes.size())),
        runner_(file, *backend_, limits(options), nullptr) {}

  void print_header(const std::string& name) const {
    const size_t bytes = bytes_per_step(config_, 1);
    std::printf("%s, %s, %s, %s of weights a step\n", printable(name).c_str(),
                std::string(dtype_name(config_.weight_dtype)).c_str(),
                backend_->description().c_str(), format_bytes(bytes).c_str());
    flush_output();
  }

  // Tokens a second of processing one prompt, the first token drawn.
  void measure_prefill(int32_t length) {
    const std::vector<int32_t> prompt = make_prompt(length, config_.vocab);
    std::vector<double> times;
    for (int32_t run = -1; run < options_.repeat; ++run) {  // run -1 warms up
      Sequence sequence;
      const auto start = Clock::now();
      runner_.step({{{.sequence = &sequence, .tokens = prompt}}});
      (void)runner_.sample({{sampling_row({.temperature = 0}, sequence.n_cached)}});
      if (run >= 0) times.push_back(seconds_since(start));
      runner_.release(sequence);
      check_interrupted();
    }
    const double seconds = median(times);
    std::printf("prefill   %6d tokens             %10.1f tokens/s  %9.2f ms\n", length,
                length / seconds, seconds * 1e3);
    flush_output();
  }

  // Tokens a second of `count` sequences that generate together after a prompt of 16 tokens.
  void measure_decode(int32_t count) {
    const std::vector<int32_t> prompt = make_prompt(kDecodePrompt, config_.vocab);
    std::vector<double> times;
    for (int32_t run = 0; run < options_.repeat; ++run) {
      times.push_back(decode(count, prompt));
      check_interrupted();
    }
    const double step = median(times);
    std::printf(
        "decode    %6d tokens × %3d sequences %8.1f tokens/s  %9.3f ms a step, weights at %s/s\n",
        options_.generate, count, count / step, step * 1e3,
        format_bytes(
            static_cast<uint64_t>(static_cast<double>(bytes_per_step(config_, count)) / step))
            .c_str());
    flush_output();
  }

 private:
  static constexpr int32_t kDecodePrompt = 16;
  static constexpr int32_t kWarmUpSteps = 4;

  static RunnerLimits limits(const BenchOptions& options) {
    const int32_t sequences = *std::max_element(options.sequences.begin(), options.sequences.end());
    const int32_t prompt = *std::max_element(options.prompt.begin(), options.prompt.end());
    const int64_t n_pages = std::max<int64_t>(
        pages_for(prompt),
        int64_t{sequences} * pages_for(int64_t{kDecodePrompt} + kWarmUpSteps + options.generate));
    return {.n_pages = static_cast<int32_t>(n_pages),
            .batch = {.max_tokens = std::max(prompt, sequences * kDecodePrompt),
                      .max_logits = sequences}};
  }

  // Seconds of a step, the mean over options.generate steps.
  double decode(int32_t count, const std::vector<int32_t>& prompt) {
    std::vector<Sequence> sequences(static_cast<size_t>(count));
    std::vector<NewTokens> inputs;
    for (Sequence& sequence : sequences)
      inputs.push_back({&sequence, prompt, NewTokens::Logits::last});
    std::vector<SampledToken> sampled = step(inputs);

    Clock::time_point start;
    for (int32_t n = -kWarmUpSteps; n < options_.generate; ++n) {
      if (n == 0) start = Clock::now();
      for (size_t s = 0; s < inputs.size(); ++s) inputs[s].tokens = {&sampled[s].token, 1};
      sampled = step(inputs);
    }
    const double seconds = seconds_since(start) / options_.generate;
    for (Sequence& sequence : sequences) runner_.release(sequence);
    return seconds;
  }

  std::vector<SampledToken> step(const std::vector<NewTokens>& inputs) {
    runner_.step(inputs);
    std::vector<SamplingRow> rules;
    for (const NewTokens& input : inputs) {
      rules.push_back(sampling_row({.temperature = 0}, input.sequence->n_cached));
    }
    return runner_.sample(rules);
  }

  const BenchOptions& options_;
  ModelConfig config_;
  std::unique_ptr<Backend> backend_;
  Runner runner_;
};

}  // namespace

void add_bench_options(CLI::App& app, BenchOptions& options) {
  app.description(
      "Measures tokens per second, of random weights of a named shape or of a model file.");
  app.set_version_flag("--version", std::string("faststream ") + FASTSTREAM_VERSION);
  std::string names;
  for (const std::string_view name : shape_names()) {
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  auto* shape = app.add_option("--shape", options.shape, "A shape with random weights: " + names)
                    ->type_name("NAME");
  auto* model = app.add_option("-m,--model", options.model, "A model file instead")
                    ->type_name("FILE")
                    ->excludes(shape);
  app.add_option("--dtype", options.dtype, "Weights of the shape: f32, f16, bf16 or int8")
      ->check(CLI::IsMember({"f32", "f16", "bf16", "int8"}))
      ->excludes(model)
      ->capture_default_str();
  app.add_option("--device", options.device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("-t,--threads", options.threads, "CPU threads [all]")
      ->check(whole_number(1, 1024));
  app.add_option("--prompt", options.prompt,
                 "Tokens of the prompts to measure, separated by commas")
      ->delimiter(',')
      ->check(whole_number(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--sequences", options.sequences,
                 "Numbers of sequences that generate together, separated by commas")
      ->delimiter(',')
      ->check(whole_number(1, 4096))
      ->capture_default_str();
  app.add_option("--generate", options.generate, "Tokens that each sequence generates")
      ->check(whole_number(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--repeat", options.repeat, "Runs of which the median is shown")
      ->check(whole_number(1, 1000))
      ->capture_default_str();
  app.footer(R"(
Examples:
  faststream-bench --shape llama-2-7b --dtype int8 --prompt 512,2048
  faststream-bench --shape llama-1.1b --dtype bf16 --device cpu -t 2 --sequences 1,8
  faststream-bench -m llama.bin --device cuda)");
}

void bench_command(const BenchOptions& options) {
  catch_interrupts();
  if (options.shape.empty() == options.model.empty()) {
    throw UsageError("give a --shape or a --model to measure");
  }
  std::optional<ModelImage> image;
  if (!options.shape.empty()) {
    const ModelConfig shape = named_shape(options.shape, *dtype_from_name(options.dtype));
    std::fprintf(stderr, "making random weights...\n");
    image.emplace(make_random_model(shape, 1));
  }
  const ModelFile file =
      image ? ModelFile::from_bytes(image->bytes(), options.shape) : ModelFile::open(options.model);
  if (read_config(file).encoder) {
    throw Error(
        file.name() +
        ": has an encoder, and the benchmark is of decoders; time a batch of faststream-run");
  }
  Bench bench(file, options);
  bench.print_header(file.name());
  for (const int32_t length : options.prompt) bench.measure_prefill(length);
  for (const int32_t count : options.sequences) bench.measure_decode(count);
}

}  // namespace faststream
