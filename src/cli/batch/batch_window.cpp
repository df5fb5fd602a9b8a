#include "cli/batch/batch_window.h"

#include <utility>

#include "cli/batch/batch_memory.h"
#include "program/interrupt.h"

namespace faststream::cli {
namespace {

// Signals do not end a wait, so waits ask now and then.
constexpr std::chrono::milliseconds kPollInterval(100);

bool is_finished(const BatchItem& item) { return item.result || !item.error.empty(); }

}  // namespace

BatchWindow::BatchWindow(bool ordered, const WindowLimits& limits)
    : ordered_(ordered), limits_(limits) {}

bool BatchWindow::add(BatchItem item) {
  std::unique_lock lock(mutex_);
  while (!closed_ && !abandoned_ && !has_room(item)) {
    check_interrupted();
    room_.wait_for(lock, kPollInterval);
  }
  if (closed_ || abandoned_) return false;
  unfinished_samples_ += item.samples;
  unfinished_memory_ += item.memory;
  const uint64_t line = item.head.line;
  items_.emplace(line, std::move(item));
  return true;
}

void BatchWindow::finish(uint64_t line, Result result) {
  finish_with(line, bytes_of(result), [&](BatchItem& item) { item.result = std::move(result); });
}

void BatchWindow::finish(uint64_t line, std::string error) {
  finish_with(line, error.size(), [&](BatchItem& item) { item.error = std::move(error); });
}

template <typename Answer>
void BatchWindow::finish_with(uint64_t line, size_t memory, Answer&& answer) {
  {
    const std::lock_guard lock(mutex_);
    const auto item = items_.find(line);
    if (abandoned_ || item == items_.end()) return;
    answer(item->second);
    unfinished_samples_ -= item->second.samples;
    unfinished_memory_ -= item->second.memory;
    finished_memory_ += item->second.memory = memory;
    if (!ordered_) finished_.push_back(line);
    room_.notify_all();
    if (!has_ready()) return;
  }
  ready_.notify_one();
}

void BatchWindow::withdraw(uint64_t line) {
  const std::lock_guard lock(mutex_);
  const auto item = items_.find(line);
  unfinished_samples_ -= item->second.samples;
  unfinished_memory_ -= item->second.memory;
  items_.erase(item);
}

void BatchWindow::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  room_.notify_all();
  ready_.notify_all();
}

void BatchWindow::wait_until_empty() {
  std::unique_lock lock(mutex_);
  while (!room_.wait_for(lock, kPollInterval, [&] { return items_.empty() || abandoned_; })) {
    check_interrupted();
  }
}

void BatchWindow::abandon(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  abandoned_ = true;
  if (reason_.empty()) reason_ = reason;
  room_.notify_all();
  ready_.notify_all();
}

std::string BatchWindow::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

std::optional<BatchItem> BatchWindow::take(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  ready_.wait_for(lock, patience, [&] { return has_ready() || is_exhausted(); });
  if (!has_ready()) return std::nullopt;
  uint64_t line = 0;
  if (ordered_) {
    line = items_.begin()->first;
  } else {
    line = finished_.front();
    finished_.pop_front();
  }
  BatchItem item = std::move(items_.extract(line).mapped());
  finished_memory_ -= item.memory;
  room_.notify_all();
  return item;
}

bool BatchWindow::exhausted() const {
  const std::lock_guard lock(mutex_);
  return is_exhausted();
}

bool BatchWindow::is_exhausted() const {
  return abandoned_ ? !has_ready() : closed_ && items_.empty();
}

bool BatchWindow::has_room(const BatchItem& item) const {
  if (items_.empty()) return true;
  if (items_.size() >= limits_.lines) return false;
  return unfinished_memory_ + finished_memory_ + item.memory <= limits_.bytes ||
         (unfinished_samples_ < limits_.busy_samples && finished_memory_ <= limits_.bytes);
}

bool BatchWindow::has_ready() const {
  if (!ordered_) return !finished_.empty();
  return !items_.empty() && is_finished(items_.begin()->second);
}

}  // namespace faststream::cli
