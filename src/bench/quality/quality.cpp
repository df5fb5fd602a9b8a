#include "bench/quality/quality.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "bench/report.h"
#include "convert/command/convert_options.h"
#include "convert/pipeline.h"
#include "engine/load_weights.h"
#include "engine/loaded_model.h"
#include "engine/runner.h"
#include "model_file/layout.h"
#include "model_file/model_file.h"
#include "program/input.h"
#include "program/interrupt.h"
#include "program/output.h"
#include "support/error.h"
#include "support/machine.h"
#include "support/nameless_file.h"
#include "support/printable.h"
#include "support/progress.h"

namespace faststream::bench {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using convert::ConvertCommandOptions;
using convert::ConvertOptions;

constexpr int32_t kPromptTokens = 16;
constexpr int32_t kWarmUp = 4;
constexpr int32_t kGenerated = 32;

// Whether a file begins as model files do; anything else may be a checkpoint.
bool is_model_file(const fs::path& path) {
  std::array<unsigned char, layout::kMagic.size()> begin{};
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(begin.data()), begin.size());
  return file.good() && begin == layout::kMagic;
}

// A recipe, understood.
struct Making {
  WeightFormat format = WeightFormat::f32;
  ConvertCommandOptions options;
};

Making parse(const Recipe& recipe) {
  const std::string where = "--recipe " + recipe + ": ";
  const size_t end = std::min(recipe.find(' '), recipe.size());
  const auto format = format_from_name(recipe.substr(0, end));
  if (!format) throw UsageError(where + "begins with no type of weights, such as int8");
  Making making{*format, {}};
  CLI::App app;
  convert::add_convert_options(app, making.options);
  try {
    app.parse(recipe.substr(end), false);
  } catch (const CLI::ParseError&) {
    throw UsageError(where + "has options that are none of faststream-convert's");
  }
  const ConvertCommandOptions& given = making.options;
  for (const std::string* other : {&given.checkpoint, &given.output, &given.dtype,
                                   &given.adapter_for, &given.check, &given.show, &given.verify}) {
    if (other->empty()) continue;
    throw UsageError(where +
                     "takes a type of weights, and options of faststream-convert that say how "
                     "weights are made");
  }
  return making;
}

ConvertOptions conversion_of(Making making, const std::string& checkpoint,
                             const BenchOptions& options) {
  ConvertOptions conversion = convert::conversion_of(checkpoint, making.options);
  conversion.format = making.format;
  conversion.no_mtp = true;  // nothing computes with them
  conversion.threads = options.threads == 0 ? available_threads() : options.threads;
  conversion.show_progress = true;
  conversion.check_interrupted = check_interrupted;
  if (making.options.device == "auto") making.options.device = options.device;
  convert::add_statistics(making.options, conversion);
  return conversion;
}

// Throws UsageError when a recipe makes no sense, for this checkpoint either. What else may be
// wrong with the checkpoint, its own row will say.
void check_recipe(const Recipe& recipe, const std::string& checkpoint) {
  const Making making = parse(recipe);
  ConvertOptions conversion = convert::conversion_of(checkpoint, making.options);
  conversion.format = making.format;
  try {
    (void)convert::target_config(convert::open_source(conversion), conversion);
  } catch (const UsageError& error) {
    throw UsageError("--recipe " + recipe + ": " + error.what());
  } catch (const Error&) {
  }
}

int64_t context_of(const fs::path& path, const BenchOptions& options) {
  constexpr int64_t kWindow = 512;
  if (options.context > 0) return options.context;
  return std::min(kWindow, read_config(ModelFile::open(path)).max_context);
}

// name: of a model file or, where it was made of one, the checkpoint's.
std::unique_ptr<LoadedModel> load(const fs::path& path, const std::string& name,
                                  const BenchOptions& options) {
  const ModelConfig config = read_config(ModelFile::open(path));
  if (config.encoder || config.output.none) {
    throw Error(name + (config.output.none ? ": is an encoder" : ": answers to its prompts") +
                "; --quality is of models that continue texts");
  }
  const EngineOptions engine{.device = options.device,
                             .threads = options.threads,
                             .context = context_of(path, options),
                             .slots = 1,
                             .check_interrupted = check_interrupted};
  return std::make_unique<LoadedModel>(path, engine, kPerplexityStepTokens);
}

// Converted and loaded.
std::unique_ptr<LoadedModel> make(const Recipe& recipe, const std::string& checkpoint,
                                  const BenchOptions& options) {
  ConvertOptions conversion = conversion_of(parse(recipe), checkpoint, options);
  NamelessFile file;
  conversion.into = &file;
  convert::convert_checkpoint(conversion);
  return load(file.path(), checkpoint, options);
}

// One sequence generates, and nothing else runs.
double generation_speed(LoadedModel& model) {
  Runner& runner = *model.runner;
  const auto vocab = static_cast<int32_t>(model.config.vocab);
  const int32_t most = static_cast<int32_t>(model.info.context) - kPromptTokens - kWarmUp;
  const int32_t steps = std::min(kGenerated, most);
  if (steps < 1) return 0;
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < kPromptTokens; ++i) prompt.push_back(1 + i % (vocab - 1));
  Sequence sequence = runner.begin(kPromptTokens + kWarmUp + steps);
  std::vector<SampledToken> sampled;
  const auto step = [&](std::span<const int32_t> tokens) {
    runner.step({{{&sequence, tokens}}});
    runner.sample(std::vector{sampling_row({.temperature = 0}, sequence.n_cached)}, sampled);
    check_interrupted();
  };
  step(prompt);
  Clock::time_point start;
  for (int32_t n = -kWarmUp; n < steps; ++n) {
    if (n == 0) start = Clock::now();
    const int32_t token = sampled[0].token;
    step({&token, 1});
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  runner.release(sequence);
  return steps / seconds;
}

// Without a reference it is the reference itself.
Quality measure(LoadedModel& model, LoadedModel* reference, const std::string& text) {
  return {.sizes = sizes_of(tensor_plan(model.config)),
          .perplexity = measure_perplexity(model, reference, text, check_interrupted),
          .tokens_per_second = generation_speed(model)};
}

class Table {
 public:
  // names: of all rows.
  Table(const Report& report, bool json, std::span<const std::string> names) : report_(report) {
    for (const std::string& name : names) width_ = std::max(width_, name.size());
    if (json) return;
    print(format("%-*s %10s %7s %11s %10s %10s %10s %12s\n", static_cast<int>(width_), "weights",
                 "size", "bits", "ppl ratio", "KL mean", "KL 99%", "top agrees", "tokens/s"));
  }

  void add(const std::string& name, const Quality& quality) const {
    const Perplexity& perplexity = quality.perplexity;
    nlohmann::ordered_json figures = {{"recipe", name},
                                      {"bytes", quality.sizes.bytes},
                                      {"bits_a_weight", quality.sizes.bits_a_weight},
                                      {"tokens", perplexity.n_tokens},
                                      {"perplexity", perplexity.value},
                                      {"perplexity_standard_error", perplexity.standard_error}};
    std::string compared = format("%11s %10s %10s %10s", "-", "-", "-", "-");
    if (perplexity.divergence) {
      const Divergence& divergence = *perplexity.divergence;
      const double ratio = perplexity.value / divergence.reference_perplexity;
      figures.update({{"perplexity_ratio", ratio},
                      {"kl_mean", divergence.mean_kl},
                      {"kl_99th", divergence.kl_99th},
                      {"top_token_agrees", divergence.top_token_agrees}});
      compared = format("%11.6f %10.3g %10.3g %8.3f %%", ratio, divergence.mean_kl,
                        divergence.kl_99th, 100 * divergence.top_token_agrees);
    }
    figures.update({{"scored_tokens_per_second",
                     static_cast<double>(perplexity.n_tokens) / perplexity.seconds},
                    {"tokens_per_second", quality.tokens_per_second}});
    report_.add("quality", figures,
                label(name) +
                    format(" %10s %7.2f ", format_bytes(quality.sizes.bytes).c_str(),
                           quality.sizes.bits_a_weight) +
                    compared + format(" %12.1f", quality.tokens_per_second));
  }

  void add_failure(const std::string& name, const std::string& why) const {
    report_.add("quality", {{"recipe", name}, {"error", why}}, label(name) + ' ' + printable(why));
  }

 private:
  [[nodiscard]] std::string label(const std::string& name) const {
    const std::string shown = printable(name);
    return shown + std::string(width_ - std::min(width_, shown.size()), ' ');
  }

  const Report& report_;
  size_t width_ = 7;
};

// A row for each of `names`, whose models load(name) gives. Returns how many failed.
template <typename Load>
size_t measure_all(const std::vector<std::string>& names, const Load& load, LoadedModel& reference,
                   const std::string& text, const Table& table) {
  size_t n_failed = 0;
  for (const std::string& name : names) {
    try {
      const std::unique_ptr<LoadedModel> model = load(name);
      table.add(name, measure(*model, &reference, text));
    } catch (const OutputError&) {
      throw;
    } catch (const UsageError&) {
      throw;
    } catch (const Error& error) {
      table.add_failure(name, error.what());
      ++n_failed;
    }
  }
  return n_failed;
}

}  // namespace

std::vector<Recipe> default_recipes() {
  std::vector<Recipe> recipes;
  for (const WeightFormat format : kWeightFormats) recipes.emplace_back(format_name(format));
  for (const WeightFormat format : kWeightFormats) {
    if (!is_integer(format)) continue;
    for (const char* option : {" --activation-bits 16", " --keep-output"}) {
      recipes.push_back(std::string(format_name(format)) + option);
    }
  }
  return recipes;
}

void quality_command(const BenchOptions& options) {
  catch_interrupts();
  // A reader that goes away must not end the process before its files are gone.
  std::signal(SIGPIPE, SIG_IGN);
  check(options);
  for (const std::string& model : options.models) {
    if (!fs::exists(model))
      throw Error(model + ": there is no such file or folder; check the path");
  }
  const bool are_files = std::ranges::all_of(options.models, is_model_file);
  if (!are_files && options.models.size() > 1) {
    throw UsageError("--quality: takes one checkpoint, or model files alone");
  }
  if (are_files && options.against.empty()) {
    throw UsageError(
        "--quality: of model files, needs the one that they are compared with, "
        "--against");
  }
  if (are_files && !options.recipes.empty()) {
    throw UsageError("--recipe: is how a checkpoint is converted, and these are model files");
  }
  for (const Recipe& recipe : options.recipes) check_recipe(recipe, options.models.front());
  const std::string text = read_some_text(options.quality, "--quality");
  const std::string& checkpoint = options.models.front();
  const Recipe exact(format_name(WeightFormat::f32));
  const std::unique_ptr<LoadedModel> reference =
      options.against.empty() ? make(exact, checkpoint, options)
                              : load(options.against, options.against, options);

  std::vector<std::string> names = are_files ? options.models : options.recipes;
  if (names.empty()) names = default_recipes();
  const std::string name = options.against.empty() ? exact : options.against;
  std::erase(names, name);
  std::vector<std::string> all = names;
  all.insert(all.begin(), name);
  const Report report(options.json, {{"model", options.models.front()},
                                     {"against", name},
                                     {"device", reference->info.device},
                                     {"version", FASTSTREAM_VERSION}});
  if (!options.json) {
    print(printable(are_files ? "model files" : checkpoint) + " against " + printable(name) + ", " +
          reference->info.device + ", windows of " + std::to_string(reference->info.context) +
          " tokens\n");
  }
  const Table table(report, options.json, all);
  table.add(name, measure(*reference, nullptr, text));
  const size_t n_failed = measure_all(
      names,
      [&](const std::string& each) {
        return are_files ? load(each, each, options) : make(each, checkpoint, options);
      },
      *reference, text, table);
  if (n_failed > 0) {
    throw Error("--quality: " + std::to_string(n_failed) + " of " + std::to_string(all.size()) +
                " rows failed; the table says why");
  }
}

}  // namespace faststream::bench
