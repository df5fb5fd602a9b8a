#include "bench/requests.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "engine/sequence_group.h"
#include "program/interrupt.h"
#include "support/error.h"
#include "support/split_mix.h"

namespace faststream::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// Streams of random numbers.
constexpr uint64_t kPromptLengths = 1;
constexpr uint64_t kAnswerLengths = 2;
constexpr uint64_t kPauses = 3;

// In [0, 1).
double uniform(uint64_t seed, int64_t n) {
  return static_cast<double>(split_mix(seed, static_cast<uint64_t>(n) + 1) >> 11) * 0x1p-53;
}

int32_t draw(const Lengths& lengths, uint64_t seed, int64_t n) {
  const double width = lengths.most - lengths.least + 1;
  return lengths.least + static_cast<int32_t>(uniform(seed, n) * width);
}

// A text of known length: whatever is drawn, tokens without meaning follow.
class BenchRequest final : public SequenceGroup {
 public:
  BenchRequest(const BenchOptions& options, int64_t number, int64_t vocab)
      : number_(number),
        vocab_(vocab),
        n_prompt_(draw(options.prompt.front(), kPromptLengths, number)),
        n_answer_(draw(options.generate, kAnswerLengths, number)) {
    for (int32_t n = 0; n < n_prompt_; ++n) tokens_.push_back(bench_token(number, n, vocab));
  }

  [[nodiscard]] int32_t width() const override { return 1; }
  [[nodiscard]] size_t n_sequences() const override { return 1; }
  [[nodiscard]] const std::vector<int32_t>& tokens(size_t /*i*/) const override { return tokens_; }
  [[nodiscard]] std::span<const int32_t> source() const override { return {}; }
  [[nodiscard]] SamplingRow sampling_row(size_t /*i*/) const override {
    return faststream::sampling_row({.temperature = 0}, static_cast<int64_t>(tokens_.size()));
  }
  [[nodiscard]] bool ends_with_next() const override { return n_generated() + 1 >= n_answer_; }
  [[nodiscard]] std::optional<SamplingRow> sampling_row_ahead(int32_t /*n*/) const override {
    return sampling_row(0);
  }
  std::span<const int32_t> accept(std::span<SampledToken> /*sampled*/) override {
    static constexpr int32_t kItself = 0;
    tokens_.push_back(bench_token(number_, static_cast<int64_t>(tokens_.size()), vocab_));
    last_token_ = Clock::now();
    if (n_generated() == 1) first_token_ = last_token_;
    return {&kItself, 1};
  }
  std::string_view write() override { return {}; }
  [[nodiscard]] int32_t newest_token() const override { return tokens_.back(); }
  void finish(FinishReason /*reason*/) override { n_answer_ = n_generated(); }
  [[nodiscard]] bool finished() const override { return n_generated() >= n_answer_; }
  std::vector<Output> take_outputs() override { return {}; }

  [[nodiscard]] int32_t n_prompt() const { return n_prompt_; }
  [[nodiscard]] int32_t n_answer() const { return n_answer_; }
  [[nodiscard]] Clock::time_point first_token() const { return first_token_; }
  [[nodiscard]] Clock::time_point last_token() const { return last_token_; }

  Scheduler::Entry entry;
  double arrival = 0;  // seconds after the start

 private:
  [[nodiscard]] int32_t n_generated() const {
    return static_cast<int32_t>(tokens_.size()) - n_prompt_;
  }

  int64_t number_;
  int64_t vocab_;
  int32_t n_prompt_;
  int32_t n_answer_;
  std::vector<int32_t> tokens_;
  Clock::time_point first_token_;
  Clock::time_point last_token_;
};

using Requests = std::vector<std::unique_ptr<BenchRequest>>;

// In the order of arrival, with exponentially distributed pauses (a Poisson process).
Requests make_requests(const BenchOptions& options, int64_t vocab) {
  Requests requests;
  double arrival = 0;
  for (int64_t n = 0; n < options.requests; ++n) {
    check_interrupted();
    auto& request = requests.emplace_back(std::make_unique<BenchRequest>(options, n, vocab));
    request->entry.group = request.get();
    request->entry.arrival = static_cast<uint64_t>(n);
    request->arrival = arrival;
    if (options.rate > 0) arrival -= std::log1p(-uniform(kPauses, n)) / options.rate;
  }
  return requests;
}

void run(const Requests& requests, Scheduler& scheduler, Clock::time_point start) {
  for (size_t next = 0; next < requests.size() || !scheduler.idle();) {
    const double now = Seconds(Clock::now() - start).count();
    while (next < requests.size() && requests[next]->arrival <= now) {
      scheduler.add(requests[next++]->entry);
    }
    if (scheduler.idle()) {
      constexpr double kPatience = 0.05;  // until the next look at Ctrl-C
      std::this_thread::sleep_for(Seconds(std::min(requests[next]->arrival - now, kPatience)));
    } else {
      scheduler.begin_step();
      for (const Scheduler::Outcome& outcome : scheduler.end_step()) {
        if (!outcome.error.empty()) throw Error(outcome.error);
      }
    }
    check_interrupted();
  }
}

// The least work that there is for any order: what all tokens need, and as many times all weights
// as the longest answer has tokens.
StepWork least_work(const Requests& requests, const ModelConfig& config, KvType kv) {
  std::map<std::pair<int32_t, int32_t>, StepWork> known;  // requests have few lengths
  const auto work = [&](int32_t n_cached, int32_t n_tokens) -> const StepWork& {
    const auto [place, is_new] = known.try_emplace({n_cached, n_tokens});
    if (is_new) place->second = step_work(config, kv, 1, n_cached, n_tokens);
    return place->second;
  };
  StepWork total;
  int32_t longest = 0;
  for (const auto& request : requests) {
    check_interrupted();
    const StepWork& prompt = work(0, request->n_prompt());
    const StepWork& first = work(request->n_prompt(), 1);
    const StepWork& last = work(request->n_prompt() + request->n_answer() - 1, 1);
    const double n = request->n_answer() - 1;  // the first token comes of the prompt
    total.kv_bytes += prompt.kv_bytes + n * (first.kv_bytes + last.kv_bytes) / 2;
    total.weight_ops += prompt.weight_ops + n * first.weight_ops;
    total.activation_ops +=
        prompt.activation_ops + n * (first.activation_ops + last.activation_ops) / 2;
    longest = std::max(longest, request->n_answer());
  }
  total.weight_bytes = longest * step_work(config, kv, 1, 0, 1).weight_bytes;
  return total;
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

}  // namespace

int32_t bench_token(int64_t text, int64_t n, int64_t vocab) {
  const uint64_t random = split_mix(static_cast<uint64_t>(text), static_cast<uint64_t>(n) + 1);
  return static_cast<int32_t>(random % static_cast<uint64_t>(vocab));
}

void measure_requests(const BenchOptions& options, Runner& runner, const SchedulerLimits& limits,
                      KvType kv, const Ceilings& ceilings, const Report& report) {
  const Requests requests = make_requests(options, runner.config().vocab);
  const StepWork work = least_work(requests, runner.config(), kv);
  Scheduler scheduler(runner, limits);

  const Clock::time_point start = Clock::now();
  run(requests, scheduler, start);
  const double seconds = Seconds(Clock::now() - start).count();

  int64_t n_prompt = 0;
  int64_t n_answer = 0;
  std::vector<double> first;  // seconds from arrival to the first token
  std::vector<double> each;   // from there for each further one, the mean of a request
  for (const auto& request : requests) {
    n_prompt += request->n_prompt();
    n_answer += request->n_answer();
    first.push_back(Seconds(request->first_token() - start).count() - request->arrival);
    if (request->n_answer() > 1) {
      each.push_back(Seconds(request->last_token() - request->first_token()).count() /
                     (request->n_answer() - 1));
    }
  }
  const SchedulerCounts& counts = scheduler.counts();
  const auto generated = static_cast<double>(n_answer);
  nlohmann::ordered_json figures = {{"requests", options.requests},
                                    {"rate", options.rate},
                                    {"slots", limits.slots},
                                    {"prompt_tokens", n_prompt},
                                    {"generated_tokens", n_answer},
                                    {"seconds", seconds},
                                    {"tokens_per_second", generated / seconds},
                                    {"steps", counts.steps},
                                    {"preemptions", counts.preemptions},
                                    {"first_token_seconds_median", quantile(first, 0.5)},
                                    {"first_token_seconds_99", quantile(first, 0.99)},
                                    {"next_token_seconds_median", quantile(each, 0.5)},
                                    {"next_token_seconds_99", quantile(each, 0.99)}};
  figures.update(share_figures(work, ceilings, seconds));
  report.add(
      "requests", figures,
      format("requests  %6d of %.0f + %.0f tokens   %10.1f tokens/s  %9.2f s, %s\n"
             "          first token after %.3f s (99%% within %.3f), next ones %.2f ms (%.2f)",
             options.requests, static_cast<double>(n_prompt) / options.requests,
             generated / options.requests, generated / seconds, seconds,
             share_text(work, ceilings, seconds).c_str(), quantile(first, 0.5),
             quantile(first, 0.99), 1e3 * quantile(each, 0.5), 1e3 * quantile(each, 0.99)));
}

}  // namespace faststream::bench
