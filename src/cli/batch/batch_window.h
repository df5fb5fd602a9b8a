// The lines of a batch that are in work: what bounds its memory, and orders its results.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "cli/batch/batch_record.h"
#include "engine/request.h"

namespace faststream::cli {

/// A line between reading and writing.
struct BatchItem {
  RecordHead head;
  uint64_t bytes = 0;  ///< of the input
  size_t samples = 1;  ///< to be drawn
  size_t memory = 0;   ///< bytes: until it is finished, those at most in work; then its result's
  // One of them once it is finished:
  std::optional<Result> result = {};
  std::string error = {};
};

struct WindowLimits {
  size_t lines;  ///< at most in work at once
  size_t bytes;  ///< of memory that these are to take, finished or not
  /// Unfinished ones that keep all slots busy: with fewer, a line comes in even where what it may
  /// take at most passes `bytes`, as long as the finished ones do not.
  size_t busy_samples;
};

/// Stands between the thread that reads lines, the engine's thread, which finishes them, and the
/// one that writes results. Its memory is bounded: limits.bytes, or one line alone, and the results
/// of limits.busy_samples more.
class BatchWindow {
 public:
  /// `ordered`: results leave in the order of their lines, else as they finish.
  BatchWindow(bool ordered, const WindowLimits& limits);

  /// Takes a line into work once there is room; lines come in order. False when it is not taken,
  /// because the window is closed or abandoned. Throws Interrupted after Ctrl-C.
  bool add(BatchItem item);
  /// Ends a line with its result or with an error that is its answer. Any thread; returns at once.
  void finish(uint64_t line, Result result);
  void finish(uint64_t line, std::string error);
  /// Takes a line out that was added last, unanswered.
  void withdraw(uint64_t line);

  /// No more lines will come.
  void close();
  /// Waits until all lines are taken, or abandoned. Throws Interrupted after Ctrl-C.
  void wait_until_empty();

  /// Gives up the lines that are not finished. Those that are can still be taken, in ordered mode
  /// up to the first that is not. `reason`, if any and the first, is kept.
  void abandon(const std::string& reason = "");
  [[nodiscard]] std::string reason() const;

  /// The next finished line. Nothing when there is none within `patience`.
  std::optional<BatchItem> take(std::chrono::milliseconds patience);
  /// Whether take() will never give a line again.
  [[nodiscard]] bool exhausted() const;

 private:
  // With mutex_ held:
  [[nodiscard]] bool has_room(const BatchItem& item) const;
  [[nodiscard]] bool has_ready() const;
  [[nodiscard]] bool is_exhausted() const;

  template <typename Answer>
  void finish_with(uint64_t line, size_t memory, Answer&& answer);

  const bool ordered_;
  const WindowLimits limits_;
  mutable std::mutex mutex_;
  std::condition_variable room_;
  std::condition_variable ready_;
  // Guarded by mutex_:
  std::map<uint64_t, BatchItem> items_;  // by line
  std::deque<uint64_t> finished_;        // lines as they finished; unless ordered
  size_t unfinished_samples_ = 0;
  size_t unfinished_memory_ = 0;
  size_t finished_memory_ = 0;
  bool closed_ = false;
  bool abandoned_ = false;
  std::string reason_;
};

}  // namespace faststream::cli
