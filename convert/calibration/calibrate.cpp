#include "convert/calibration/calibrate.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "convert/calibration/observing_backend.h"
#include "engine/loaded_model.h"
#include "engine/model_on_device.h"
#include "engine/perplexity.h"
#include "engine/runner.h"
#include "support/error.h"
#include "support/nameless_file.h"
#include "support/progress.h"

namespace faststream::convert {
namespace {

constexpr int32_t kStepTokens = 256;

// The checkpoint's model, in the type of its weights.
void convert_as_it_is(const ConvertOptions& conversion, const CalibrationOptions& calibration,
                      OutputFile& into) {
  ConvertOptions plain;
  plain.decode = true;
  plain.checkpoint = conversion.checkpoint;
  plain.tokenizer = conversion.tokenizer;
  plain.adapters = conversion.adapters;
  plain.pooling = conversion.pooling;
  plain.normalize = conversion.normalize;
  plain.no_mtp = true;  // nothing computes with them
  plain.eagle.reset();
  plain.into = &into;
  plain.threads = calibration.threads;
  plain.show_progress = calibration.show_progress;
  plain.check_interrupted = calibration.check_interrupted;
  convert_checkpoint(plain);
}

uint64_t gram_bytes(const TensorPlan& plan, int64_t block) {
  const auto of_part = static_cast<uint64_t>(plan.columns() * std::min(block, plan.columns()));
  return static_cast<uint64_t>(ActivationStatistics::parts_of(plan)) * of_part * sizeof(float);
}

// Of which of the matrices `plans` products of columns are measured.
std::set<TensorId> with_gram(std::span<const TensorPlan> plans, int64_t block) {
  std::set<TensorId> ids;
  if (block == 0) return ids;
  for (const bool experts : {true, false}) {
    uint64_t bytes = 0;
    ids.clear();
    for (const TensorPlan& plan : plans) {
      if (plan.experts > 0 && !experts) continue;
      ids.insert(plan.id);
      bytes += gram_bytes(plan, block);
    }
    if (bytes <= kMostGramBytes) return ids;
  }
  return {};
}

// Windows of tokens that stand for text, the same ones for the same vocabulary: first ones, which
// most vocabularies have for what is frequent, more often than later ones.
std::vector<std::vector<int32_t>> random_windows(const Tokenizer& tokenizer, int64_t context) {
  std::vector<int32_t> drawn_from;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.token_bytes(id).empty()) drawn_from.push_back(id);
  }
  if (drawn_from.empty()) throw Error("--calibrate random: no token of the vocabulary is text");
  const TokenizerConfig& config = tokenizer.config();
  constexpr double kFlat = 256;  // so many first ones are about equally likely
  const double n = static_cast<double>(drawn_from.size()) / kFlat + 1;
  const auto place = [&](uint32_t drawn) {
    const double at = kFlat * (std::pow(n, static_cast<double>(drawn) / 0x1p32) - 1);
    return std::min(static_cast<size_t>(at), drawn_from.size() - 1);
  };
  std::mt19937 random;
  std::vector<std::vector<int32_t>> windows;
  for (int64_t drawn = 0; drawn < kRandomTokens; drawn += context) {
    std::vector<int32_t>& window = windows.emplace_back();
    if (config.adds_bos() && config.bos) window.push_back(*config.bos);
    while (std::ssize(window) < context)
      window.push_back(drawn_from[place(static_cast<uint32_t>(random()))]);
  }
  return windows;
}

std::vector<std::vector<int32_t>> windows_of(const Tokenizer& tokenizer, const std::string& text,
                                             int64_t context) {
  try {
    return text_windows(tokenizer, text, context);
  } catch (const Error& error) {
    throw Error(std::string("--calibrate: ") + error.what());
  }
}

void run_over(Runner& runner, const std::vector<std::vector<int32_t>>& windows,
              const CalibrationOptions& calibration) {
  ProgressBar progress("calibrating", ProgressBar::Unit::tokens, calibration.show_progress);
  uint64_t total = 0;
  for (const auto& window : windows) total += window.size();
  uint64_t done = 0;
  for (const std::vector<int32_t>& window : windows) {
    Sequence sequence = runner.begin(static_cast<int64_t>(window.size()));
    for (size_t first = 0; first < window.size(); first += kStepTokens) {
      if (calibration.check_interrupted) calibration.check_interrupted();
      const auto part =
          std::span(window).subspan(first, std::min<size_t>(kStepTokens, window.size() - first));
      runner.step({{{&sequence, part, NewTokens::Logits::all}}});
      // The output matrix' inputs are observed as tokens are chosen.
      const std::vector<SamplingRow> greedy(part.size());
      runner.choose(greedy)->wait();
      progress.update(done += part.size(), total);
    }
    runner.release(sequence);
  }
}

void check_finite(const ActivationStatistics& statistics, const std::string& name) {
  for (const auto& [place, moments] : statistics.all()) {
    for (const float square : moments.mean_squares) {
      if (std::isfinite(square)) continue;
      throw Error(name + ": the model computes NaN or infinity (in what " +
                  tensor_name(place.first) + " is multiplied with), and cannot be calibrated");
    }
  }
}

}  // namespace

ActivationStatistics calibrate(const ConvertOptions& conversion,
                               const CalibrationOptions& calibration) {
  const auto refuse = [](const char* why) { throw UsageError(std::string("--calibrate: ") + why); };
  check_output(conversion);
  if (calibrated_matrices(target_config(open_source(conversion), conversion)).empty()) {
    refuse(kOfInt4);
  }
  if (conversion.before_output) conversion.before_output();
  NamelessFile file;
  convert_as_it_is(conversion, calibration, file);
  ModelOnDevice model(file.path(), calibration.check_interrupted);
  const std::string name = conversion.checkpoint.string();
  if (model.config.encoder || model.config.output.none) {
    refuse("is of models that continue texts, and this one has an encoder");
  }

  const std::vector<TensorPlan> measured =
      calibrated_matrices(target_config(model.config, conversion));
  std::set<TensorId> wanted;
  for (const TensorPlan& plan : measured) wanted.insert(plan.id);

  const int64_t context = std::min(kCalibrationContext, model.config.max_context);
  const EngineOptions engine{.device = calibration.device,
                             .threads = calibration.threads,
                             .context = context,
                             .slots = 1,
                             .kv_tokens = context};
  ObservingBackend* observing = nullptr;
  std::unique_ptr<Runner> runner;
  model.place(engine.device, engine.threads, model.weight_bytes(), {}, [&](const auto& progress) {
    const MemoryPlan plan = plan_memory(model.config, engine, model.weight_bytes(), kStepTokens,
                                        figures_of(*model.backend, model.config));
    auto wrapped = std::make_unique<ObservingBackend>(
        std::move(model.backend), model.file, model.config, wanted,
        with_gram(measured, calibration.gram_columns), calibration.gram_columns);
    observing = wrapped.get();
    model.backend = std::move(wrapped);
    runner = std::make_unique<Runner>(model.file, *model.backend, runner_limits(plan), progress);
  });
  run_over(*runner,
           calibration.text ? windows_of(*model.tokenizer, *calibration.text, context)
                            : random_windows(*model.tokenizer, context),
           calibration);
  ActivationStatistics statistics = observing->statistics();
  check_finite(statistics, name);
  return statistics;
}

}  // namespace faststream::convert
