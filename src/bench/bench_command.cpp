#include "bench/bench_command.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/ceilings.h"
#include "bench/profiling_backend.h"
#include "bench/random_model.h"
#include "bench/report.h"
#include "bench/requests.h"
#include "engine/device.h"
#include "engine/kv_groups.h"
#include "engine/load_weights.h"
#include "engine/loaded_model.h"
#include "engine/memory_plan.h"
#include "engine/ranks.h"
#include "engine/runner.h"
#include "models/shares.h"
#include "program/interrupt.h"
#include "program/output.h"
#include "support/error.h"
#include "support/printable.h"
#include "support/progress.h"

namespace faststream::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int32_t kWarmUpSteps = 4;
// Bytes that are read to measure memory: more than caches hold.
constexpr size_t kMostRead = size_t{1} << 30;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The first tokens of a text.
std::vector<int32_t> make_prompt(int64_t text, int32_t length, int64_t vocab) {
  std::vector<int32_t> tokens;
  for (int32_t n = 0; n < length; ++n) tokens.push_back(bench_token(text, n, vocab));
  return tokens;
}

std::string rate_text(double operations) { return format("%.4g T/s", operations * 1e-12); }

int32_t most(const std::vector<int32_t>& values) {
  return *std::max_element(values.begin(), values.end());
}

int32_t longest_prompt(const BenchOptions& options) {
  int32_t longest = 0;
  for (const Lengths& length : options.prompt) longest = std::max(longest, length.most);
  return longest;
}

// Of those that are measured as they generate.
int64_t longest_sequence(const BenchOptions& options) {
  return int64_t{most(options.depth)} + kWarmUpSteps + options.generate.most;
}

// Pages of the KV cache for one prompt, and for all sequences that generate together.
int64_t pages_of(const BenchOptions& options) {
  return std::max<int64_t>(pages_for(longest_prompt(options)),
                           int64_t{most(options.sequences)} * pages_for(longest_sequence(options)));
}

int64_t longest_request(const BenchOptions& options) {
  return int64_t{options.prompt.front().most} + options.generate.most;
}

// Throws UsageError where a text has more tokens than the model allows.
void check_lengths(const BenchOptions& options, const ModelConfig& config) {
  const auto check = [&](const std::string& what, int64_t tokens, const std::string& advice) {
    if (tokens <= config.max_context) return;
    throw UsageError(what + " of up to " + std::to_string(tokens) +
                     " tokens are longer than the model allows, " +
                     std::to_string(config.max_context) + "; give a smaller " + advice);
  };
  if (options.requests > 0) {
    return check("requests", longest_request(options), "--prompt or --generate");
  }
  check("prompts", longest_prompt(options), "--prompt");
  check("sequences", longest_sequence(options), "--depth or --generate");
}

// Throws Error where keys and values have no room beside what the weights take.
void check_room(const BenchOptions& options, const ModelConfig& config, size_t weight_bytes,
                const Backend& backend) {
  double kv_bytes = 0;
  const KvType kv{backend.kv_dtype(config.weight_format), *kv_format_from_name(options.kv)};
  for (const KvGroup& group : kv_groups(config, kv)) {
    kv_bytes += static_cast<double>(pages_of(options) * kPageTokens) *
                static_cast<double>(group.token_bytes);
  }
  const auto free_bytes = static_cast<double>(backend.free_memory());
  if (kv_bytes <= free_bytes - static_cast<double>(weight_bytes)) return;
  throw Error(
      "keys and values of " + std::to_string(most(options.sequences)) + " sequences of " +
      std::to_string(longest_sequence(options)) + " tokens take " +
      format_bytes(static_cast<uint64_t>(kv_bytes)) +
      ", for which there is no room beside the weights; give fewer --sequences or a smaller "
      "--depth");
}

RunnerLimits limits_of(const BenchOptions& options) {
  return {.n_pages = static_cast<int32_t>(pages_of(options)),
          .batch = {.max_tokens = std::max(
                        {longest_prompt(options), most(options.sequences), kMaxStepTokens}),
                    .max_logits = most(options.sequences)},
          .kv = *kv_format_from_name(options.kv)};
}

// Prompts and sequences that generate together, one after the other.
class Bench {
 public:
  // profiling: the backend of the executor, or null.
  Bench(std::unique_ptr<Executor> executor, const BenchOptions& options,
        ProfilingBackend* profiling, const Ceilings& ceilings, const Report& report)
      : options_(options),
        profiling_(profiling),
        ceilings_(ceilings),
        report_(report),
        runner_(std::move(executor)),
        kv_(runner_.kv_type()) {}

  // Tokens a second of processing one prompt, the first token drawn.
  void measure_prefill(int32_t length) {
    const std::vector<int32_t> prompt = make_prompt(0, length, runner_.config().vocab);
    std::vector<double> times;
    const auto process = [&] {
      Sequence sequence;
      const auto start = Clock::now();
      begin_step({{&sequence, prompt}});
      end_all_steps();
      const double seconds = seconds_since(start);
      runner_.release(sequence);
      check_interrupted();
      return seconds;
    };
    (void)process();  // warms up
    for (int32_t run = 0; run < options_.repeat; ++run) times.push_back(process());

    const double seconds = median(times);
    const StepWork work = step_work(runner_.config(), kv_, 1, 0, length);
    nlohmann::ordered_json figures = {
        {"tokens", length}, {"seconds", seconds}, {"tokens_per_second", length / seconds}};
    figures.update(share_figures(work, ceilings_, seconds));
    report_.add(
        "prefill", figures,
        format("prefill   %6d tokens             %10.1f tokens/s  %9.2f ms, %s", length,
               length / seconds, seconds * 1e3, share_text(work, ceilings_, seconds).c_str()));
    if (profiling_ == nullptr) return;
    print_profile({{"of", "prefill"}, {"tokens", length}}, seconds, [&] {
      profiling_->start();
      (void)process();
    });
  }

  // Tokens a second of `count` sequences that generate together, after `depth` tokens each.
  void measure_decode(int32_t count, int32_t depth) {
    const int32_t n_steps = options_.generate.least;
    std::vector<double> times;
    for (int32_t run = 0; run < options_.repeat; ++run) {
      std::vector<Sequence> sequences = make_sequences(count, depth);
      generate(sequences, kWarmUpSteps);
      const auto start = Clock::now();
      generate(sequences, n_steps);
      times.push_back(seconds_since(start) / n_steps);
      for (Sequence& sequence : sequences) runner_.release(sequence);
    }

    const double seconds = median(times);
    // That of the step in the middle, which is the mean of all.
    const int32_t n_cached = depth + kWarmUpSteps + n_steps / 2;
    const StepWork work = step_work(runner_.config(), kv_, count, n_cached, 1);
    nlohmann::ordered_json figures = {{"sequences", count},
                                      {"depth", depth},
                                      {"tokens", n_steps},
                                      {"seconds", seconds},
                                      {"tokens_per_second", count / seconds}};
    figures.update(share_figures(work, ceilings_, seconds));
    report_.add("decode", figures,
                format("decode    %6d tokens × %3d sequences %8.1f tokens/s  %9.3f ms a step after "
                       "%d, %s",
                       n_steps, count, count / seconds, seconds * 1e3, depth,
                       share_text(work, ceilings_, seconds).c_str()));
    if (profiling_ == nullptr) return;
    std::vector<Sequence> sequences = make_sequences(count, depth);
    print_profile({{"of", "decode"}, {"sequences", count}, {"depth", depth}}, seconds, [&] {
      profiling_->start();
      generate(sequences, 1);
    });
    for (Sequence& sequence : sequences) runner_.release(sequence);
  }

 private:
  // Sequences of `depth` tokens, each with pages of its own: one is computed and copied.
  std::vector<Sequence> make_sequences(int32_t count, int32_t depth) {
    std::vector<Sequence> sequences(1);
    const std::vector<int32_t> prompt = make_prompt(0, depth, runner_.config().vocab);
    for (std::span<const int32_t> rest = prompt; !rest.empty();) {
      const auto piece = rest.first(std::min<size_t>(rest.size(), kMaxStepTokens));
      runner_.step({{{&sequences[0], piece, NewTokens::Logits::none}}});
      rest = rest.subspan(piece.size());
    }
    while (sequences.size() < static_cast<size_t>(count)) {
      Sequence copy = runner_.fork(sequences[0]);
      std::vector<PageCopy> copies;
      for (size_t i = 0; i < copy.pages.size(); ++i) {
        copies.push_back(runner_.replace_page(copy, i, runner_.pages().take()));
      }
      runner_.copy_pages(copies);
      sequences.push_back(std::move(copy));
    }
    return sequences;
  }

  // So many steps, each of a token of each sequence: as an engine's, each begins before what the
  // one before chose is read, where the device has it.
  void generate(std::vector<Sequence>& sequences, int32_t n_steps) {
    std::vector<int32_t> tokens(sequences.size());
    std::vector<NewTokens> inputs;
    const size_t most_in_flight = runner_.executor().reads_choices() ? 2 : 1;
    for (size_t s = 0; s < sequences.size(); ++s)
      inputs.push_back({&sequences[s], {&tokens[s], 1}});
    for (int32_t n = 0; n < n_steps; ++n) {
      for (size_t s = 0; s < tokens.size(); ++s) {
        const int64_t text = options_.alike ? 0 : static_cast<int64_t>(s);
        tokens[s] = bench_token(text, sequences[s].n_cached, runner_.config().vocab);
      }
      begin_step(inputs);
      if (in_flight_.size() == most_in_flight) end_oldest_step();
      check_interrupted();
    }
    end_all_steps();
  }

  void begin_step(const std::vector<NewTokens>& inputs) {
    runner_.step(inputs);
    BegunStep& step = in_flight_.emplace_back();
    for (const NewTokens& input : inputs) {
      step.rules.push_back(sampling_row({.temperature = 0}, input.sequence->n_cached));
    }
    step.choices = runner_.choose(step.rules);
  }

  // Waits for its tokens.
  void end_oldest_step() {
    const BegunStep& step = in_flight_.front();
    step.choices->wait();
    SampledToken token;
    for (size_t r = 0; r < step.rules.size(); ++r) step.choices->read(r, token);
    in_flight_.pop_front();
  }

  void end_all_steps() {
    while (!in_flight_.empty()) end_oldest_step();
  }

  // profiled(): starts the profile of a step that takes `seconds` otherwise, and makes it.
  template <typename Step>
  void print_profile(const nlohmann::ordered_json& common, double seconds, const Step& profiled) {
    profiled();
    const std::vector<OperationProfile> profiles = profiling_->stop();
    double sum = 0;
    for (const OperationProfile& profile : profiles) sum += profile.seconds;
    for (const OperationProfile& profile : profiles) {
      const bool counted = profile.work.bytes() > 0;
      nlohmann::ordered_json figures = common;
      figures.update({{"operation", profile.operation},
                      {"calls", profile.calls},
                      {"seconds", profile.seconds},
                      {"share_of_time", profile.seconds / sum}});
      if (counted) figures.update(share_figures(profile.work, ceilings_, profile.seconds));
      std::string reached;
      if (counted) reached = ", " + share_text(profile.work, ceilings_, profile.seconds);
      if (profile.exchanged_bytes > 0) {
        figures["exchanged_bytes"] = profile.exchanged_bytes;
        reached = format(", %.1f KB at %.3g GB/s",
                         1e-3 * profile.exchanged_bytes / static_cast<double>(profile.calls),
                         1e-9 * profile.exchanged_bytes / profile.seconds);
      }
      report_.add("operation", figures,
                  format("  %-36s %5lld calls %9.2f us each %6.1f%% of the time%s",
                         profile.operation.c_str(), static_cast<long long>(profile.calls),
                         1e6 * profile.seconds / static_cast<double>(profile.calls),
                         100 * profile.seconds / sum, reached.c_str()));
    }
    nlohmann::ordered_json figures = common;
    figures.update({{"seconds_by_operation", sum}, {"seconds", seconds}});
    report_.add("profile", figures,
                format("  one by one %.3f ms, in a step without profile %.3f ms", sum * 1e3,
                       seconds * 1e3));
  }

  const BenchOptions& options_;
  ProfilingBackend* profiling_;
  const Ceilings& ceilings_;
  const Report& report_;
  Runner runner_;
  KvType kv_;
  struct BegunStep {
    std::vector<SamplingRow> rules;
    std::unique_ptr<Choices> choices;
  };
  std::deque<BegunStep> in_flight_;  // the oldest first
};

// Where the model is to run.
class BenchDevices {
 public:
  BenchDevices(const EngineOptions& options, const ModelFile& file, const ModelConfig& config)
      : file_(file),
        config_(config),
        ranks_(options.device, options.threads, options.link, options.stages),
        weight_bytes_(bytes_to_load(file, config, ranks_.place())),
        backend_(choose_backend(ranks_.device().device, ranks_.device().threads, weight_bytes_)) {}

  [[nodiscard]] Backend& backend() { return *backend_; }
  /// Rank 0's.
  [[nodiscard]] size_t weight_bytes() const { return weight_bytes_; }
  [[nodiscard]] ModelConfig share() const { return share_of(config_, ranks_.place()); }
  [[nodiscard]] std::string description() const { return ranks_.describe(*backend_); }
  /// Of several ranks that of rank 0.
  ProfilingBackend* profile(size_t bytes_read) {
    auto wrapped =
        std::make_unique<ProfilingBackend>(std::move(backend_), config_.weight_format, bytes_read);
    ProfilingBackend* profiling = wrapped.get();
    backend_ = std::move(wrapped);
    return profiling;
  }
  std::unique_ptr<Executor> make_executor(const Ranks::ChooseLimits& choose_limits) {
    return ranks_.load(file_, config_, *backend_, false, choose_limits, nullptr);
  }

 private:
  const ModelFile& file_;
  const ModelConfig& config_;
  Ranks ranks_;
  size_t weight_bytes_;
  std::unique_ptr<Backend> backend_;
};

void measure_scheduler(const BenchOptions& options, const ModelConfig& config,
                       BenchDevices& devices, const Ceilings& ceilings, const Report& report) {
  const Backend& backend = devices.backend();
  const int64_t context = longest_request(options);
  const EngineOptions wanted{.context = context, .slots = options.slots, .chunk = options.chunk};
  MemoryPlan plan;
  Runner runner(
      devices.make_executor([&](const ModelConfig& share, const RankFigures& rank_figures) {
        BackendFigures figures = figures_of(backend, config, *kv_format_from_name(options.kv));
        figures.free_bytes = rank_figures.free_bytes;
        plan = plan_memory(share, wanted, rank_figures.weight_bytes, 1, figures);
        return runner_limits(plan);
      }));
  SchedulerLimits limits{.slots = plan.slots,
                         .max_step_tokens = plan.limits.max_tokens,
                         .first_tokens = backend.first_tokens(),
                         .chunk = plan.chunk,
                         .runs_ahead = may_run_ahead(backend, runner.executor())};
  limits.run_in_stages(options.stages);
  measure_requests(options, runner, limits, runner.kv_type(), ceilings, report);
}

// For a backend that uses weights where they are; one that copies them has them made in pieces.
void check_room_of_weights(const ModelFile& file, const Backend& backend) {
  const size_t bytes = file.weights().bytes.size();
  const size_t free = backend.free_memory();
  if (bytes <= free) return;
  throw Error("the weights of " + file.name() + " take " + format_bytes(bytes) +
              " of memory, of which " + format_bytes(free) +
              " are free; give a smaller --shape or a --dtype of fewer bits");
}

std::string weights_text(const ModelConfig& config) {
  const double bytes = step_work(config, DType::f32, 1, 0, 1).weight_bytes;
  return format_bytes(static_cast<uint64_t>(bytes));
}

void report_ceilings(const Ceilings& ceilings, const std::string& weights,
                     const std::string& activations, const Report& report) {
  std::string text = "ceilings  memory " + format_bytes(static_cast<uint64_t>(ceilings.memory)) +
                     "/s, products of " + weights + ' ' + rate_text(ceilings.weights);
  if (weights != activations) text += ", of " + activations + ' ' + rate_text(ceilings.activations);
  report.add("ceilings",
             {{"memory_bytes_per_second", ceilings.memory},
              {"weight_operations_per_second", ceilings.weights},
              {"activation_operations_per_second", ceilings.activations}},
             text);
}

}  // namespace

void bench_command(const BenchOptions& options, const EngineOptions& engine) {
  catch_interrupts();
  check(options);
  std::optional<RandomModel> random;
  if (!options.shape.empty()) {
    if (engine.link != nullptr) {  // the others open what this one does
      throw UsageError(
          "--shape: its weights are made in one process, and mpirun has started several; give a "
          "model file (-m), or the devices of one process (--device cpu,cpu)");
    }
    random.emplace(named_shape(options.shape, *format_from_name(options.dtype)), 1);
  }
  const ModelFile file =
      random ? random->file(options.shape) : ModelFile::open(options.models.front());
  const ModelConfig config = without_predictors(read_config(file));
  if (config.encoder || config.output.none) {
    throw Error(
        file.name() +
        ": has an encoder, and the benchmark is of decoders; time a batch of faststream-run");
  }
  check_lengths(options, config);
  static_cast<void>(choose_kv_format(options.kv, config, file.name()));
  BenchDevices devices(engine, file, config);
  const Backend& backend = devices.backend();
  const size_t weight_bytes = devices.weight_bytes();
  const bool made_in_memory = random && backend.takes_memory_on_use();
  if (made_in_memory) check_room_of_weights(file, backend);
  // A mapped file takes no memory that others could not have.
  const bool is_mapped = !random && backend.takes_memory_on_use();
  if (options.requests == 0)
    check_room(options, devices.share(), is_mapped ? 0 : weight_bytes, backend);
  if (random) std::fprintf(stderr, "making random weights...\n");
  if (made_in_memory) random->make_all(check_interrupted);
  const std::string weights(format_name(config.weight_format));
  const std::string activations(dtype_name(backend.activation_dtype(config.weight_format)));
  const size_t bytes_read = std::min(weight_bytes, kMostRead);
  const Ceilings ceilings = measure_ceilings(devices.backend(), config.weight_format, bytes_read);
  const Report report(options.json, {{"model", file.name()},
                                     {"weights", weights},
                                     {"device", devices.description()},
                                     {"version", FASTSTREAM_VERSION}});
  if (!options.json) {
    print(printable(file.name()) + ", " + weights + ", " + devices.description() + ", " +
          weights_text(config) + " of weights a step\n");
  }
  report_ceilings(ceilings, weights, activations, report);
  if (options.requests > 0) {
    measure_scheduler(options, config, devices, ceilings, report);
    return;
  }
  ProfilingBackend* profiling = options.profile ? devices.profile(bytes_read) : nullptr;
  Bench bench(devices.make_executor(
                  [&](const ModelConfig&, const RankFigures&) { return limits_of(options); }),
              options, profiling, ceilings, report);
  for (const Lengths& length : options.prompt) bench.measure_prefill(length.least);
  for (const int32_t depth : options.depth) {
    for (const int32_t count : options.sequences) bench.measure_decode(count, depth);
  }
}

}  // namespace faststream::bench
