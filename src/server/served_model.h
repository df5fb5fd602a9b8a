// A model that the server has, and what is counted of it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/engine.h"
#include "server/embed_queue.h"
#include "server/metrics.h"

namespace faststream::server {

struct ServedModel {
  std::string name;
  int64_t created = 0;         ///< seconds since 1970
  Request defaults = {};       ///< what the model recommends
  int64_t most_sequences = 0;  ///< that may run and wait
  std::atomic<int64_t> n_sequences = 0;
  ModelMetrics metrics;
  // One of them; they end before what callbacks use above.
  std::unique_ptr<Engine> engine;
  std::unique_ptr<EmbedQueue> embedder;

  /// Whether it is asked for by this name: its own or an adapter's.
  [[nodiscard]] bool has_name(std::string_view asked) const {
    return asked == name || (engine && std::ranges::find(engine->info().adapters, asked) !=
                                           engine->info().adapters.end());
  }
  /// Request::adapter of one that asks for this name, of those that it has, or for none: its own is
  /// the model's without adapters.
  [[nodiscard]] std::optional<std::string> adapter_of(const std::string& asked) const {
    if (asked.empty()) return std::nullopt;
    return asked == name ? "" : asked;
  }
  /// Whether so many sequences may run and wait, if nothing else does.
  [[nodiscard]] bool could_admit(int64_t n) const { return n <= most_sequences; }
  /// Counts sequences that are to run. False, and none is counted, where too many wait already.
  bool admit(int64_t n) {
    if (n_sequences.fetch_add(n) + n <= most_sequences) return true;
    n_sequences -= n;
    ++metrics.rejected;
    return false;
  }
};

}  // namespace faststream::server
