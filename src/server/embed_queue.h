// Texts that wait for their vectors or scores.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/embedder.h"

namespace faststream::server {

struct EmbedTask {
  std::optional<std::string> query;  ///< scored with each text; none: vectors
  std::vector<std::string> texts;
  /// Called by the queue's thread, once: with the vectors of the texts, or why there are none.
  std::function<void(std::vector<TextVector> vectors, const std::string& error)> done;
  /// Set by whoever does not want them any more. May be null.
  std::shared_ptr<std::atomic<bool>> unwanted;
};

/// An encoder with a thread. Texts of several tasks go into the same steps.
class EmbedQueue {
 public:
  /// At most `most_texts` wait, or one task of more. Throws std::system_error when the system gives
  /// no thread.
  EmbedQueue(Embedder embedder, size_t most_texts);
  EmbedQueue(const EmbedQueue&) = delete;
  EmbedQueue& operator=(const EmbedQueue&) = delete;
  /// Tasks that are not begun get an error.
  ~EmbedQueue();

  [[nodiscard]] const EmbedderInfo& info() const { return info_; }
  /// False, and the task is not taken, when too many wait.
  bool add(EmbedTask task);
  [[nodiscard]] size_t n_waiting() const { return n_texts_; }

 private:
  void work();
  void compute(std::vector<EmbedTask> tasks);

  Embedder embedder_;
  EmbedderInfo info_;
  size_t most_texts_;
  std::atomic<size_t> n_texts_ = 0;  // of all tasks that have not ended
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<EmbedTask> tasks_;  // guarded by mutex_, as is the next
  bool ending_ = false;
  std::thread thread_;  // last: it uses all others
};

}  // namespace faststream::server
