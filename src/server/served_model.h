// A model that the server has, and what is counted of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

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
