// What /metrics tells, in Prometheus' text format
// (https://prometheus.io/docs/instrumenting/exposition_formats/).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "engine/engine.h"

namespace faststream::server {

/// How often a number was in which range. Any thread may add to it.
class Histogram {
 public:
  /// `bounds`: the upper ends of the ranges, ascending, at most kMostBounds; they must outlive it.
  explicit Histogram(std::span<const double> bounds) : bounds_(bounds) {}

  void add(double value);
  /// Appends its lines: those of the metric `name` with `labels`, such as `model_name="m"`.
  void write(std::string& text, std::string_view name, std::string_view labels) const;

  static constexpr size_t kMostBounds = 24;

 private:
  std::span<const double> bounds_;
  std::array<std::atomic<uint64_t>, kMostBounds + 1> counts_ = {};
  std::atomic<double> sum_ = 0;
};

/// Of one model. Any thread may change it.
struct ModelMetrics {
  ModelMetrics();

  /// A request that has ended, by itself or not.
  void add(const Result& result, bool failed);

  std::atomic<uint64_t> prompt_tokens = 0;
  std::atomic<uint64_t> generation_tokens = 0;
  std::atomic<uint64_t> stopped = 0;  ///< requests, by how they ended
  std::atomic<uint64_t> full = 0;     ///< at a limit of tokens
  std::atomic<uint64_t> cancelled = 0;
  std::atomic<uint64_t> failed = 0;
  std::atomic<uint64_t> rejected = 0;  ///< since too many waited
  Histogram first_token;
  Histogram queue;
  Histogram each_token;
  Histogram whole;
};

/// What a model's text begins with: `model_name="..."`, escaped as Prometheus' text format asks.
std::string model_label(std::string_view model);

/// One model's lines are between those of all others of the same metric: first all of one metric.
struct MetricsOf {
  std::string_view model;
  const ModelMetrics* metrics;
  EngineStats stats;
  int64_t kv_tokens = 0;  ///< 0: the model writes no text
  int64_t waiting = 0;    ///< of a model that writes no text, texts in work
};
std::string metrics_text(std::span<const MetricsOf> models, size_t connections);

}  // namespace faststream::server
