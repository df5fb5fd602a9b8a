#include "server/metrics.h"

#include <algorithm>
#include <cstdio>
#include <functional>

#include "support/utf8.h"

namespace faststream::server {
namespace {

constexpr std::array kFirstTokenBounds = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08,
                                          0.1,   0.25,  0.5,  0.75, 1.0,  2.5,  5.0,
                                          7.5,   10.0,  20.0, 40.0, 80.0, 160.0};
constexpr std::array kTokenBounds = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075,
                                     0.1,    0.15,  0.2,    0.3,   0.4,  0.5,   0.75, 1.0};
constexpr std::array kWholeBounds = {0.01, 0.05, 0.1,  0.3,  0.5,  0.8,  1.0,   1.5,   2.0,  2.5,
                                     5.0,  10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 240.0, 480.0};

constexpr std::string_view kPrefix = "faststream:";

void append(std::string& text, double value) {
  std::array<char, 32> digits{};
  std::snprintf(digits.data(), digits.size(), "%.9g", value);
  text += digits.data();
}

void head(std::string& text, std::string_view name, std::string_view type, std::string_view help) {
  for (const auto& [word, rest] : {std::pair("# HELP ", help), std::pair("# TYPE ", type)}) {
    text += word;
    text += kPrefix;
    text += name;
    text += ' ';
    text += rest;
    text += '\n';
  }
}

void line(std::string& text, std::string_view name, std::string_view labels, double value) {
  text += kPrefix;
  text += name;
  if (!labels.empty()) (text += '{') += std::string(labels) + "}";
  text += ' ';
  append(text, value);
  text += '\n';
}

}  // namespace

void Histogram::add(double value) {
  const auto at = std::ranges::lower_bound(bounds_, value) - bounds_.begin();
  counts_.at(static_cast<size_t>(at)).fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

void Histogram::write(std::string& text, std::string_view name, std::string_view labels) const {
  uint64_t count = 0;
  for (size_t i = 0; i <= bounds_.size(); ++i) {
    count += counts_.at(i).load(std::memory_order_relaxed);
    std::string bound = "+Inf";
    if (i < bounds_.size()) {
      bound.clear();
      append(bound, bounds_[i]);
    }
    line(text, std::string(name) + "_bucket", std::string(labels) + ",le=\"" + bound + "\"",
         static_cast<double>(count));
  }
  line(text, std::string(name) + "_sum", labels, sum_.load(std::memory_order_relaxed));
  line(text, std::string(name) + "_count", labels, static_cast<double>(count));
}

ModelMetrics::ModelMetrics()
    : first_token(kFirstTokenBounds),
      queue(kFirstTokenBounds),
      each_token(kTokenBounds),
      whole(kWholeBounds) {}

void ModelMetrics::add(const Result& result, bool has_failed) {
  size_t n_tokens = 0;
  bool is_full = false;
  bool is_cancelled = result.outputs.empty();
  for (const Output& output : result.outputs) {
    n_tokens += output.tokens.size();
    is_cancelled = is_cancelled || output.finish_reason == FinishReason::cancelled;
    is_full = is_full || output.finish_reason == FinishReason::length ||
              output.finish_reason == FinishReason::context;
  }
  prompt_tokens += static_cast<uint64_t>(result.prompt_tokens);
  generation_tokens += n_tokens;
  ++(has_failed ? failed : is_cancelled ? cancelled : is_full ? full : stopped);
  if (n_tokens == 0) return;
  first_token.add(result.prompt_seconds);
  queue.add(result.queue_seconds);
  whole.add(result.prompt_seconds + result.generation_seconds);
  const size_t longest = std::ranges::max(result.outputs, {}, [](const Output& output) {
                           return output.tokens.size();
                         }).tokens.size();
  if (longest > 1) each_token.add(result.generation_seconds / static_cast<double>(longest - 1));
}

std::string model_label(std::string_view model) {
  std::string label = "model_name=\"";
  for (const char c : valid_utf8(std::string(model))) {
    if (c == '"' || c == '\\' || c == '\n') label += '\\';
    label += c == '\n' ? 'n' : c;
  }
  return label + "\"";
}

std::string metrics_text(std::span<const MetricsOf> models, size_t connections) {
  std::string text;
  using Value = std::function<double(const MetricsOf&)>;
  const auto each = [&](std::string_view name, std::string_view type, std::string_view help,
                        const Value& value) {
    head(text, name, type, help);
    for (const MetricsOf& model : models) line(text, name, model_label(model.model), value(model));
  };
  each("num_requests_running", "gauge", "Sequences that run now.",
       [](const MetricsOf& m) { return double(m.stats.running); });
  each("num_requests_waiting", "gauge", "Sequences that wait for a slot, or texts for a vector.",
       [](const MetricsOf& m) { return double(m.kv_tokens > 0 ? m.stats.waiting : m.waiting); });
  each("kv_cache_usage_perc", "gauge", "Used part of the KV cache, 1 is all.",
       [](const MetricsOf& m) {
         if (m.kv_tokens <= 0) return 0.0;
         return std::max(0.0, 1 - double(m.stats.free_tokens) / double(m.kv_tokens));
       });
  each("prompt_tokens_total", "counter", "Tokens of prompts of requests that have ended.",
       [](const MetricsOf& m) { return double(m.metrics->prompt_tokens); });
  each("generation_tokens_total", "counter", "Tokens generated for requests that have ended.",
       [](const MetricsOf& m) { return double(m.metrics->generation_tokens); });
  each("prefix_cache_hits_total", "counter", "Tokens of prompts that were found in the KV cache.",
       [](const MetricsOf& m) { return double(m.stats.cached_tokens); });
  each("spec_decode_num_draft_tokens_total", "counter",
       "Tokens that were proposed before they were drawn.",
       [](const MetricsOf& m) { return double(m.stats.proposed_tokens); });
  each("spec_decode_num_accepted_tokens_total", "counter", "Of them those that were drawn.",
       [](const MetricsOf& m) { return double(m.stats.accepted_tokens); });
  each("num_preemptions_total", "counter", "Sequences that were taken back to wait.",
       [](const MetricsOf& m) { return double(m.stats.preemptions); });
  each("requests_rejected_total", "counter", "Requests refused since too many waited.",
       [](const MetricsOf& m) { return double(m.metrics->rejected); });
  head(text, "request_success_total", "counter", "Requests that have ended, by how.");
  for (const MetricsOf& model : models) {
    const ModelMetrics& m = *model.metrics;
    const std::pair<const char*, const std::atomic<uint64_t>*> ends[] = {
        {"stop", &m.stopped}, {"length", &m.full}, {"abort", &m.cancelled}, {"error", &m.failed}};
    for (const auto& [reason, count] : ends) {
      line(text, "request_success_total",
           model_label(model.model) + ",finished_reason=\"" + reason + "\"", double(*count));
    }
  }
  const auto histogram = [&](std::string_view name, std::string_view help,
                             const Histogram ModelMetrics::*member) {
    head(text, name, "histogram", help);
    for (const MetricsOf& model : models) {
      (model.metrics->*member).write(text, name, model_label(model.model));
    }
  };
  histogram("time_to_first_token_seconds", "From a request to its first token.",
            &ModelMetrics::first_token);
  histogram("request_queue_time_seconds", "From a request to its first step.",
            &ModelMetrics::queue);
  histogram("time_per_output_token_seconds", "Of a request, between two tokens on average.",
            &ModelMetrics::each_token);
  histogram("e2e_request_latency_seconds", "From a request to its last token.",
            &ModelMetrics::whole);
  head(text, "num_connections", "gauge", "Open connections.");
  line(text, "num_connections", "", double(connections));
  return text;
}

}  // namespace faststream::server
